"""Describes a table before each chunk: its columns, key and identity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson
from psycopg import sql

from cdc.postgres import catalog
from cdc.snapshot.errors import SnapshotError
from cdc.snapshot.read_point import oid
from cdc.table import TableSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import Connection

    from cdc.column_rule import ColumnRules
    from cdc.table import TableName

Shape = tuple[tuple[str, str], ...]
"""Name and type of columns."""

# Identity: a truncated or rewritten table has a new file, a recreated table a new oid, a promoted
# server a new timeline. A plain table is read with ONLY, since tables that inherit from it have
# topics of their own; a partitioned root is read with its partitions.
_FACTS: Final = """
WITH tree AS (SELECT %(root)s::oid AS relid
              UNION SELECT relid::oid FROM pg_partition_tree(%(root)s::oid)),
     members AS (SELECT c.oid, c.relfilenode, c.relpages
                   FROM pg_class c JOIN tree ON tree.relid = c.oid)
SELECT (SELECT relkind = 'r' FROM pg_class WHERE oid = %(root)s::oid),
       (SELECT hashtextextended(string_agg(oid || ':' || relfilenode, ',' ORDER BY oid), 0)::text
          FROM members),
       left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
       (SELECT sum(greatest(relpages, 0))::bigint FROM members),
       EXISTS (SELECT FROM pg_publication p
                WHERE p.pubname = %(publication)s
                  AND (p.puballtables
                       OR EXISTS (SELECT FROM pg_publication_rel r
                                   WHERE r.prpubid = p.oid AND r.prrelid = %(root)s::oid)
                       OR EXISTS (SELECT FROM pg_publication_namespace n
                                    JOIN pg_class c ON c.relnamespace = n.pnnspid
                                   WHERE n.pnpubid = p.oid AND c.oid = %(root)s::oid)))
"""
# An index may have another collation than its column; the key is unique in that of the index.
_COLLATIONS: Final = """
SELECT a.attname, n.nspname, l.collname
  FROM pg_index x
 CROSS JOIN LATERAL unnest(x.indkey::int2[], x.indcollation::oid[]) AS k (attnum, collation_oid)
  JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.attnum
  JOIN pg_collation l ON l.oid = k.collation_oid
  JOIN pg_namespace n ON n.oid = l.collnamespace
 WHERE x.indrelid = %s::oid AND x.indisunique AND k.collation_oid <> a.attcollation
"""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The state of a table at one moment.

    Attributes:
        oid: The table's oid; for a partitioned table, that of its root.
        schema: Its columns and key.
        relation: Its name in a FROM clause.
        key: Expressions by which its key is compared and sorted.
        identity: Changes when the table is replaced, truncated or rewritten, or the server is
            promoted.
        pages: The server's count of blocks, over all partitions.
        published: Whether the publication contains it.
    """

    oid: int
    schema: TableSchema
    relation: sql.Composed
    key: tuple[sql.Composable, ...]
    identity: str
    pages: int
    published: bool

    @property
    def shape(self) -> Shape:
        """Name and type of each column."""
        return tuple((column.name, column.type_name) for column in self.schema.columns)

    def of_shape(self, shape: Shape) -> TableFacts | None:
        """Returns the table with only the columns of a shape; None if it lacks one of them."""
        if self.shape == shape:
            return self
        if not set(shape) <= set(self.shape):
            return None
        columns = tuple(self.schema.by_name[name] for name, _ in shape)
        return replace(self, schema=TableSchema(self.schema.table, columns, self.schema.key))


def look(
    connection: Connection[Any],
    table: TableName,
    publication: str,
    rules: Mapping[TableName, ColumnRules] | None = None,
) -> TableFacts:
    """Describes a table, with column rules applied.

    Raises:
        SnapshotError: It does not exist, or is not in the publication.
        ColumnRuleError: A rule hides a column of its key.
    """
    schema = catalog.describe(connection, [table], rules).get(table)
    facts = None if schema is None else facts_of(connection, schema, publication)
    if facts is None:
        raise SnapshotError(f"table {table} does not exist")
    if not facts.published:
        raise SnapshotError(
            f"table {table} is not in the publication: its changes would be missing",
            detail=f"publication {publication}",
            hint=f"headwater source resnapshot {table} adds the table and takes a snapshot",
        )
    return facts


def facts_of(
    connection: Connection[Any], schema: TableSchema, publication: str = ""
) -> TableFacts | None:
    """Describes a table whose columns and key are known; None if it does not exist."""
    root = oid(connection, schema.table)
    if root is None:
        return None
    found = connection.execute(_FACTS, {"root": root, "publication": publication}).fetchone()
    plain, files, timeline, pages, published = found or (True, "", "", 0, False)
    relation = _relation(schema.table, plain=plain)
    key = _key(connection, root, schema)
    identity = orjson.dumps([timeline, files, schema.key]).decode()
    return TableFacts(root, schema, relation, key, identity, int(pages or 0), published)


def walked(
    connection: Connection[Any], schema: TableSchema
) -> tuple[sql.Composed, tuple[sql.Composable, ...]]:
    """Describes how to scan a table or view in key order, whether or not it is captured.

    Returns:
        Its name in a FROM clause, and the expressions by which its key is compared and sorted,
        qualified by the table's name: ORDER BY would prefer a selected text of the same name.
    """
    root = oid(connection, schema.table)
    found = connection.execute("SELECT relkind = 'r' FROM pg_class WHERE oid = %s", (root,))
    (plain,) = found.fetchone() or (False,)
    key = _key(connection, root or 0, schema, qualifier=(schema.table.name,))
    return _relation(schema.table, plain=plain), key


def _relation(table: TableName, *, plain: bool) -> sql.Composed:
    return sql.SQL("ONLY {}" if plain else "{}").format(sql.Identifier(table.schema, table.name))


def _key(
    connection: Connection[Any], root: int, schema: TableSchema, qualifier: tuple[str, ...] = ()
) -> tuple[Any, ...]:
    others = {
        column: sql.Identifier(space, name)
        for column, space, name in connection.execute(_COLLATIONS, (root,)).fetchall()
    }
    return tuple(
        sql.SQL("{} COLLATE {}").format(sql.Identifier(*qualifier, name), others[name])
        if name in others
        else sql.Identifier(*qualifier, name)
        for name in schema.key
    )
