"""Loads every plugin beside it: a fixture that more than one test needs lives in ``fix_*.py``."""

from __future__ import annotations

import gc
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that:
# tests that send it must find it as a person at a terminal does.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = sorted(f"tests.{plugin.stem}" for plugin in Path(__file__).parent.glob("fix_*.py"))
pytest.register_assert_rewrite(*pytest_plugins)  # before one of them imports another


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from what lives until the end: modules and collected tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
