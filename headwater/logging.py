"""Logs: structured lines on stderr; never a row's value, a DSN or a password."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(*, verbose: bool = False) -> None:
    """Sends logs to stderr: readable lines at a terminal, JSON lines elsewhere.

    Args:
        verbose: Show what happens, not only what is wrong.
    """
    level = logging.INFO if verbose else logging.WARNING
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # looked up for each line: whoever replaces stderr gets the lines that come after
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
