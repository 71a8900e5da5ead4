"""Values: decoded from records to exact Python values, and encoded as one canonical JSON form.

In a record, booleans and integers are JSON booleans and numbers, bytes are base64, and everything
else is the text that Postgres prints for it (UTC, ISO dates, shortest exact floats). The
connector's converter and our snapshots write the same form, so equal values have equal bytes.
A value that Python's types cannot hold (an infinite time, or one before year 1) is refused with an
error that names its column; it is never altered.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from cdc.errors import SchemaMismatchError, ValueDecodeError
from cdc.table import Column, ColumnKind, TableSchema
from foundation.json_numbers import float_json

Json = str | int | float | bool | None

UNCHANGED_PLACEHOLDER: Final = "\0unchanged"
"""What the converter sends for a large value that an update did not change, because Postgres does
not log it again. It begins with U+0000, which no Postgres text contains, so it equals no value."""


class Unchanged:
    """A value that an update did not change and the log does not repeat; stores keep theirs."""

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"  # one object in every process, so that `is` works


UNCHANGED: Final = Unchanged()
UNCHANGED_MARKS: Final = (b"\\u0000unchanged",)
"""The bytes of every record with an unchanged value contain one of these."""

Decode = Callable[[Any], object]
DecodeMany = Callable[[Sequence[Any]], Sequence[object]]


def decoder(schema: TableSchema) -> Callable[[Mapping[str, Any]], dict[str, object]]:
    """Prepares the decoding of a table's rows.

    Returns:
        A function from a record's row to exact Python values by column name. It raises
        `SchemaMismatchError` if the row's columns are not the table's, and `ValueDecodeError` if
        a value does not fit its column; neither error contains the value.
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
            except _MISFITS:
                raise _misfit(schema, schema.by_name[name]) from None
        return decoded

    return decode_row


def rows_decoder(
    schema: TableSchema,
) -> Callable[[Sequence[Mapping[str, Any]]], list[dict[str, object]]]:
    """Prepares the decoding of many rows of a table, several times as fast as row by row.

    Returns:
        A function from rows to the values that `decoder` returns for each; it raises the same
        errors.
    """
    decode_row = decoder(schema)
    decoders = [(column.name, _column_decoder(column.kind)) for column in schema.columns]
    width = {len(decoders)}

    def decode_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
        if set(map(len, rows)) != width:
            return [decode_row(row) for row in rows]  # raises the error of the bad row
        decoded: list[dict[str, object]] = [dict(row) for row in rows]
        try:
            # each row has as many columns as the table, so it has no others if it has each of them
            for name, decode_column in decoders:
                raw = [row[name] for row in rows]
                values = decode_column(raw)
                if values is not raw:
                    for row, value in zip(decoded, values, strict=True):
                        row[name] = value
        except (*_MISFITS, KeyError):
            return [decode_row(row) for row in rows]
        return decoded

    return decode_rows


def decode(column: Column, raw: object) -> object:
    """Decodes one value of a record; returns the exact Python value.

    Raises:
        ValueDecodeError: It does not fit the column's type or Python's range.
    """
    if raw is None:
        return None
    try:
        return _DECODERS[column.kind](raw)
    except _MISFITS:
        raise ValueDecodeError(
            f"a value does not fit column {column.name}", detail=column.type_name
        ) from None


def of_another_type(kind: ColumnKind, raw: object) -> bool:
    """Returns whether a value that does not decode was written while its column had another type.

    A time that Postgres can hold and Python cannot (infinite, before year 1, after 9999, 24:00)
    has the column's present type.

    Args:
        kind: The column's present kind.
        raw: The value as the record has it.
    """
    if kind not in _TIMES or not isinstance(raw, str):
        return True
    if _PRINTED_TIME.fullmatch(raw) is None:
        return True
    return any(_decodes(other, raw) for other in _TIMES - {kind})


def _decodes(kind: ColumnKind, raw: str) -> bool:
    try:
        _DECODERS[kind](raw)
    except _MISFITS:
        return False
    return True


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


def word_of(kind: ColumnKind) -> Callable[[Any], Json]:
    """Returns the function that encodes an exact value as canonical JSON; see `document`."""
    return _ENCODERS.get(kind, _itself)


def document(schema: TableSchema, row: Mapping[str, object]) -> dict[str, Json]:
    """Returns the canonical JSON form of a row, which caches, search and comparisons share.

    Integers and booleans stay as they are. Numerics are decimal text with their scale. Floats are
    numbers, except NaN and the infinities, which are text. Times are ISO 8601 with six fractional
    digits, UTC marked by `Z`. Bytes are base64. Everything else is text.
    """
    return encoder(schema)(row)


def _mismatch(schema: TableSchema, row: Mapping[str, Any]) -> SchemaMismatchError:
    added = sorted(row.keys() - schema.by_name.keys())
    gone = sorted(schema.by_name.keys() - row.keys())
    seen = [f"new: {', '.join(added)}"] * bool(added) + [f"gone: {', '.join(gone)}"] * bool(gone)
    return SchemaMismatchError(
        f"the columns of table {schema.table} changed since its views were planned",
        detail="; ".join(seen),
        hint="run headwater down, then headwater up, to plan the views again",
    )


def _misfit(schema: TableSchema, column: Column) -> ValueDecodeError:
    return ValueDecodeError(
        f"a value does not fit column {schema.table}.{column.name}",
        detail=f"type {column.type_name}",
        hint="stores cannot hold infinite times, years before 1 or after 9999, nor 24:00",
    )


