"""The publication: the tables whose changes leave the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import Error, sql

from cdc.capture import HEARTBEAT_TABLE
from cdc.postgres import row_key
from cdc.postgres.errors import PublicationDriftError
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection

_DESCRIBE: Final = """
SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,
       pubowner = (SELECT oid FROM pg_roles WHERE rolname = current_user),
       -- servers before 18 do not have the word
       coalesce(to_jsonb(p) ->> 'pubgencols', 's') = 's'
  FROM pg_publication p WHERE pubname = %s
"""
# The declared tables: pg_publication_tables would list the partitions of a published root.
_TABLES: Final = """
SELECT n.nspname, c.relname, r.prattrs IS NOT NULL OR r.prqual IS NOT NULL
  FROM pg_publication p
  JOIN pg_publication_rel r ON r.prpubid = p.oid
  JOIN pg_class c ON c.oid = r.prrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %s
"""
_CREATE: Final = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH ({})")
_SET: Final = sql.SQL("ALTER PUBLICATION {0} SET ({2})")
_ADD: Final = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}")
_LEAVE_OUT: Final = sql.SQL("ALTER PUBLICATION {} DROP TABLE {}")
_OPTIONS: Final = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
_GENERATED: Final = "publish_generated_columns = stored"


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication in the catalog.

    Attributes:
        all_tables: Whether it publishes every table of the database.
        complete: Whether it publishes inserts, updates, deletes and truncates, with partitions by
            their root.
        tables: Its tables.
        filtered: Tables with only some of their columns or rows published.
        ours: Whether the session's role created it for a capture: it publishes the heartbeat.
        generated: Whether it publishes stored generated columns, or the server cannot.
    """

    all_tables: bool
    complete: bool
    tables: frozenset[TableName]
    filtered: frozenset[TableName]
    ours: bool = True
    generated: bool = True

    def drift(self, wanted: Iterable[TableName]) -> list[str]:
        """Returns the differences that would lose changes, apart from missing tables."""
        partial = sorted(str(table) for table in self.filtered & set(wanted))
        return [f"publishes only some rows or columns of {table}" for table in partial]

    def against(self, wanted: Iterable[TableName]) -> tuple[list[TableName], list[TableName]]:
        """Returns the tables that it lacks, and those that it has in addition.

        Additional tables in a publication of an administrator's are left alone.
        """
        tables = set(wanted)
        if self.all_tables:
            return [], []
        extra = sorted(self.tables - tables) if self.ours else []
        return sorted(tables - self.tables), extra


def find(connection: Connection[Any], name: str) -> Publication | None:
    """Describes a publication; returns None if it does not exist."""
    found = connection.execute(_DESCRIBE, (name,)).fetchone()
    if found is None:
        return None
    rows = connection.execute(_TABLES, (name,)).fetchall()
    tables = {TableName(schema, table): filtered for schema, table, filtered in rows}
    partial = frozenset(table for table, filtered in tables.items() if filtered)
    all_tables, operations, by_root, owned, generated = found
    ours = owned and HEARTBEAT_TABLE in tables
    return Publication(
        all_tables, operations and by_root, frozenset(tables), partial, ours, generated
    )


def ensure(connection: Connection[Any], name: str, tables: Iterable[TableName]) -> list[str]:
    """Creates or extends a publication of these tables: every operation, partitions by their root.

    Tables that inherit from one of them are not included. No table is removed; see `leave_out`.

    Returns:
        What was changed, one line each.

    Raises:
        PublicationDriftError: The server refuses, for example because the role does not own every
            table; or another role created the publication, and it is incomplete.
    """
    wanted = sorted(set(tables))
    found = find(connection, name)
    if found is None:
        _run(connection, name, _CREATE, wanted)
        return [f"created publication {name} for {len(wanted)} tables"]
    changes = []
    if not found.complete or (found.ours and not found.generated):
        _alter(connection, name, _SET, (found, wanted))
        changes.append(f"publication {name} publishes every operation and stored generated columns")
    missing, _ = found.against(wanted)
    if missing:
        _alter(connection, name, _ADD, (found, missing))
        changes.append(f"added {', '.join(map(str, missing))} to publication {name}")
    return changes


