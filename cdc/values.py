"""Values: from Debezium's JSON forms to exact Python values, and on to one JSON form for stores.

The connector sends what JSON cannot hold exactly as text (`decimal.handling.mode=string`,
`time.precision.mode=isostring`, `binary.handling.mode=base64`), so nothing passes through a float.
A value that Python's own types cannot hold (infinite or pre-historic times) is refused by name,
never altered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from cdc.errors import SchemaMismatchError, ValueDecodeError
from cdc.table import Column, ColumnKind, TableSchema

Json = str | int | float | bool | None

UNCHANGED_PLACEHOLDER: Final = "__headwater_unchanged_5f1d7c2e9a__"
"""What the connector sends (`unavailable.value.placeholder`) for a large value that an update left
as it was: Postgres does not log it again."""


class Unchanged:
    """The value of a column that the log does not repeat; the store keeps the one it has."""

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"  # one object in every process, so that `is` works


UNCHANGED: Final = Unchanged()

_PLACEHOLDER_BYTES: Final = UNCHANGED_PLACEHOLDER.encode()
_PLACEHOLDER_BASE64: Final = base64.b64encode(_PLACEHOLDER_BYTES).decode()
_PLACEHOLDER_UUID: Final = str(
    UUID(bytes=hashlib.md5(_PLACEHOLDER_BYTES, usedforsecurity=False).digest(), version=3)
)
_UNCHANGED_TEXTS: Final = (UNCHANGED_PLACEHOLDER, _PLACEHOLDER_BASE64)
_UNCHANGED_ARRAYS: Final = (
    [UNCHANGED_PLACEHOLDER],
    list(_PLACEHOLDER_BYTES),  # integers: its bytes, one by one
    [_PLACEHOLDER_UUID],  # uuids: the one that Java derives from its bytes
)
UNCHANGED_MARKS: Final = (
    _PLACEHOLDER_BYTES,
    _PLACEHOLDER_BASE64.encode(),
    ",".join(map(str, _PLACEHOLDER_BYTES)).encode(),
    _PLACEHOLDER_UUID.encode(),
)
"""One of these is in the bytes of every record that has an unchanged value."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FLOAT_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# Debezium's words for what Postgres calls NaN and ±Infinity
_NUMERIC_WORDS: Final = {
    "NAN": Decimal("NaN"),
    "POSITIVE_INFINITY": Decimal("Infinity"),
    "NEGATIVE_INFINITY": Decimal("-Infinity"),
}
_ARRAY_QUOTED: Final = re.compile(r'[{}",\\\s]|^$|^null$', re.IGNORECASE)

Decode = Callable[[Any], object]


def decoder(schema: TableSchema) -> Callable[[Mapping[str, Any]], dict[str, object]]:
    """Prepares the decoding of a table's rows.

    Returns:
        A function from Debezium's row to exact Python values by column name. It raises
        `SchemaMismatchError` where the row's columns are not the table's, `ValueDecodeError`
        where a value does not fit; neither tells the value.
    """
    decoders = {column.name: _DECODERS[column.kind] for column in schema.columns}
    names = decoders.keys()

    def decode_row(row: Mapping[str, Any]) -> dict[str, object]:
        if row.keys() != names:
            raise _mismatch(schema, row)
        decoded: dict[str, object] = {}
        for name, raw in row.items():
            try:
                decoded[name] = None if raw is None else decoders[name](raw)
            except (ValueError, TypeError, OverflowError, InvalidOperation):
                raise _misfit(schema, schema.by_name[name]) from None
        return decoded

    return decode_row


def decode(column: Column, raw: object) -> object:
    """Returns the exact Python value of one of Debezium's JSON forms.

    Raises:
        ValueDecodeError: It does not fit the column's type or Python's range.
    """
    if raw is None:
        return None
    try:
        return _DECODERS[column.kind](raw)
    except (ValueError, TypeError, OverflowError, InvalidOperation):
        raise ValueDecodeError(
            f"a value does not fit column {column.name}", detail=column.type_name
        ) from None


def encoder(schema: TableSchema) -> Callable[[Mapping[str, object]], dict[str, Json]]:
    """Prepares the canonical JSON form of a table's rows; see `document`."""
    encoders = [(column.name, _ENCODERS.get(column.kind)) for column in schema.columns]

    def encode_row(row: Mapping[str, object]) -> dict[str, Json]:
        encoded: dict[str, Any] = {}
        for name, encode in encoders:
            value = row[name]
            encoded[name] = value if value is None or encode is None else encode(value)
        return encoded

    return encode_row


def document(schema: TableSchema, row: Mapping[str, object]) -> dict[str, Json]:
    """Returns the one JSON form of a row that caches, search and comparisons share.

    Integers and booleans are themselves; numerics are their decimal text with the scale kept;
    floats are numbers, except NaN and the infinities, which are words; times are ISO 8601 with six
    digits of a second, UTC marked by `Z`; bytes are base64; all else is text.
    """
    return encoder(schema)(row)


