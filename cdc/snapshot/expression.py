"""SQL that writes a row as the JSON text which the connector would have sent for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
from psycopg import sql

from cdc.table import ColumnKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdc.table import Column, TableSchema

SESSION: Final = (
    "SET timezone = 'UTC'; SET datestyle = 'ISO'; SET intervalstyle = 'iso_8601'; "
    "SET extra_float_digits = 1; SET bytea_output = 'hex'"
)
"""What a session must be set to, so that values print as they do in the stream."""

_AS_JSON: Final = {ColumnKind.BOOLEAN, ColumnKind.INTEGER, ColumnKind.FLOAT}


def row_json(schema: TableSchema) -> sql.Composable:
    """Returns an expression for a JSON object of all columns, as text."""
    return _object(schema.columns)


def key_json(schema: TableSchema) -> sql.Composable:
    """Returns an expression for a JSON object of the key's columns, as text."""
    return _object([schema.by_name[name] for name in schema.key])


def _object(columns: Iterable[Column]) -> sql.Composable:
    parts: list[sql.Composable] = []
    for column in columns:
        before = "," if parts else "{"
        name = orjson.dumps(column.name).decode()
        parts += [sql.Literal(f"{before}{name}:"), _value(column)]
    return sql.SQL(" || ").join([*parts, sql.SQL("'}'")])


def _value(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    if column.kind in _AS_JSON:
        text = sql.SQL("to_json({})::text")
    elif column.kind is ColumnKind.BYTES:
        # the text form breaks its lines
        text = sql.SQL("""'"' || translate(encode({}, 'base64'), E'\\n', '') || '"'""")
    else:
        # a cast to text would cut the padding of a character(n), which belongs to its value
        text = sql.SQL("to_json(format('%s', {}))::text")
    return sql.SQL("coalesce(CASE WHEN {} IS NOT NULL THEN {} END, 'null')").format(
        name, text.format(name)
    )
