"""How the rows of a table are identified, and which statements its publication would block.

Postgres refuses UPDATE and DELETE on a published table if the log would have nothing of the old
rows. It decides that for each partition, never for the root. The logged part of an old row must
also include the key of the views.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql
from psycopg.rows import namedtuple_row

from cdc.postgres import row_key
from cdc.postgres.catalog import describe
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from psycopg import Connection

    from cdc.table import TableSchema

# One row for each relation with storage: the table itself, or each leaf partition.
_LEAVES: Final = f"""
SELECT n.nspname AS root_schema, c.relname AS root_name, c.relkind = 'p' AS partitioned,
       (SELECT array_agg(a.attname::text)
          FROM pg_index x
          JOIN pg_attribute a ON a.attrelid = c.oid
                             AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1])
         WHERE x.indrelid = c.oid AND x.indisprimary AND x.indisvalid AND x.indimmediate)
           AS root_primary,
       ln.nspname AS schema, l.relname AS name, l.relkind::text AS kind,
       l.relpersistence::text AS persistence,
       CASE l.relkind WHEN 'p' THEN 'd' ELSE l.relreplident::text END AS identity,
       logged.columns AS logged,
       (SELECT x.indexrelid FROM pg_index x
         WHERE x.indrelid = l.oid AND x.indisprimary AND x.indimmediate) IS NOT NULL
           AS has_primary,
       (SELECT ic.relname FROM pg_index x JOIN pg_class ic ON ic.oid = x.indexrelid
         WHERE x.indrelid = l.oid AND x.indisvalid AND x.indisunique AND x.indimmediate
           AND x.indpred IS NULL AND x.indexprs IS NULL
           AND NOT EXISTS (SELECT FROM pg_attribute a
                            WHERE a.attrelid = l.oid AND NOT a.attnotnull
                              AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1]))
         ORDER BY x.indisprimary DESC, x.indnkeyatts, x.indexrelid LIMIT 1) AS usable,
       (SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{{}}')
          FROM pg_attribute a
         WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped
           AND a.attgenerated = 'v') AS virtual,
       (SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{{}}')
          FROM pg_attribute a
         WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped
           AND NOT {row_key.CAPTURED}) AS not_captured
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
       SELECT c.oid AS relid WHERE c.relkind = 'r'
       UNION ALL
       SELECT p.relid::oid FROM pg_partition_tree(c.oid) p WHERE c.relkind = 'p' AND p.isleaf
              AND p.relid <> c.oid
       UNION ALL  -- a root without a partition is looked at for those that will come
       SELECT c.oid WHERE c.relkind = 'p' AND NOT EXISTS (
              SELECT FROM pg_partition_tree(c.oid) p WHERE p.isleaf AND p.relid <> c.oid)) t
  JOIN pg_class l ON l.oid = t.relid
  JOIN pg_namespace ln ON ln.oid = l.relnamespace
  LEFT JOIN LATERAL (
       SELECT array_agg(a.attname::text) AS columns
         FROM pg_index x
         JOIN pg_attribute a ON a.attrelid = l.oid
                            AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1])
        WHERE x.indrelid = l.oid AND x.indisvalid AND x.indisunique AND x.indimmediate
          AND CASE WHEN l.relkind = 'p' OR l.relreplident = 'd' THEN x.indisprimary
                   WHEN l.relreplident = 'i' THEN x.indisreplident
                   ELSE false END) logged ON true
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
   AND c.relkind IN ('r', 'p')
 ORDER BY 1, 2, ln.nspname, l.relname
"""  # noqa: S608  # built from constants only

_CHILDREN: Final = """
SELECT n.nspname, c.relname, array_agg(kn.nspname || '.' || k.relname ORDER BY 1)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_inherits i ON i.inhparent = c.oid
  JOIN pg_class k ON k.oid = i.inhrelid
  JOIN pg_namespace kn ON kn.oid = k.relnamespace
 WHERE c.relkind = 'r' AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
 GROUP BY 1, 2