def _mismatch(schema: TableSchema, row: Mapping[str, Any]) -> SchemaMismatchError:
    added = sorted(row.keys() - schema.by_name.keys())
    gone = sorted(schema.by_name.keys() - row.keys())
    seen = [f"new: {', '.join(added)}"] * bool(added) + [f"gone: {', '.join(gone)}"] * bool(gone)
    return SchemaMismatchError(
        f"table {schema.table} has other columns than when its views were planned",
        detail="; ".join(seen),
        hint="headwater down, then headwater up plans the views anew",
    )


def _misfit(schema: TableSchema, column: Column) -> ValueDecodeError:
    return ValueDecodeError(
        f"a value does not fit column {schema.table}.{column.name}",
        detail=f"type {column.type_name}",
        hint="stores cannot hold infinite times, years before 1 or after 9999",
    )


def _boolean(raw: Any) -> bool:
    if raw is not True and raw is not False:
        raise TypeError
    return bool(raw)


def _integer(raw: Any) -> int:
    if type(raw) is not int:
        raise TypeError
    return raw


def _numeric(raw: Any) -> object:
    if type(raw) is not str:
        raise TypeError
    if raw == UNCHANGED_PLACEHOLDER:
        return UNCHANGED
    return _NUMERIC_WORDS[raw] if raw in _NUMERIC_WORDS else Decimal(raw)


def _float(raw: Any) -> float:
    if type(raw) is str:
        return _FLOAT_WORDS[raw] if raw in _FLOAT_WORDS else float(raw)
    if type(raw) is bool:
        raise TypeError
    return float(raw)


def _text(raw: Any) -> object:
    if type(raw) is str:
        return UNCHANGED if raw in _UNCHANGED_TEXTS else raw
    if isinstance(raw, list):
        return UNCHANGED if raw in _UNCHANGED_ARRAYS else _array(raw)
    return _scalar(raw)


def _scalar(raw: Any) -> str:
    if type(raw) is bool:
        return "t" if raw else "f"
    if type(raw) is not int and type(raw) is not str:
        raise TypeError
    return str(raw)


def _array(items: list[Any]) -> str:
    """Postgres' own text form of an array of texts, integers or booleans."""
    return "{" + ",".join(_array_item(item) for item in items) + "}"


def _array_item(item: Any) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list):
        return _array(item)
    text = _scalar(item)
    if type(item) is str and _ARRAY_QUOTED.search(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _bytes(raw: Any) -> object:
    if raw == _PLACEHOLDER_BASE64:
        return UNCHANGED
    try:
        return base64.b64decode(raw, validate=True)
    except binascii.Error as error:
        raise ValueError from error


def _date(raw: Any) -> date:
    if type(raw) is int:
        return (_EPOCH + timedelta(days=raw)).date()
    return date.fromisoformat(raw.removesuffix("Z"))


def _time(raw: Any) -> time:
    return time.fromisoformat(raw.removesuffix("Z"))


def _timestamp(raw: Any) -> datetime:
    return datetime.fromisoformat(raw.removesuffix("Z"))


def _timestamptz(raw: Any) -> datetime:
    parsed = datetime.fromisoformat(raw)
    if parsed.tzinfo is None:
        raise ValueError
    return parsed if parsed.tzinfo is UTC else parsed.astimezone(UTC)


def _numeric_text(value: Any) -> str:
    return format(value, "f") if value.is_finite() else str(value)


def _float_word(value: Any) -> Json:
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _datetime_text(value: Any) -> str:
    return str(value.isoformat(timespec="microseconds"))


def _utc_text(value: Any) -> str:
    text = value.astimezone(UTC).isoformat(timespec="microseconds")
    return str(text.removesuffix("+00:00")) + "Z"


_DECODERS: Final[Mapping[ColumnKind, Decode]] = {
    ColumnKind.BOOLEAN: _boolean,
    ColumnKind.INTEGER: _integer,
    ColumnKind.NUMERIC: _numeric,
    ColumnKind.FLOAT: _float,
    ColumnKind.TEXT: _text,
    ColumnKind.UUID: _text,
    ColumnKind.JSON: _text,
    ColumnKind.DATE: _date,
    ColumnKind.TIME: _time,
    ColumnKind.TIMESTAMP: _timestamp,
    ColumnKind.TIMESTAMPTZ: _timestamptz,
    ColumnKind.BYTES: _bytes,
}

_ENCODERS: Final[Mapping[ColumnKind, Callable[[Any], Json]]] = {
    ColumnKind.NUMERIC: _numeric_text,
    ColumnKind.FLOAT: _float_word,
    ColumnKind.DATE: lambda value: str(value.isoformat()),
    ColumnKind.TIME: _datetime_text,
    ColumnKind.TIMESTAMP: _datetime_text,
    ColumnKind.TIMESTAMPTZ: _utc_text,
    ColumnKind.BYTES: lambda value: base64.b64encode(value).decode("ascii"),
}
