"""Commands that hints tell, completed by the source that they are about.

Errors and checks are made far below the command line, where no part knows whether its project has
several sources. So they tell the command alone, and the source is added where they are printed, to
each command that takes `--source`, and to the name of the job's log.
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
    """Says where all commands are; they are loaded when a hint needs them."""
    global _tree  # noqa: PLW0603  # set once, by the module of the commands
    _tree = tree


def set_source(source: str | None) -> None:
    """Says on which source the command works from now on; None if its project has only one."""
    _source.set(source)


@contextmanager
def using_source(source: str) -> Iterator[None]:
    """Says so for as long as the block runs."""
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

    def with_source(found: re.Match[str]) -> str:
        words = found[1].split()
        if words == _JOB_LOG and not found["rest"].startswith("."):
            return f"headwater{found[1]}.{name}{found['rest']}"
        known = (tuple(words[:count]) for count in range(len(words), 0, -1))
        path = next((each for each in known if each in _takers()), None)
        if path is None or "--source" in found["rest"]:
            return found[0]
        said = " ".join(["headwater", *path, f"--source {name}", *words[len(path) :]])
        return said + found["rest"]

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
