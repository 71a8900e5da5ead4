"""The tables of a database that could be captured, and the obstacles, for `init`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.rows import class_row

from cdc.table import TableName

if TYPE_CHECKING:
    from psycopg import Connection

_ROW_BYTES: Final = 100
"""Assumed size of a row of a table that was never analyzed."""

# A partitioned table is what its partitions hold. Tables of an extension are the extension's.
_RELATIONS: Final = """
SELECT n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       c.relpersistence = 'u' AS unlogged,
       (SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
         WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
           AND d.refclassid = 'pg_extension'::regclass) AS extension,
       counted.columns, size.rows, size.size_bytes
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
       SELECT count(*) AS columns FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS counted
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(CASE WHEN l.reltuples > 0 THEN l.reltuples
                                ELSE ceil(pg_relation_size(l.oid) / %(row_bytes)s::float8)
                           END), 0)::bigint AS rows,
              coalesce(sum(pg_table_size(l.oid)), 0)::bigint AS size_bytes
         FROM (SELECT c.oid WHERE c.relkind = 'r'
                UNION ALL
               SELECT t.relid::oid FROM pg_partition_tree(c.oid) t
                WHERE c.relkind = 'p' AND t.isleaf) AS leaf
         JOIN pg_class l ON l.oid = leaf.oid) AS size
 WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND n.nspname <> 'headwater'
 ORDER BY 1, 2
"""

_EVENT_STORE: Final = """
SELECT to_regclass('eventstore.events') IS NOT NULL
       AND to_regclass('eventstore.outbox') IS NOT NULL
       AND to_regnamespace('headwater_migrations') IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table of the database.

    Attributes:
        schema: Its schema.
        name: Its name.
        kind: `r` for a table, `p` for a partitioned one, `f` for a foreign one.
        unlogged: Whether its changes are missing from the log.
        extension: Extension that it belongs to; None for a user's own.
        columns: Number of columns, including generated ones.
        rows: The server's estimate of its rows.
        size_bytes: Size on the source's disk, including large values.
    """

    schema: str
    name: str
    kind: str
    unlogged: bool
    extension: str | None
    columns: int
    rows: int
    size_bytes: int

    @property
    def table(self) -> TableName:
        """Its name with its schema."""
        return TableName(self.schema, self.name)


def relations(connection: Connection[Any]) -> list[Relation]:
    """Lists all tables but temporary ones and Headwater's own, partitions by their root."""
    with connection.cursor(row_factory=class_row(Relation)) as cursor:
        return cursor.execute(_RELATIONS, {"row_bytes": _ROW_BYTES}).fetchall()


def has_event_store(connection: Connection[Any]) -> bool:
    """Returns whether the database has Headwater's event store (`headwater db upgrade`)."""
    row = connection.execute(_EVENT_STORE).fetchone()
    return bool(row and row[0])
