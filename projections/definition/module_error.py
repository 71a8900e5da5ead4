"""What to say of a Python error in a module of views: its line, and the name that was meant."""

from __future__ import annotations

import builtins
import inspect
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

from foundation.suggestion import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_KEYWORD: Final = re.compile(r"(\S+)\(\) got an unexpected keyword argument '(\w+)'")
_IMPORTED: Final = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_NAMES_MAX: Final = 30
"""Up to so many names are listed if none of them is similar to the given one."""


def place(path: Path, error: Exception) -> str:
    """Returns where in a file of views an error occurred: `line 7`; empty if elsewhere."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return f"line {lines[-1]}" if lines else ""


def hint(path: Path, error: Exception) -> str:
    """Returns how to correct an error in a file of views.

    For a name that does not exist, such as `view.miror`, `shop.ordrs`, `key=` instead of `keys=` or
    an import, that is a similar one, or all names if they are few.
    """
    otherwise = "correct the module at this line"
    message = str(error)
    if isinstance(error, AttributeError) and error.name:
        return _meant(error.name, _public(dir(error.obj)), otherwise)
    if isinstance(error, NameError) and error.name:
        return did_you_mean(error.name, [*_names(path, error), *dir(builtins)], otherwise)
    if isinstance(error, ImportError) and (found := _IMPORTED.match(message)):
        module = sys.modules.get(found[2])
        return _meant(found[1], getattr(module, "__all__", _public(dir(module))), otherwise)
    if isinstance(error, TypeError) and (found := _KEYWORD.match(message)):
        for called in _called(found[1], error):
            words = inspect.signature(called).parameters.keys() - {"self"}
            return _meant(found[2], words, otherwise)
    return otherwise


def _meant(name: str, known: Iterable[str], otherwise: str) -> str:
    names = sorted(known)
    if 0 < len(names) <= _NAMES_MAX:
        otherwise = f"use one of {', '.join(names)}"
    return did_you_mean(name, names, otherwise)


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]


def _names(path: Path, error: Exception) -> Mapping[str, Any]:
    """Returns what the file had by name when the error occurred."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [frame for frame in frames if frame.f_code.co_filename == str(path)]
    return {**inside[-1].f_globals, **inside[-1].f_locals} if inside else {}


def _called(name: str, error: Exception) -> Iterator[Callable[..., Any]]:
    """Returns functions of a qualified name, as the code that called one of them could reach it."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    for known in (*frame.f_locals.values(), *frame.f_globals.values()):
        within = known if inspect.ismodule(known) or inspect.isclass(known) else type(known)
        attributes = [getattr(within, each, None) for each in dir(within)]
        for called in (known, *attributes):
            if inspect.isfunction(called) and called.__qualname__ == name:
                yield called
