"""What the source's catalog says of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg.rows import namedtuple_row

from cdc.column_rule import applied
from cdc.table import Column, ColumnKind, TableName, TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from psycopg import Connection

    from cdc.column_rule import ColumnRules

# Domains travel as the type they are made of. Generated columns are not in the log.
_COLUMNS: Final = """
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
       coalesce(array_position(i.indkey::int2[], a.attnum), -1) AS key_place
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                     AND a.attgenerated = ''
  JOIN base b ON b.domain = a.atttypid
  JOIN pg_type t ON t.oid = b.type
  LEFT JOIN LATERAL (
       SELECT indkey FROM pg_index x
        WHERE x.indrelid = c.oid AND x.indisvalid AND x.indisunique AND x.indimmediate
          AND x.indpred IS NULL AND x.indexprs IS NULL
          AND CASE c.relreplident
              WHEN 'i' THEN x.indisreplident
              WHEN 'n' THEN false
              ELSE x.indisprimary OR NOT EXISTS (
                   SELECT FROM pg_attribute k
                    WHERE k.attrelid = c.oid AND k.attnum = ANY (x.indkey) AND NOT k.attnotnull)
              END
        ORDER BY x.indisreplident DESC, x.indisprimary DESC, x.indnatts, x.indexrelid
        LIMIT 1
       ) i ON true
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
   AND c.relkind IN ('r', 'p')
 ORDER BY n.nspname, c.relname, a.attnum
"""

_TABLES: Final = """
SELECT n.nspname AS schema, c.relname AS table
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND n.nspname <> 'headwater'
 ORDER BY 1, 2
"""

# Debezium takes the primary key unless told otherwise.
_BESIDES_PRIMARY: Final = """
SELECT EXISTS (SELECT FROM pg_index x
                WHERE x.indrelid = c.oid AND x.indisprimary
                  AND NOT (c.relreplident = 'i' AND NOT x.indisreplident))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""

# A snapshot reads them like any column; the log does not have them.
_GENERATED: Final = """
SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                     AND a.attgenerated <> ''
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
 GROUP BY 1, 2
"""

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
"""Types that are more than their text to us; every other type, arrays of these too, is its text."""

_NUMERIC_HEADER: Final = 4  # Postgres adds the header's size to a numeric's modifier


def describe(
    connection: Connection[Any],
    tables: Iterable[TableName],
    rules: Mapping[TableName, ColumnRules] | None = None,
) -> dict[TableName, TableSchema]:
    """Describes tables as the catalog has them, or as rules let them leave the source.

    Args:
        connection: To the source database.
        tables: Which ones; a table that does not exist is left out of the answer.
        rules: Tables of which some columns do not leave, or not as they are.

    Raises:
        ColumnRuleError: A rule hides a column of a key.
    """
    wanted = list(tables)
    schemas = [table.schema for table in wanted]
    names = [table.name for table in wanted]
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(_COLUMNS, (schemas, names)).fetchall()
    described: dict[TableName, list[Any]] = {}
    for row in rows:
        described.setdefault(TableName(row.schema, row.table), []).append(row)
    found = {table: _schema(table, columns) for table, columns in described.items()}
    return applied(found, rules or {})


def keys_besides_primary(
    connection: Connection[Any], tables: Iterable[TableName]
) -> dict[TableName, tuple[str, ...]]:
    """Returns the key of each table whose rows something else than its primary key tells apart.

    That is the index of its replica identity, or, in a table without a primary key, a unique index
    over columns that are never NULL.
    """
    keys = {}
    for table, schema in describe(connection, tables).items():
        row = connection.execute(_BESIDES_PRIMARY, (table.schema, table.name)).fetchone()
        if schema.key and not (row and row[0]):
            keys[table] = schema.key
    return keys


def generated_columns(
    connection: Connection[Any], tables: Iterable[TableName]
) -> dict[TableName, tuple[str, ...]]:
    """Returns the generated columns of the tables that have any; they are never captured."""
    wanted = list(tables)
    names = ([table.schema for table in wanted], [table.name for table in wanted])
    rows = connection.execute(_GENERATED, names).fetchall()
    return {TableName(schema, table): tuple(columns) for schema, table, columns in rows}


def list_tables(connection: Connection[Any]) -> list[TableName]:
    """Lists the user's tables, partitions by their root, without Headwater's own."""
    return [TableName(schema, name) for schema, name in connection.execute(_TABLES).fetchall()]


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