def leave_out(connection: Connection[Any], name: str, tables: list[TableName]) -> list[str]:
    """Removes tables from a publication; returns what was changed.

    Raises:
        PublicationDriftError: The server refuses, or another role created the publication.
    """
    found = find(connection, name)
    if not tables or found is None:
        return []
    _alter(connection, name, _LEAVE_OUT, (found, tables))
    return [f"took {', '.join(map(str, tables))} out of publication {name}"]


def creation(name: str, tables: list[TableName]) -> sql.Composed:
    """Returns the statement that creates a publication as `ensure` does, on any server version."""
    made = _CREATE.format(sql.Identifier(name), _listed(tables), sql.SQL(_OPTIONS))
    text = made.as_string(None).removesuffix(")")
    return sql.SQL("DO {}").format(
        sql.Literal(
            f"BEGIN EXECUTE {sql.Literal(text).as_string(None)} || CASE WHEN"
            f" current_setting('server_version_num')::int >= {row_key.GENERATED_PUBLISHED_SINCE}"
            f" THEN ', {_GENERATED})' ELSE ')' END; END"
        )
    )


def drop(connection: Connection[Any], name: str) -> bool:
    """Drops a publication that this role created; returns whether it existed."""
    found = find(connection, name)
    if found is None or not found.ours:
        return False
    _run(connection, name, sql.SQL("DROP PUBLICATION IF EXISTS {}"), [])
    return True


def by_hand(connection: Connection[Any], name: str, tables: Iterable[TableName]) -> str:
    """Returns the statements by which its owner makes a foreign publication usable."""
    found = find(connection, name)
    if found is None:
        return ""
    if HEARTBEAT_TABLE not in found.tables:
        quoted = sql.Identifier(name).as_string(connection)
        return f"give this source another name, or, if nothing reads it: DROP PUBLICATION {quoted};"
    made = []
    if not found.complete or not found.generated:
        made.append(_statement(connection, name, _SET, []))
    if missing := found.against(tables)[0]:
        made.append(_statement(connection, name, _ADD, missing))
    return " ".join(f"{each.as_string(connection)};" for each in made)


def _alter(
    connection: Connection[Any],
    name: str,
    statement: sql.SQL,
    change: tuple[Publication, list[TableName]],
) -> None:
    found, tables = change
    if not found.ours:
        raise PublicationDriftError(
            (f"publication {name} was not created by Headwater with this role, and is not changed"),
            hint=by_hand(connection, name, tables) or None,
        )
    _run(connection, name, statement, tables)


def _statement(
    connection: Connection[Any], name: str, statement: sql.SQL, tables: list[TableName]
) -> sql.Composed:
    can = connection.info.server_version >= row_key.GENERATED_PUBLISHED_SINCE
    options = sql.SQL(f"{_OPTIONS}, {_GENERATED}" if can else _OPTIONS)
    return statement.format(sql.Identifier(name), _listed(tables), options)


def _listed(tables: list[TableName]) -> sql.Composed:
    # without ONLY, tables that inherit from one would be published too, and lose the right to
    # UPDATE and DELETE where they have no key of their own
    only = (sql.SQL("ONLY {}").format(sql.Identifier(t.schema, t.name)) for t in tables)
    return sql.SQL(", ").join(only)


def _run(
    connection: Connection[Any], name: str, statement: sql.SQL, tables: list[TableName]
) -> None:
    try:
        connection.execute(_statement(connection, name, statement, tables))
    except Error as error:
        raise PublicationDriftError(
            f"publication {name} cannot be created as required",
            detail=error.diag.message_primary or error.sqlstate,
            hint="CREATE PUBLICATION needs CREATE on the database and ownership of the "
            "tables; an administrator can create it beforehand",
        ) from error
