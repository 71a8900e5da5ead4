"""Digest of the code that makes rows of events: that of the modules that declare them.

Plans travel between processes with the names of classes and upcasters, and each process imports
these modules for itself. One that has run for long has those from before an edit.
"""

from __future__ import annotations

import hashlib
import sys
from datetime import date, time, timedelta
from decimal import Decimal
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLAIN: Final = (str, bytes, int, float, Decimal, date, time, timedelta, type(None))


def digest_of(declared: Iterable[Any]) -> str:
    """Returns a digest of the classes and functions of modules, as this process has imported them.

    It excludes names that these modules import from others.

    Args:
        declared: Classes and functions of the modules.
    """
    content = []
    for name in sorted({each.__module__ for each in declared}):
        inside = vars(sys.modules[name]) if name in sys.modules else {}
        content.append((name, _members(name, inside)))
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _members(module: str, inside: Any) -> list[tuple[str, Any]]:
    own = [
        (name, value)
        for name, value in inside.items()
        if isinstance(value, FunctionType | type) and value.__module__ == module
    ]
    return [(name, _described(value)) for name, value in sorted(own, key=lambda each: each[0])]


def _described(value: Any) -> Any:
    if isinstance(value, classmethod | staticmethod):
        return _described(value.__func__)
    if isinstance(value, property):
        return [_described(each) for each in (value.fget, value.fset)]
    if isinstance(value, FunctionType):
        return _code(value.__code__), [_described(each) for each in value.__defaults__ or ()]
    if isinstance(value, type):
        parts = [(name, each) for name, each in vars(value).items() if _counts(name, each)]
        return [(name, _part(name, each)) for name, each in sorted(parts, key=lambda p: p[0])]
    return repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__


def _counts(name: str, value: Any) -> bool:
    """Returns whether a class declares it; libraries add caches to a class at first use."""
    special = name.startswith("__") and name != "__annotations__"
    return not special or isinstance(value, FunctionType | classmethod | staticmethod)


def _part(name: str, value: Any) -> Any:
    if name == "__annotations__":
        return [(field, repr(hint)) for field, hint in value.items()]
    return value.__qualname__ if isinstance(value, type) else _described(value)


def _code(code: CodeType) -> Any:
    consts = [
        _code(each) if isinstance(each, CodeType) else _const(each) for each in code.co_consts
    ]
    return code.co_code.hex(), code.co_names, consts


def _const(value: Any) -> str:
    """A constant in a form that does not depend on the hashes of texts."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
