"""Reads table descriptions from the source's catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg.rows import namedtuple_row

from cdc.column_rule import applied
from cdc.postgres import row_key
from cdc.table import Column, ColumnKind, TableName, TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from psycopg import Connection

    from cdc.column_rule import ColumnRules

# Domains are sent as their base type.
_COLUMNS: Final = f"""
WITH RECURSIVE base (domain, type, typmod) AS (
    SELECT oid, oid, -1 FROM pg_type WHERE typtype <> 'd'
    UNION ALL
    SELECT d.oid, base.type, CASE WHEN d.typtypmod > 0 THEN d.typtypmod ELSE base.typmod END
      FROM pg_type d JOIN base ON d.typbasetype = base.domain
     WHERE d.typtype = 'd'
)
SELECT n.nspname AS schema, c.relname AS table, a.attname AS name,
       -- a user may call a type of his own by the name of a built-in one
       CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace THEN t.typname ELSE '' END AS type,
       CASE WHEN a.atttypmod > 0 THEN a.atttypmod ELSE b.typmod END AS typmod,
       format_type(a.atttypid, a.atttypmod) AS type_name,
       NOT a.attnotnull AS nullable,
       coalesce(array_position(i.key, a.attnum), -1) AS key_place
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                     AND {row_key.CAPTURED}
  JOIN base b ON b.domain = a.atttypid
  JOIN pg_type t ON t.oid = b.type
  LEFT JOIN LATERAL ({row_key.KEY}) i ON true
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
   AND c.relkind IN ('r', 'p')
 ORDER BY n.nspname, c.relname, a.attnum
"""  # noqa: S608  # built from constants only

# A table without a column to send has nothing to capture.
_TABLES: Final = f"""
SELECT n.nspname AS schema, c.relname AS table
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND n.nspname <> 'headwater'
   AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
                  AND NOT a.attisdropped AND {row_key.CAPTURED})
 ORDER BY 1, 2
"""  # noqa: S608  # built from constants only

# By default, Debezium uses all columns of the primary key's index.
_BESIDES_PRIMARY: Final = f"""
SELECT n.nspname, c.relname
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL ({row_key.KEY}) i
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
   AND NOT EXISTS (SELECT FROM pg_index p WHERE p.indrelid = c.oid AND p.indisprimary
                      AND i.is_primary AND p.indnatts = p.indnkeyatts)
"""  # noqa: S608  # built from constants only

# A query returns them like other columns; the log does not contain them.
_NOT_CAPTURED: Final = f"""
SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                     AND NOT {row_key.CAPTURED}
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
 GROUP BY 1, 2
"""  # noqa: S608  # built from constants only

# Captured ones, which a publication omits by default.
_GENERATED: Final = f"""
SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                     AND a.attgenerated <> '' AND {row_key.CAPTURED}
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
 GROUP BY 1, 2
"""  # noqa: S608  # built from constants only

KINDS: Final = {
    "bool": ColumnKind.BOOLEAN,
    "int2": ColumnKind.INTEGER,
    "int4": ColumnKind.INTEGER,
    "int8": ColumnKind.INTEGER,
    "oid": ColumnKind.INTEGER,
    "numeric": ColumnKind.NUMERIC,
    "float4": ColumnKind.FLOAT,
    "float8": ColumnKind.FLOAT,
    "uuid": ColumnKind.UUID,
    "json": ColumnKind.JSON,
    "jsonb": ColumnKind.JSON,
    "date": ColumnKind.DATE,
    "time": ColumnKind.TIME,
    "timestamp": ColumnKind.TIMESTAMP,
    "timestamptz": ColumnKind.TIMESTAMPTZ,
    "bytea": ColumnKind.BYTES,
}
"""Types with values of their own; every other type, and arrays of these, is treated as text."""

_NUMERIC_HEADER: Final = 4  # Postgres adds the header's size to a numeric's modifier


def describe(
    connection: Connection[Any],
    tables: Iterable[TableName],
    rules: Mapping[TableName, ColumnRules] | None = None,
) -> dict[TableName, TableSchema]:
    """Describes tables as in the catalog, with column rules applied.

    Args:
        connection: To the source database.
        tables: The tables; missing ones, and those without a column to send, are omitted.
        rules: Rules for excluded, hashed and masked columns.

    Raises:
        ColumnRuleError: A rule hides a column of a key.
    """
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(_COLUMNS.encode(), _names(tables)).fetchall()
    described: dict[TableName, list[Any]] = {}
    for row in rows:
        described.setdefault(TableName(row.schema, row.table), []).append(row)
    found = {table: _schema(table, columns) for table, columns in described.items()}
    return applied(found, rules or {})


def keys_besides_primary(
    connection: Connection[Any], tables: Iterable[TableName]
) -> dict[TableName, tuple[str, ...]]:
    """Returns the keys of tables for which the connector would choose other columns.

    These are the index of the replica identity; in a table without a primary key, a unique index
    over NOT NULL columns; and a primary key whose index includes further columns.
    """
    described = describe(connection, tables)
    rows = connection.execute(_BESIDES_PRIMARY.encode(), _names(described)).fetchall()
    return {TableName(*row): described[TableName(*row)].key for row in rows}


def generated_columns(
    connection: Connection[Any], tables: Iterable[TableName]
) -> dict[TableName, tuple[str, ...]]:
    """Returns the generated columns that are missing from the log, by table.

    The log never contains virtual ones, and contains stored ones since Postgres 18.
    """
    rows = connection.execute(_NOT_CAPTURED.encode(), _names(tables)).fetchall()
    return {TableName(schema, table): tuple(columns) for schema, table, columns in rows}


def published_generated_columns(
    connection: Connection[Any], tables: Iterable[TableName]
) -> dict[TableName, tuple[str, ...]]:
    """Returns the captured generated columns, by table."""
    rows = connection.execute(_GENERATED.encode(), _names(tables)).fetchall()
    return {TableName(schema, table): tuple(columns) for schema, table, columns in rows}


def list_tables(connection: Connection[Any]) -> list[TableName]:
    """Lists the user's tables with columns; a partitioned table counts as one."""
    rows = connection.execute(_TABLES.encode()).fetchall()
    return [TableName(schema, name) for schema, name in rows]


def _names(tables: Iterable[TableName]) -> tuple[list[str], list[str]]:
    wanted = list(tables)
    return [table.schema for table in wanted], [table.name for table in wanted]


def _schema(table: TableName, rows: Sequence[Any]) -> TableSchema:
    key = sorted((row.key_place, row.name) for row in rows if row.key_place >= 0)
    return TableSchema(table, tuple(_column(row) for row in rows), tuple(name for _, name in key))


def _column(row: Any) -> Column:
    kind = KINDS.get(row.type, ColumnKind.TEXT)
    precision = scale = None
    if kind is ColumnKind.NUMERIC and row.typmod > 0:
        modifier = row.typmod - _NUMERIC_HEADER
        precision = modifier >> 16
        scale = modifier & 0x7FF
        scale -= 0x800 if scale & 0x400 else 0  # eleven bits, signed: numeric(3,-2) exists
    return Column(row.name, kind, row.type_name, precision, scale, row.nullable)
