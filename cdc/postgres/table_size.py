"""How large tables are, as far as the server knows without reading them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from cdc.table import TableName

_ROW_BYTES: Final = 100
"""What a row takes, about, of a table that was never analyzed: what counts is that it is not 0."""

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


class TableSize(NamedTuple):
    """What tables hold, about.

    Attributes:
        rows: Their rows; 0 only if there are none.
        size_bytes: What they take on the source's disk, large values included.
    """

    rows: int
    size_bytes: int


def of_tables(connection: psycopg.Connection[Any], tables: Iterable[TableName]) -> TableSize:
    """Returns what some tables hold together, with their partitions; of one that is gone, nothing.

    Args:
        connection: To the database.
        tables: The tables.
    """
    named = list(tables)
    given = {
        "schemas": [table.schema for table in named],
        "names": [table.name for table in named],
        "row_bytes": _ROW_BYTES,
    }
    row = connection.execute(_SIZE, given).fetchone()
    return TableSize(int(row[0]), int(row[1])) if row else TableSize(0, 0)
