"""Decides which changes of a column type lose no value, by Postgres' names of types."""

from __future__ import annotations

import re
from typing import Final

_TYPE: Final = re.compile(r"^(?P<head>[a-z ]+?)(?:\((?P<sizes>[\d, -]+)\))?(?P<tail>[a-z ]*)$")
_INTEGER_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_VARYING: Final = "character varying"
_SIZED: Final = frozenset(
    [
        _VARYING,
        "bit varying",
        "timestamp without time zone",
        "timestamp with time zone",
        "time without time zone",
        "time with time zone",
        "interval",
    ]
)
_WIDER: Final = frozenset(
    [
        ("smallint", "integer"),
        ("smallint", "bigint"),
        ("integer", "bigint"),
        ("real", "double precision"),
        (_VARYING, "text"),
    ]
)


def widens(old: str, new: str) -> bool:
    """Returns whether every value of a type has an exact representation in another.

    Unknown types count as incompatible.

    Args:
        old: Name of the old type with its modifiers, such as `numeric(12,2)`.
        new: Name of the new type.
    """
    (old_name, old_sizes), (new_name, new_sizes) = _parsed(old), _parsed(new)
    if old == new or (old_name, new_name) in _WIDER:
        return True
    if new_name == "numeric" and (old_name == "numeric" or old_name in _INTEGER_DIGITS):
        return not new_sizes or _holds(new_sizes, _digits(old_name, old_sizes))
    if (old_name, new_name) == ("text", _VARYING):
        return not new_sizes
    if old_name == new_name and old_name in _SIZED:
        return not new_sizes or bool(old_sizes and old_sizes[0] <= new_sizes[0])
    return False


def _digits(name: str, sizes: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns the digits before and after the decimal point; None if they are unlimited."""
    if name in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[name], 0
    return (sizes[0] - sizes[1], sizes[1]) if sizes else None


def _holds(sizes: tuple[int, ...], digits: tuple[int, int] | None) -> bool:
    if digits is None:
        return False
    whole, scale = digits
    return sizes[0] - sizes[1] >= whole and sizes[1] >= scale


def _parsed(type_name: str) -> tuple[str, tuple[int, ...]]:
    found = _TYPE.match(type_name)
    if found is None:
        return type_name, ()
    sizes = tuple(int(part) for part in found["sizes"].split(",")) if found["sizes"] else ()
    return found["head"].strip() + found["tail"], sizes