"""


_PARTITIONED: Final = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'p' AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""


class FaultKind(Enum):
    """The consequence of capturing the table in its present state."""

    REFUSED = auto()  # Postgres refuses UPDATE and DELETE that worked before
    WRONG = auto()  # changes would be lost, or found under another key
    LATER = auto()  # the same for future partitions


@dataclass(frozen=True, slots=True)
class TableFault:
    """Why a table should not be captured in its present state.

    Attributes:
        kind: The consequence.
        message: The cause, without the table's name.
        hint: How to repair it.
        detail: More about it.
    """

    kind: FaultKind
    message: str
    hint: str
    detail: str | None = None


def faults(
    connection: Connection[Any], tables: Iterable[TableName]
) -> dict[TableName, tuple[TableFault, ...]]:
    """Returns the faults of each table that prevent its capture; others have no entry.

    Args:
        connection: To the source database.
        tables: The tables; missing tables have no entry.
    """
    wanted = list(tables)
    schemas = describe(connection, wanted)
    names = [table.schema for table in wanted], [table.name for table in wanted]
    leaves: dict[TableName, list[Any]] = defaultdict(list)
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(_LEAVES.encode(), names).fetchall()
    for row in rows:
        leaves[TableName(row.root_schema, row.root_name)].append(row)
    found: dict[TableName, tuple[TableFault, ...]] = {}
    for table, members in leaves.items():
        schema = schemas.get(table)
        if schema is None:
            hint = "leave it out of the source's tables"
            kind = FaultKind.WRONG
            found[table] = (TableFault(kind, "has no column that leaves the database", hint),)
        elif faults_of_table := tuple(_faults(schema, members)):
            found[table] = faults_of_table
    return found


def partitioned(connection: Connection[Any], tables: Iterable[TableName]) -> set[TableName]:
    """Returns the tables that have partitions."""
    wanted = list(tables)
    names = [table.schema for table in wanted], [table.name for table in wanted]
    return {TableName(*row) for row in connection.execute(_PARTITIONED, names).fetchall()}


def children(
    connection: Connection[Any], tables: Iterable[TableName]
) -> dict[TableName, tuple[str, ...]]:
    """Returns the tables that inherit from each table, without partitions."""
    wanted = list(tables)
    names = [table.schema for table in wanted], [table.name for table in wanted]
    rows = connection.execute(_CHILDREN, names).fetchall()
    return {TableName(schema, name): tuple(below) for schema, name, below in rows}


def _faults(schema: TableSchema, leaves: Sequence[Any]) -> Iterator[TableFault]:
    silent = [leaf for leaf in leaves if leaf.kind == "f" or leaf.persistence != "p"]
    if silent and leaves[0].partitioned:
        yield TableFault(
            FaultKind.WRONG,
            f"{_which(schema, silent)} leaves no trace in the log",
            "make it an ordinary, logged table, or leave the table out of the source's tables",
            "a foreign or unlogged partition",
        )
    others = [leaf for leaf in leaves if leaf not in silent]
    refused = [leaf for leaf in others if not _logs(leaf)]
    if refused:
        yield _refused(schema, refused)
    other_key = [leaf for leaf in others if leaf not in refused and _lacks(schema, leaf)]
    if other_key:
        leaf = other_key[0]
        yield TableFault(
            FaultKind.WRONG,
            f"the log has {', '.join(sorted(leaf.logged))} of an old row in"
            f" {_which(schema, other_key)}, and its key is {', '.join(schema.key)}",
            _other_identity(leaf),
            "deleted and moved rows could not be found in the views",
        )
    hidden = [leaf for leaf in others if set(leaf.logged or ()) & set(leaf.not_captured)]
    if hidden and not schema.key:
        leaf = hidden[0]
        yield TableFault(
            FaultKind.WRONG,
            "its key has generated columns, which this server does not publish",
            "upgrade to Postgres 18, or use a unique index over other columns as replica identity",
            ", ".join(sorted(set(leaf.logged) & set(leaf.not_captured))),
        )
    if leaves[0].partitioned and not refused:
        yield from _later(schema, leaves[0])


def _later(schema: TableSchema, leaf: Any) -> Iterator[TableFault]:
    """Checks future partitions, which get the replica identity DEFAULT whatever others have."""
    quoted = sql.Identifier(schema.table.schema, schema.table.name).as_string(None)
    if not leaf.root_primary:
        yield TableFault(
            FaultKind.REFUSED,
            "has no primary key: Postgres refuses UPDATE and DELETE on partitions made later",
            f"ALTER TABLE {quoted} ADD PRIMARY KEY (…);",
            "a new partition does not inherit the replica identity of the others",
        )
    elif schema.key and set(schema.key) != set(leaf.root_primary):
        yield TableFault(
            FaultKind.LATER,
            "has another key than its primary key, which partitions made later would log",
            "give each new partition the same REPLICA IDENTITY USING INDEX before rows come",
        )


def _logs(leaf: Any) -> bool:
    """Returns whether the log identifies old rows, so that Postgres permits changes."""
    if leaf.identity == "f":
        return not leaf.virtual
    return bool(leaf.logged)


def _lacks(schema: TableSchema, leaf: Any) -> bool:
    return leaf.identity != "f" and not set(schema.key) <= set(leaf.logged)


def _refused(schema: TableSchema, leaves: Sequence[Any]) -> TableFault:
    leaf = leaves[0]
    where = "" if leaf.schema == schema.table.schema and leaf.name == schema.table.name else (
        f" on {_which(schema, leaves)}"
    )  # fmt: skip
    quoted = sql.Identifier(leaf.schema, leaf.name).as_string(None)
    why = _why_refused(leaf)
    if leaf.partitioned and not leaf.root_primary:
        root = sql.Identifier(schema.table.schema, schema.table.name).as_string(None)
        hint = f"ALTER TABLE {root} ADD PRIMARY KEY (…);"
    elif leaf.has_primary:
        hint = f"ALTER TABLE {quoted} REPLICA IDENTITY DEFAULT;"
    elif leaf.usable:
        index = sql.Identifier(leaf.usable).as_string(None)
        hint = f"ALTER TABLE {quoted} REPLICA IDENTITY USING INDEX {index};"
    elif leaf.virtual:
        hint = f"ALTER TABLE {quoted} ADD PRIMARY KEY (…);"
    else:
        hint = (
            f"ALTER TABLE {quoted} ADD PRIMARY KEY (…);  or, where the log may have whole old rows,"
            f" ALTER TABLE {quoted} REPLICA IDENTITY FULL;"
        )
    return TableFault(
        FaultKind.REFUSED,
        f"{why}: while it is captured, Postgres refuses UPDATE and DELETE{where}",
        hint,
        "declare it in insert_only if nothing but INSERT and TRUNCATE is done to it",
    )


def _why_refused(leaf: Any) -> str:
    if leaf.identity == "f":
        return f"has REPLICA IDENTITY FULL and the virtual column {leaf.virtual[0]}"
    if leaf.identity == "n":
        return "replica identity is NOTHING"
    if leaf.identity == "i":
        return "the index of its replica identity is gone"
    if leaf.usable:
        return "has no primary key, and its unique index is not its replica identity"
    return "has no primary key"


def _other_identity(leaf: Any) -> str:
    quoted = sql.Identifier(leaf.schema, leaf.name).as_string(None)
    if leaf.identity == "i" and leaf.has_primary:
        return f"ALTER TABLE {quoted} REPLICA IDENTITY DEFAULT;"
    return f"ALTER TABLE {quoted} REPLICA IDENTITY USING INDEX …;  as the partitioned table has it"


def _which(schema: TableSchema, leaves: Sequence[Any]) -> str:
    first = TableName(leaves[0].schema, leaves[0].name)
    if first == schema.table:
        return "it"
    more = f" and {len(leaves) - 1} more" if len(leaves) > 1 else ""
    return f"partition {first}{more}"
