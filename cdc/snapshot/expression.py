"""SQL expressions that encode a row and its key as the JSON that the connector sends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson
from psycopg import sql

from cdc.postgres import treatment
from cdc.table import ColumnKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cdc.table import Column, TableSchema

SETTINGS: Final = {
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
}
"""Settings with which a session prints values as the connector does."""

SESSION: Final = "; ".join(f"SET {name} = '{value}'" for name, value in SETTINGS.items())
"""SQL that applies the settings."""

_AS_JSON: Final = {ColumnKind.BOOLEAN, ColumnKind.INTEGER}
# For these kinds, a cast to text gives the output of the type, which needs no escaping.
_PLAIN: Final = {
    ColumnKind.NUMERIC,
    ColumnKind.FLOAT,
    ColumnKind.UUID,
    ColumnKind.DATE,
    ColumnKind.TIME,
    ColumnKind.TIMESTAMP,
    ColumnKind.TIMESTAMPTZ,
}
_TEXT_TYPE: Final = re.compile(r"text|character varying(\(\d+\))?|jsonb?")
_ARGUMENTS_MAX: Final = 90  # Postgres functions take at most 100 arguments

# Characters that Java's JSON library escapes differently from Postgres.
_ESCAPED_OTHERWISE: Final = re.compile(r"\\\\|\\u00[01][0-9a-f]|[\U00010000-\U0010ffff]")


def row_json(schema: TableSchema) -> sql.Composable:
    """Returns an expression for a JSON object of all columns, as text."""
    return _object(schema.columns)


def key_json(schema: TableSchema) -> sql.Composable:
    """Returns an expression for a JSON object of the key's columns, as text; see `key_bytes`."""
    return _object([schema.by_name[name] for name in schema.key])


def key_bytes(key: bytes) -> bytes:
    """Converts a key as encoded by Postgres to the connector's bytes.

    Equal keys must have equal bytes: the bytes determine the partition and identify the key.
    """
    if key.isascii() and b"\\u00" not in key:
        return key
    return _ESCAPED_OTHERWISE.sub(_escape, key.decode()).encode()


def _escape(found: re.Match[str]) -> str:
    if found[0] == "\\\\":
        return found[0]  # an escaped backslash, not the start of an escape
    if found[0][0] == "\\":
        return "\\u" + found[0][2:].upper()
    units = found[0].encode("utf-16-be").hex().upper()
    return f"\\u{units[:4]}\\u{units[4:]}"


def _object(columns: Iterable[Column]) -> sql.Composable:
    parts: list[sql.Composable] = []
    for column in columns:
        before = "," if parts else "{"
        name = key_bytes(orjson.dumps(column.name)).decode()
        parts += [sql.Literal(f"{before}{name}:"), _value(column)]
    return _concat([*parts, sql.SQL("'}'")])


def _concat(parts: Sequence[sql.Composable]) -> sql.Composable:
    if len(parts) > _ARGUMENTS_MAX:
        groups = [parts[at : at + _ARGUMENTS_MAX] for at in range(0, len(parts), _ARGUMENTS_MAX)]
        return _concat([_concat(group) for group in groups])
    return sql.SQL("concat({})").format(sql.SQL(", ").join(parts))


def _value(column: Column) -> sql.Composable:
    if column.kind in _AS_JSON:
        form = sql.SQL("{}::text").format(sql.Identifier(column.name))
    elif column.kind in _PLAIN or column.kind is ColumnKind.BYTES:
        form = sql.SQL("""'"' || {} || '"'""").format(as_text(column))
    else:
        form = sql.SQL("to_json({})::text").format(as_text(column))
    return sql.SQL("coalesce({}, 'null')").format(form)


def as_text(column: Column) -> sql.Composable:
    """Returns an expression for a column's values as the texts that are sent; NULL stays NULL."""
    if column.treatment is not None:
        return treatment.expression(column.name, column.treatment)
    if column.kind in _PLAIN or _TEXT_TYPE.fullmatch(column.type_name):
        form = "{0}::text"
    elif column.kind is ColumnKind.BYTES:
        # Postgres inserts line breaks into base64
        form = "translate(encode({0}, 'base64'), E'\\n', '')"
    else:
        # A cast may differ from the output of the type: it removes the padding of character(n).
        # `IS NULL` is true for a row of NULLs, too, which is a value: num_nulls is exact.
        form = "CASE WHEN num_nulls({0}) = 0 THEN format('%s', {0}) END"
    return sql.SQL(form).format(sql.Identifier(column.name))
