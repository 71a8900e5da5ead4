"""Exactness: checks that each value of an event reads back equal.

JSON has no dates, decimals or bytes; the class of a typed event tells the type of each JSON string.
A value that would read back differently is refused before it is stored.

Equal means the same type and the same value at every level: `Decimal("1.10")` is not
`Decimal("1.1")`, `5` is not `5.0`, a list is not a tuple. A datetime keeps its instant and UTC
offset, not the name of its time zone. The order of a dict's keys does not matter.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

DEPTH_MAX: Final = 64
"""Maximum nesting of values. A reader with a deep call stack must still be able to read them."""

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1


class Inexactness(NamedTuple):
    """Why a value cannot be stored exactly.

    Attributes:
        path: Path of the part, such as `.lines[0].price`, without keys of dicts, which are data.
        rule: The violated rule.
    """

    path: str
    rule: str


type_of_comparison = Callable[[Any, Any, int], Inexactness | None]

_OTHER_TYPE: Final = "is read back as another type"
_OTHER_VALUE: Final = "is read back as another value"


def fault_of(given: object, read: object, depth: int = 0) -> Inexactness | None:
    """Returns why `given`, which reads back as `read`, is not exact; None if it is.

    If both are the same object, only the rules for a single value are checked.
    """
    kind = given.__class__
    compare = _comparisons.get(kind)
    if compare is None:
        compare = _learn(kind)
    return compare(given, read, depth)


def _text(given: str, read: object, _: int) -> Inexactness | None:
    if read.__class__ is not str:
        return _read_as(given, read)
    if given != read:
        return Inexactness("", _OTHER_VALUE)
    if "\0" in given:
        return Inexactness("", "has a NUL character, which Postgres does not keep")
    if not given.isascii():
        try:
            given.encode()
        except UnicodeEncodeError:
            return Inexactness("", "has a lone surrogate, which is no character")
    return None


def _integer(given: int, read: object, _: int) -> Inexactness | None:
    if not INTEGER_MIN <= given <= INTEGER_MAX:
        return Inexactness("", "is an integer beyond 64 bits")
    return _plain(given, read, 0)


def _plain(given: object, read: object, _: int) -> Inexactness | None:
    if read.__class__ is not given.__class__:
        return _read_as(given, read)
    return None if given == read else Inexactness("", _OTHER_VALUE)


def _same(given: object, read: object, _: int) -> Inexactness | None:
    return None if given is read else _read_as(given, read)


def _number(given: float, read: object, _: int) -> Inexactness | None:
    if not math.isfinite(given):
        return Inexactness("", "is NaN or infinite, which JSON does not have")
    return _plain(given, read, 0)


def _decimal(given: Decimal, read: object, _: int) -> Inexactness | None:
    if not given.is_finite():
        return Inexactness("", "is NaN or infinite, which is no amount")
    if read.__class__ is not Decimal:
        return _read_as(given, read)
    # 1.10 equals 1.1, but has more digits
    return Inexactness("", _OTHER_VALUE) if given.compare_total(read) else None


def _instant(given: datetime, read: object, _: int) -> Inexactness | None:
    if given.tzinfo is UTC and read.__class__ is datetime and read.tzinfo is UTC:
        return None if given == read else Inexactness("", _OTHER_VALUE)
    offset = given.utcoffset()
    if offset is None:
        return Inexactness("", "is a time without a UTC offset")
    if read.__class__ is not datetime:
        return _read_as(given, read)
    # times of two zones in a repeated hour never compare equal, so the parts are compared
    same = offset == read.utcoffset() and given.replace(tzinfo=None) == read.replace(tzinfo=None)
    return None if same else Inexactness("", _OTHER_VALUE)


def _clock(given: time, read: object, _: int) -> Inexactness | None:
    if read.__class__ is not time:
        return _read_as(given, read)
    # 01:00+01:00 equals 00:00+00:00; a zone without an offset would be lost
    same = given.isoformat() == read.isoformat() and (given.tzinfo is None) == (read.tzinfo is None)
    return None if same else Inexactness("", _OTHER_VALUE)


def _items(given: list[Any] | tuple[Any, ...], read: Any, depth: int) -> Inexactness | None:
    if read.__class__ is not given.__class__:
        return _read_as(given, read)
    if len(given) != len(read):
        return Inexactness("", _OTHER_VALUE)
    if depth >= DEPTH_MAX:
        return _too_deep()
    depth += 1
    for index, item in enumerate(given):
        fault = fault_of(item, read[index], depth)
        if fault is not None:
            return Inexactness(f"[{index}]{fault.path}", fault.rule)
    return None


def _set(given: frozenset[Any] | set[Any], read: Any, depth: int) -> Inexactness | None:
    if read.__class__ is not given.__class__:
        return _read_as(given, read)
    if depth >= DEPTH_MAX:
        return _too_deep()
    for item in given:
        fault = fault_of(item, item, depth + 1)
        if fault is not None:
            return Inexactness(f"[...]{fault.path}", fault.rule)
    same = {exact_key(item) for item in given} == {exact_key(item) for item in read}
    return None if same else Inexactness("[...]", _OTHER_VALUE)


def _mapping(given: dict[Any, Any], read: Any, depth: int) -> Inexactness | None:
    if read.__class__ is not dict:
        return _read_as(given, read)
    if depth >= DEPTH_MAX:
        return _too_deep()
    for key in given:
        fault = fault_of(key, key, depth + 1)
        if fault is not None:
            return Inexactness("[...]", f"has a key that {fault.rule}")
    if any(key.__class__ is not str for key in given):
        # 1, 1.0 and True are the same key of a dict, but different values here
        given = {exact_key(key): value for key, value in given.items()}
        read = {exact_key(key): value for key, value in read.items()}
    return _values(given, read, depth + 1)


def _values(given: dict[Any, Any], read: dict[Any, Any], depth: int) -> Inexactness | None:
    if given.keys() != read.keys():
        return Inexactness("", "has a key that is read back as another one")
    for key, value in given.items():
        fault = fault_of(value, read[key], depth)
        if fault is not None:
            return Inexactness(f"[...]{fault.path}", fault.rule)
    return None


def _fields(names: tuple[str, ...]) -> type_of_comparison:
    def compare(given: object, read: object, depth: int) -> Inexactness | None:
        if read.__class__ is not given.__class__:
            return _read_as(given, read)
        if depth >= DEPTH_MAX:
            return _too_deep()
        depth += 1
        for name in names:
            value = getattr(given, name)
            kind = value.__class__
            fault = (_comparisons.get(kind) or _learn(kind))(value, getattr(read, name), depth)
            if fault is not None:
                return Inexactness(f".{name}{fault.path}", fault.rule)
        return None

    return compare


def _refused(given: object, _read: object, _depth: int) -> Inexactness:
    kind = given.__class__
    base = next((base for base in kind.__mro__[1:] if base in _comparisons), None)
    if base is None:
        return Inexactness("", f"is of type {kind.__qualname__}, which cannot be stored")
    return Inexactness("", f"is of type {kind.__qualname__}, a subclass of {base.__qualname__}")


def exact_key(value: Any) -> tuple[Any, ...]:
    """Returns an identity of a hashable value, distinct even from values that compare equal."""
    kind = value.__class__
    names = _field_names(kind)
    if names is not None:
        return kind, tuple(exact_key(getattr(value, name)) for name in names)
    if isinstance(value, tuple):
        return kind, tuple(map(exact_key, value))
    return kind, _tell_apart[kind](value) if kind in _tell_apart else value


def _read_as(given: object, read: object) -> Inexactness:
    kinds = given.__class__.__qualname__, read.__class__.__qualname__
    return Inexactness("", f"{_OTHER_TYPE}: {kinds[0]} as {kinds[1]}")


def _too_deep() -> Inexactness:
    return Inexactness("", f"is nested deeper than {DEPTH_MAX} levels, or contains itself")


def _field_names(kind: type) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return None


def _learn(kind: type) -> type_of_comparison:
    names = _field_names(kind)
    compare: type_of_comparison
    if names is not None:
        compare = _fields(names)
    elif issubclass(kind, enum.Enum):
        compare = _same
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        compare = _items
    else:
        return _refused  # not cached: there may be many, and the usual path uses none
    _comparisons[kind] = compare
    return compare


_tell_apart: Final[dict[type, Callable[[Any], Any]]] = {
    Decimal: Decimal.as_tuple,
    float: float.hex,
    datetime: datetime.isoformat,
    time: time.isoformat,
    frozenset: lambda members: frozenset(map(exact_key, members)),
}

_comparisons: dict[type, type_of_comparison] = {
    str: _text,
    int: _integer,
    bool: _same,
    type(None): _same,
    float: _number,
    Decimal: _decimal,
    datetime: _instant,
    date: _plain,
    time: _clock,
    timedelta: _plain,
    UUID: _plain,
    bytes: _plain,
    list: _items,
    tuple: _items,
    set: _set,
    frozenset: _set,
    dict: _mapping,
}