def _column_decoder(kind: ColumnKind) -> DecodeMany:
    one = _DECODERS[kind]

    def each(column: Sequence[Any]) -> Sequence[object]:
        return [None if raw is None else one(raw) for raw in column]

    many = _COLUMN_DECODERS.get(kind, each)

    def usual(column: Sequence[Any]) -> Sequence[object]:
        try:
            return many(column)
        except _MISFITS:
            return each(column)

    return usual


def _only(column: Sequence[Any], kind: type) -> Sequence[Any]:
    if not set(map(type, column)) <= {kind, _NONE}:
        raise TypeError
    return column


def _texts(column: Sequence[Any]) -> Sequence[object]:
    if UNCHANGED_PLACEHOLDER in _only(column, str):
        raise ValueError
    return column


def _numerics(column: Sequence[Any]) -> Sequence[object]:
    return [None if raw is None else Decimal(raw) for raw in _only(column, str)]


def _floats(column: Sequence[Any]) -> Sequence[object]:
    return [None if raw is None else float(raw) for raw in _only(column, str)]


def _timestamptzs(column: Sequence[Any]) -> Sequence[object]:
    parse = datetime.fromisoformat
    return [
        raw
        if raw is None
        else parsed
        if (parsed := parse(raw)).tzinfo is UTC
        else _timestamptz(raw)
        for raw in column
    ]


def _boolean(raw: Any) -> bool:
    if raw is not True and raw is not False:
        raise TypeError
    return bool(raw)


def _integer(raw: Any) -> int:
    if type(raw) is not int:
        raise TypeError
    return raw


def _numeric(raw: Any) -> object:
    return UNCHANGED if raw == UNCHANGED_PLACEHOLDER else Decimal(_string(raw))


def _float(raw: Any) -> float:
    return float(_string(raw))


def _text(raw: Any) -> object:
    if type(raw) is not str:
        raise TypeError
    return UNCHANGED if raw == UNCHANGED_PLACEHOLDER else raw


def _bytes(raw: Any) -> object:
    if raw == UNCHANGED_PLACEHOLDER:
        return UNCHANGED
    try:
        return base64.b64decode(_string(raw), validate=True)
    except binascii.Error as error:
        raise ValueError from error


def _date(raw: Any) -> date:
    return date.fromisoformat(raw)


def _time(raw: Any) -> time:
    if _string(raw).startswith("24"):
        raise ValueError  # newer Pythons read it as the day's beginning
    return time.fromisoformat(raw)


def _timestamp(raw: Any) -> datetime:
    parsed = datetime.fromisoformat(raw)
    if parsed.tzinfo is not None:
        raise ValueError
    return parsed


def _timestamptz(raw: Any) -> datetime:
    parsed = datetime.fromisoformat(raw)
    if parsed.tzinfo is None:
        raise ValueError
    return parsed if parsed.tzinfo is UTC else parsed.astimezone(UTC)


def _itself(value: Any) -> Any:
    return value


def _string(raw: Any) -> str:
    if type(raw) is not str:
        raise TypeError
    return raw


def _numeric_text(value: Any) -> str:
    return format(value, "f") if value.is_finite() else str(value)


def _datetime_text(value: Any) -> str:
    return str(value.isoformat(timespec="microseconds"))


def _utc_text(value: Any) -> str:
    moment = value if value.tzinfo is UTC else value.astimezone(UTC)
    return str(moment.isoformat(timespec="microseconds")[:-6]) + "Z"  # what it has for +00:00


_MISFITS: Final = (ValueError, TypeError, OverflowError, InvalidOperation)
_NONE: Final = type(None)

_TIMES: Final = frozenset(
    (ColumnKind.DATE, ColumnKind.TIME, ColumnKind.TIMESTAMP, ColumnKind.TIMESTAMPTZ)
)
_PRINTED_TIME: Final = re.compile(r"-?infinity|\d{4,}-\d\d-\d\d.*|\d\d:\d\d.*", re.DOTALL)
"""The form in which Postgres prints a time with `datestyle` ISO, in any range."""

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

_COLUMN_DECODERS: Final[Mapping[ColumnKind, DecodeMany]] = {
    ColumnKind.BOOLEAN: lambda column: _only(column, bool),
    ColumnKind.INTEGER: lambda column: _only(column, int),
    ColumnKind.NUMERIC: _numerics,
    ColumnKind.FLOAT: _floats,
    ColumnKind.TEXT: _texts,
    ColumnKind.UUID: _texts,
    ColumnKind.JSON: _texts,
    ColumnKind.TIMESTAMPTZ: _timestamptzs,
}
"""Decoders of a whole column, for values that are nearly always of one form. They raise an error
for any other form; the values are then decoded one by one."""

_ENCODERS: Final[Mapping[ColumnKind, Callable[[Any], Json]]] = {
    ColumnKind.NUMERIC: _numeric_text,
    ColumnKind.FLOAT: float_json,
    ColumnKind.DATE: lambda value: str(value.isoformat()),
    ColumnKind.TIME: _datetime_text,
    ColumnKind.TIMESTAMP: _datetime_text,
    ColumnKind.TIMESTAMPTZ: _utc_text,
    ColumnKind.BYTES: lambda value: base64.b64encode(value).decode("ascii"),
}
