"""Completes the commands in hints by the source that they concern.

Errors and checks are created in packages that do not know whether the project has several sources.
Their hints name only the command. The source is added when a hint is printed: to each command that
takes `--source`, and to the name of the job's log.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMMAND: Final = re.compile(r"headwater((?: [a-z][a-z-]*)+)(?P<rest>.*?)(?=headwater |[;,)]|$)")
_JOB_LOG: Final = ["logs", "projections"]
_tree: Callable[[], Any] = dict
_source: ContextVar[str | None] = ContextVar("source", default=None)


def read_commands(tree: Callable[[], Any]) -> None:
    """Sets the function that loads all commands; the first hint that needs them calls it."""
    global _tree  # noqa: PLW0603  # set once, by the module of the commands
    _tree = tree


def set_source(source: str | None) -> None:
    """Sets the source of the command from now on; None if its project has only one."""
    _source.set(source)


@contextmanager
def using_source(source: str) -> Iterator[None]:
    """Sets the source of the command while the block runs."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


def completed(hint: str, source: str | None = None) -> str:
    """Returns a hint whose commands name a source.

    Args:
        hint: The hint.
        source: The source; None for the one that the command works on. If there is none, the hint
            stays as it is.
    """
    name = source or _source.get()
    if name is None:
        return hint

    def with_source(match: re.Match[str]) -> str:
        words = match[1].split()
        if words == _JOB_LOG and not match["rest"].startswith("."):
            return f"headwater{match[1]}.{name}{match['rest']}"
        known = (tuple(words[:count]) for count in range(len(words), 0, -1))
        path = next((each for each in known if each in _takers()), None)
        if path is None or "--source" in match["rest"]:
            return match[0]
        command = " ".join(["headwater", *path, f"--source {name}", *words[len(path) :]])
        return command + match["rest"]

    return _COMMAND.sub(with_source, hint)


@cache
def _takers() -> frozenset[tuple[str, ...]]:
    """Commands that take `--source`."""
    return frozenset(_taking(_tree(), ()))


def _taking(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if any("--source" in parameter.opts for parameter in command.params):
        yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _taking(inner, (*path, name))
