"""History of the shapes of captured tables: `headwater.schema_changes`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from psycopg import Error, sql
from psycopg.types.json import Jsonb

from cdc.lsn import Lsn
from cdc.schema_change.catalog_mark import being_changed
from cdc.schema_change.shape import BASELINE, ShapeVersion, TableHistory, TableShape
from cdc.schema_change.trigger import SHAPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from psycopg import Connection

    from cdc.column_rule import ColumnRules
    from cdc.table import TableName

LOOKED: Final = "LOOKED"
"""Command of a change that was detected by comparison."""

_LOCK_MS: Final = 500
"""How long a comparison waits for running DDL; the next comparison follows soon."""

_SESSION: Final = (
    "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL timezone = 'UTC';"
    " SET LOCAL datestyle = 'ISO'; SET LOCAL intervalstyle = 'iso_8601';"
    " SET LOCAL extra_float_digits = 1;"
    f" SET LOCAL bytea_output = 'hex'; SET LOCAL lock_timeout = {_LOCK_MS}"
)
# The table with this name now; otherwise the last one that had it, since renamed or dropped.
_OIDS: Final = """
SELECT w.schema, w.name, coalesce(
       (SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = w.schema AND c.relname = w.name AND c.relkind IN ('r', 'p')),
       (SELECT table_oid FROM headwater.schema_changes
         WHERE shape ->> 'schema' = w.schema AND shape ->> 'table' = w.name
         ORDER BY id DESC LIMIT 1))
  FROM unnest(%s::text[], %s::text[]) AS w (schema, name)
"""
_VERSIONS: Final = """
SELECT table_oid, id, lsn::text, seen_after::text, shape, command, rewritten, noted_at
  FROM headwater.schema_changes WHERE table_oid = ANY (%s) ORDER BY id
"""
_LAST: Final = """
SELECT shape, id FROM headwater.schema_changes WHERE table_oid = %s ORDER BY id DESC LIMIT 1
"""
# One statement for all tables: it is planned once, and most tables have not changed.
_DIFFERING: Final = f"""
SELECT known.oid
  FROM unnest(%s::bigint[]) AS known (oid)
  LEFT JOIN LATERAL (SELECT shape, id FROM headwater.schema_changes
                      WHERE table_oid = known.oid ORDER BY id DESC LIMIT 1) AS last ON true
 WHERE last.id IS NULL
    OR last.shape IS DISTINCT FROM ({SHAPE.format(oid="known.oid::oid")})
"""  # noqa: S608  # built from constants only
_NOTE: Final = """
INSERT INTO headwater.schema_changes (table_oid, lsn, seen_after, command, shape)
VALUES (%s, pg_current_wal_insert_lsn(), %s::pg_lsn, %s, %s)
"""


def of_tables(
    connection: Connection[Any],
    tables: Iterable[TableName],
    rules: Mapping[TableName, ColumnRules] | None = None,
    salt: str | None = None,
) -> dict[TableName, TableHistory]:
    """Returns the recorded shapes of each table, including renamed ones.

    A table without a recorded shape has no entry.

    Args:
        connection: To the source database.
        tables: The tables.
        rules: Rules for excluded, hashed and masked columns.
        salt: Salt for hashed columns.
    """
    rules = rules or {}
    oids = {table: oid for table, oid in _oids(connection, tables).items() if oid is not None}
    found: dict[int, list[ShapeVersion]] = defaultdict(list)
    for oid, *fields in connection.execute(_VERSIONS, (list(oids.values()),)).fetchall():
        found[oid].append(_version(*fields))
    return {
        table: TableHistory.of(
            [_leaving(version, rules.get(table), salt) for version in found[oid]]
        )
        for table, oid in oids.items()
        if oid in found
    }


def observe(
    connection: Connection[Any], tables: Iterable[TableName], looked_at: Lsn | None = None
) -> list[TableName]:
    """Compares tables with their recorded shapes, and records first shapes and unrecorded changes.

    Args:
        connection: In autocommit.
        tables: The captured tables.
        looked_at: Position before the caller's last comparison; changes are after it.

    Returns:
        Tables with a new record.

    Raises:
        psycopg.errors.LockNotAvailable: DDL of a table is still running; repeat later.
    """
    known = {table: oid for table, oid in _oids(connection, tables).items() if oid is not None}
    suspects = _suspects(connection, list(known.values()))
    return [
        table
        for table, oid in known.items()
        if oid in suspects and _observe(connection, oid, looked_at)
    ]


def oids(connection: Connection[Any], tables: Iterable[TableName]) -> list[int]:
    """Returns the oids of tables, in their order; unknown tables are omitted."""
    return [oid for oid in _oids(connection, tables).values() if oid is not None]


def unseen(connection: Connection[Any], tables: Iterable[TableName]) -> list[TableName]:
    """Returns the existing tables without a recorded shape."""
    oids = {oid: table for table, oid in _oids(connection, tables).items() if oid is not None}
    rows = connection.execute(
        "SELECT DISTINCT table_oid FROM headwater.schema_changes WHERE table_oid = ANY (%s)",
        (list(oids),),
    ).fetchall()
    known = {oid for (oid,) in rows}
    return [table for oid, table in oids.items() if oid not in known]


def renamed(connection: Connection[Any], tables: Iterable[TableName]) -> dict[TableName, TableName]:
    """Returns the tables that were renamed, with their new names."""
    found = {}
    for table, known in of_tables(connection, tables).items():
        latest = known.versions[-1].shape
        if latest is not None and latest.table != table:
            found[table] = latest.table
    return found


def position(connection: Connection[Any]) -> Lsn:
    """Returns the current position of the source's log."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    return Lsn.parse(str(row[0] if row else ""))


