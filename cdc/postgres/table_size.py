"""Estimates the size of tables from the server's statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

_ROW_BYTES: Final = 100
"""Assumed size of a row of a table that was never analyzed; any value but 0 would do."""

_SIZE: Final = """
WITH wanted AS (
    SELECT to_regclass(quote_ident(given.schema) || '.' || quote_ident(given.name)) AS relation
      FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS given (schema, name)),
leaves AS (
    SELECT relation AS leaf FROM wanted
     WHERE relation NOT IN (SELECT oid FROM pg_class WHERE relkind = 'p')
     UNION
    SELECT part.relid FROM wanted, pg_partition_tree(relation) AS part WHERE part.isleaf)
SELECT coalesce(sum(CASE WHEN reltuples > 0 THEN reltuples
                         ELSE ceil(pg_relation_size(c.oid) / %(row_bytes)s::float8)
                    END), 0)::bigint,
       coalesce(sum(pg_table_size(c.oid)), 0)::bigint
  FROM leaves JOIN pg_class AS c ON c.oid = leaf
"""
_ROW_BYTES_MIN: Final = 28
"""Size of a row without columns: its header and item pointer."""

_BYTES: Final = """
SELECT given.schema, given.name, sum(pg_relation_size(leaf.oid))::bigint
  FROM unnest(%s::text[], %s::text[]) AS given (schema, name)
 CROSS JOIN LATERAL (
       SELECT to_regclass(quote_ident(given.schema) || '.' || quote_ident(given.name))::oid AS oid
        UNION
       SELECT relid::oid FROM pg_partition_tree(
              to_regclass(quote_ident(given.schema) || '.' || quote_ident(given.name)))) AS leaf
 GROUP BY 1, 2
"""


class TableSize(NamedTuple):
    """The estimated size of tables.

    Attributes:
        rows: Number of rows; 0 only if there are none.
        size_bytes: Size on the source's disk, including large values.
    """

    rows: int
    size_bytes: int


def of_tables(connection: psycopg.Connection[Any], tables: Iterable[TableName]) -> TableSize:
    """Sums the sizes of tables, with their partitions; a missing table counts as empty."""
    named = list(tables)
    given = {
        "schemas": [table.schema for table in named],
        "names": [table.name for table in named],
        "row_bytes": _ROW_BYTES,
    }
    row = connection.execute(_SIZE, given).fetchone()
    return TableSize(int(row[0]), int(row[1])) if row else TableSize(0, 0)


def rows_at_most(
    connection: psycopg.Connection[Any], tables: Iterable[TableName]
) -> dict[TableName, int]:
    """Returns how many rows fit into the files of each table and its partitions.

    Args:
        connection: To the database.
        tables: The tables; a missing one has no rows.
    """
    wanted = list(tables)
    given = [table.schema for table in wanted], [table.name for table in wanted]
    found = connection.execute(_BYTES, given).fetchall()
    return {
        TableName(schema, name): (size_bytes or 0) // _ROW_BYTES_MIN
        for schema, name, size_bytes in found
    }