def _leaving(version: ShapeVersion, rules: ColumnRules | None, salt: str | None) -> ShapeVersion:
    if rules is None or version.shape is None:
        return version
    return replace(version, shape=version.shape.leaving(rules, salt))


def _suspects(connection: Connection[Any], oids: list[int]) -> frozenset[int]:
    """Returns the tables with running DDL, and those that differ from their last record.

    Running DDL is queried first: what has committed by then is visible to the comparison.
    """
    locked = being_changed(connection, oids)
    free = [oid for oid in oids if oid not in locked]
    with connection.transaction():
        connection.execute(_SESSION.encode())
        differing = connection.execute(_DIFFERING.encode(), (free,)).fetchall()
    return locked.union(oid for (oid,) in differing)


def _observe(connection: Connection[Any], oid: int, looked_at: Lsn | None) -> bool:
    with connection.transaction():
        connection.execute(_SESSION.encode())
        _await_ddl(connection, oid)
        # some DDL is not blocked by that: compare again if a change was recorded in between
        for _ in range(2):
            shape, last = _compared(connection, oid)
            if shape == (last[0] if last else None):
                return False
        if last is None:
            connection.execute(_NOTE, (oid, None, BASELINE, Jsonb(shape)))
            return True
        since = looked_at or _noted_at(connection, last[1])
        noted = None if shape is None else Jsonb(shape)
        connection.execute(_NOTE, (oid, str(since), LOOKED, noted))
        return True


def _compared(connection: Connection[Any], oid: int) -> tuple[Any, Any]:
    """Returns the present and the last recorded shape of a table."""
    row = connection.execute(SHAPE.format(oid="%s").encode(), (oid,)).fetchone()
    last = connection.execute(_LAST, (oid,)).fetchone()
    return (row[0] if row else None), last


def _await_ddl(connection: Connection[Any], oid: int) -> None:
    """Waits for running DDL: its log records may precede now, and its effect is not visible yet."""
    row = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE c.oid = %s",
        (oid,),
    ).fetchone()
    if row is not None:
        try:
            with connection.transaction():
                lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE")
                connection.execute(lock.format(sql.Identifier(*row)))
        except Error as error:
            if error.sqlstate != "42P01":  # renamed or dropped just now: that is seen
                raise


def _noted_at(connection: Connection[Any], change_id: int) -> str:
    row = connection.execute(
        "SELECT lsn::text FROM headwater.schema_changes WHERE id = %s", (change_id,)
    ).fetchone()
    return str(row[0] if row else "")


def _oids(connection: Connection[Any], tables: Iterable[TableName]) -> dict[TableName, int | None]:
    wanted = list(tables)
    names = ([table.schema for table in wanted], [table.name for table in wanted])
    rows = connection.execute(_OIDS, names).fetchall()
    by_name = {(schema, name): oid for schema, name, oid in rows}
    return {table: by_name.get((table.schema, table.name)) for table in wanted}


def _version(  # noqa: PLR0913, PLR0917  # the columns of a row
    number: int,
    lsn: str,
    seen_after: str | None,
    shape: dict[str, Any] | None,
    command: str,
    rewritten: bool | None,
    noted_at: Any,
) -> ShapeVersion:
    return ShapeVersion(
        number,
        Lsn.parse(lsn),
        Lsn.parse(seen_after) if seen_after else None,
        None if shape is None else TableShape.of_json(shape),
        command,
        rewritten,
        noted_at,
    )
