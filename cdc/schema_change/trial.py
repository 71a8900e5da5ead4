"""Trial of a migration: determines its effect on captured tables, on empty copies of them.

The source is not changed, and no session waits. Each captured table, and each other table that the
migration names, is copied without its rows into a temporary schema that comes first in the search
path; schema-qualified names are rewritten to the copies. The migration runs there, and everything
is rolled back. A second session holds writers' locks on the original tables. A statement that
reaches an original table is therefore refused, and does not block other sessions.

Effects on rows are not determined: they arrive as changes in the log.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from cdc.errors import CdcError
from cdc.postgres import catalog, session
from cdc.schema_change.trigger import SHAPE
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cdc.column_rule import ColumnRules
    from cdc.table import TableSchema

    Connection = psycopg.Connection[Any]

LOCK_WAIT_MS: Final = 200
"""How long a statement of a migration waits for another session's lock before it is refused."""

RUN_MAX_S: Final = 30
"""How long a migration may take: it works on empty tables."""

_SCHEMA: Final = "headwater_trial_"
_OWN: Final = ("headwater", "eventstore", "eventstore_keys", "information_schema")
_TABLES: Final = """
SELECT n.nspname, c.relname, c.oid::bigint
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND n.nspname <> ALL (%s)
   AND n.nspname !~ '^pg_'
"""
_NAMED: Final = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%(oids)s)
    OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = ANY (%(oids)s))
 ORDER BY length(n.nspname) + length(c.relname) DESC
"""
# Keys precede the constraints that refer to them; references to tables without a copy are omitted.
_CONSTRAINTS: Final = """
SELECT conrelid::bigint, conname, pg_get_constraintdef(oid) FROM pg_constraint
 WHERE conrelid = ANY (%(oids)s)
   AND (contype IN ('p', 'u', 'x') OR contype = 'f' AND confrelid = ANY (%(oids)s))
 ORDER BY contype = 'f', conrelid, conname
"""
_INDEXES: Final = """
SELECT pg_get_indexdef(indexrelid) FROM pg_index i
 WHERE indrelid = ANY (%s)
   AND NOT EXISTS (SELECT FROM pg_constraint c
                    WHERE c.conindid = i.indexrelid AND c.contype IN ('p', 'u', 'x'))
"""
_IDENTITY: Final = """
SELECT c.oid::bigint, c.relreplident,
       (SELECT r.relname FROM pg_index i JOIN pg_class r ON r.oid = i.indexrelid
         WHERE i.indrelid = c.oid AND i.indisreplident)
  FROM pg_class c WHERE c.oid = ANY (%s) AND c.relreplident <> 'd'
"""
_STATE: Final = f"""
SELECT n.nspname, k.relname, k.relfilenode::bigint, s.shape,
       (SELECT jsonb_object_agg(attname, attnum) FROM pg_attribute
         WHERE attrelid = k.oid AND attnum > 0 AND NOT attisdropped) AS numbers
  FROM pg_class k JOIN pg_namespace n ON n.oid = k.relnamespace
 CROSS JOIN LATERAL ({SHAPE.format(oid="k.oid")}) AS s (shape)
 WHERE k.oid = %s
"""  # noqa: S608  # built from constants only
_SETTINGS: Final = (
    "SELECT set_config('search_path', %s, true), set_config('headwater.migration', %s, true)"
)
_QUALIFIED: Final = "SET LOCAL search_path = pg_catalog, pg_temp"
_RUN: Final = "DO $run$ BEGIN EXECUTE current_setting('headwater.migration'); END $run$"
_TRANSACTION: Final = re.compile(
    r"^[ \t]*(BEGIN|COMMIT|START\s+TRANSACTION)(\s+(TRANSACTION|WORK))?[ \t]*;",
    re.IGNORECASE | re.MULTILINE,
)
_CONCURRENTLY: Final = re.compile(r"\bCONCURRENTLY\b", re.IGNORECASE)


class MigrationError(CdcError):
    """A migration cannot be tested, or fails on the present tables."""

    code = "HW-C088"


@dataclass(frozen=True, slots=True)
class MigratedTable:
    """A captured table that a migration changes.

    Attributes:
        oid: The table.
        shape: Its shape afterwards, in the form of `trigger.SHAPE`; None if it was dropped.
        rewritten: Whether its rows get values that are not in the log.
        schema: Its schema for views, under its new name; None if it was dropped.
    """

    oid: int
    shape: Mapping[str, Any] | None
    rewritten: bool
    schema: TableSchema | None


def try_migration(
    dsn: str,
    tables: Iterable[TableName],
    migration: str,
    rules: Mapping[TableName, ColumnRules] | None = None,
) -> dict[TableName, MigratedTable]:
    """Tries a migration, and rolls it back.

    Args:
        dsn: The source; the role needs the privilege to create schemas.
        tables: The captured tables.
        migration: SQL statements, such as `ALTER TABLE`; their own BEGIN and COMMIT are ignored.
        rules: Column rules, by table.

    Returns:
        The captured tables that the migration changes, by their present names.

    Raises:
        MigrationError: It fails, or affects an original table.
        PostgresError: The source does not answer.
    """
    with session.connect(dsn) as connection, session.connect(dsn) as holder:
        with connection.transaction(force_rollback=True):
            wanted = _wanted(connection, set(tables), migration)
            with _held(holder, wanted), _translating_errors(migration):
                copies = _Copies(connection, wanted)
                before = {table: copies.state(table) for table in tables if table in wanted}
                copies.run(migration)
                found = {
                    table: copies.migrated(table, state, rules or {})
                    for table, state in before.items()
                }
        return {table: migrated for table, migrated in found.items() if migrated is not None}


def _wanted(connection: Connection, tables: set[TableName], migration: str) -> dict[TableName, int]:
    """Returns the tables to copy: captured ones, and those that the text names."""
    words = {word.lower() for word in re.findall(r"[\w$]+", migration)}

    def named(table: str) -> bool:
        # a name that needs quotes can consist of several words
        return table.lower() in words or table.replace('"', '""') in migration

    found = connection.execute(_TABLES, (list(_OWN),)).fetchall()
    return {
        TableName(schema, name): oid
        for schema, name, oid in found
        if TableName(schema, name) in tables or named(name)
    }


@contextmanager
def _held(holder: Connection, tables: Iterable[TableName]) -> Iterator[None]:
    """Locks tables as a writer does, which blocks DDL on them."""
    with holder.transaction(force_rollback=True):
        holder.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}".encode())
        for table in tables:
            name = sql.Identifier(table.schema, table.name)
            try:
                with holder.transaction():
                    holder.execute(sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE").format(name))
            except psycopg.errors.InsufficientPrivilege:
                continue  # a role that may not write may not change the table either
            except psycopg.errors.LockNotAvailable:
                raise MigrationError(
                    f"table {table} is being altered now",
                    hint="retry after the change",
                ) from None
        yield


@contextmanager
def _translating_errors(migration: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        raise MigrationError(
            "the migration touches a real table, not its copy",
            detail="nothing was changed, and no session waited",
            hint="name tables as usual, without SET search_path, and leave out statements "
            "that drop schemas, types or extensions with CASCADE",
        ) from None
    except psycopg.Error as error:
        message = error.diag.message_primary or type(error).__name__
        raise MigrationError(
            "the migration fails on the present tables",
            detail=f"{error.sqlstate}{_line(error, migration)}: {message}",
            hint="it ran on copies without rows; nothing was changed",
        ) from None


def _line(error: psycopg.Error, migration: str) -> str:
    """Returns the line of the text that an error refers to, as a phrase; empty if unknown."""
    place = error.diag.internal_position
    if not place or not place.isdigit() or error.diag.internal_query is None:
        return ""
    before = error.diag.internal_query[: int(place) - 1]
    # rewriting names to the copies does not change line numbers
    return f" in line {before.count(chr(10)) + 1}" if migration.count("\n") else ""


@dataclass(frozen=True, slots=True)
class _State:
    """A table at one moment: its name, its file, its shape, and the numbers of its columns."""

    oid: int
    table: TableName
    file: int
    shape: dict[str, Any]
    numbers: dict[str, int]


class _Copies:
    """Copies of tables without their rows, in the caller's transaction."""

    def __init__(self, connection: Connection, tables: Mapping[TableName, int]) -> None:
        self._connection = connection
        self._oids = dict(tables)
        connection.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}".encode())
        connection.execute(f"SET LOCAL statement_timeout = '{RUN_MAX_S}s'".encode())
        path = connection.execute(
            "SELECT current_schemas(false)::text[], current_setting('search_path')"
        ).fetchone()
        self._path: list[str] = list(path[0]) if path else []
        self._own_path: str = path[1] if path else ""
        schemas = sorted({table.schema for table in tables} | {*self._path})
        process = connection.info.backend_pid  # another session may run a trial, too
        self._places = {schema: f"{_SCHEMA}{process}_{n}" for n, schema in enumerate(schemas)}
        # from here on, Postgres returns schema-qualified names
        connection.execute(_QUALIFIED.encode())
        self._names = self._named()
        self._make()
        self._copies = {table: self._oid(table) for table in tables}

    def run(self, migration: str) -> None:
        first = [self._places[schema] for schema in self._path]
        others = [place for place in self._places.values() if place not in first]
        path = sql.SQL(", ").join(map(sql.Identifier, (*first, *others, *self._path)))
        text = _CONCURRENTLY.sub("", _TRANSACTION.sub("", self._turned(migration)))
        self._connection.execute(_SETTINGS, (path.as_string(self._connection), text))
        # a DO block, in which Postgres refuses COMMIT
        self._connection.execute(_RUN.encode())
        self._connection.execute(_QUALIFIED.encode())

    def state(self, table: TableName) -> _State:
        found = self._state(self._copies[table])
        if found is None:  # it was created in this transaction
            raise MigrationError(f"table {table} could not be copied")
        return found

    def migrated(
        self, table: TableName, before: _State, rules: Mapping[TableName, ColumnRules]
    ) -> MigratedTable | None:
        """Returns the effect on a table; None if it is unchanged."""
        own, after = self._state(self._oids[table]), self._state(before.oid)
        if own is None or after is None:
            return MigratedTable(self._oids[table], None, rewritten=False, schema=None)
        place = {place: schema for schema, place in self._places.items()}
        name = TableName(place.get(after.table.schema, after.table.schema), after.table.name)
        shape, rewritten = _mapped(own, before, after, name), after.file != before.file
        if shape == _mapped(own, before, before, table) and not rewritten:
            return None
        # with the usual search path, so that type names are the same as elsewhere
        self._connection.execute("SELECT set_config('search_path', %s, true)", (self._own_path,))
        described = catalog.describe(self._connection, [after.table])[after.table]
        self._connection.execute(_QUALIFIED.encode())
        schema = replace(described, table=name)
        if table in rules:
            schema = rules[table].applied(schema)
        return MigratedTable(own.oid, shape, rewritten, schema)

    def _state(self, oid: int) -> _State | None:
        row = self._connection.execute(_STATE.encode(), (oid,)).fetchone()
        if row is None:
            return None
        schema, name, file, shape, numbers = row
        return _State(oid, TableName(schema, name), file, shape, numbers or {})

    def _make(self) -> None:
        execute, oids = self._connection.execute, list(self._oids.values())
        for place in self._places.values():
            execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(place)))
        of_oid = {oid: table for table, oid in self._oids.items()}
        for table in self._oids:
            like = sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES)")
            execute(like.format(self._copy(table), sql.Identifier(table.schema, table.name)))
        for oid, name, text in execute(_CONSTRAINTS, {"oids": oids}).fetchall():
            add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} ").format(
                self._copy(of_oid[oid]), sql.Identifier(name)
            )
            execute(add.as_bytes(self._connection) + self._turned(text).encode())
        for (text,) in execute(_INDEXES, (oids,)).fetchall():
            execute(self._turned(text).encode())
        for oid, kind, index in execute(_IDENTITY, (oids,)).fetchall():
            using = sql.SQL("USING INDEX {}").format(sql.Identifier(index or ""))
            how = {"f": sql.SQL("FULL"), "n": sql.SQL("NOTHING"), "i": using}[kind]
            identity = sql.SQL("ALTER TABLE {} REPLICA IDENTITY {}")
            execute(identity.format(self._copy(of_oid[oid]), how))

    def _copy(self, table: TableName) -> sql.Identifier:
        return sql.Identifier(self._places[table.schema], table.name)

    def _oid(self, table: TableName) -> int:
        name = self._copy(table).as_string(self._connection)
        row = self._connection.execute("SELECT to_regclass(%s)::oid::bigint", (name,)).fetchone()
        return int(row[0]) if row else 0

    def _named(self) -> list[tuple[str, str]]:
        rows = self._connection.execute(_NAMED, {"oids": list(self._oids.values())})
        return [(schema, name) for schema, name in rows.fetchall()]

    def _turned(self, text: str) -> str:
        """Rewrites schema-qualified names of tables and indexes in a text to the copies."""
        for schema, name in self._names:
            pattern = rf"(?<![\w$.\"]){_spelled(schema)}\s*\.\s*(?={_spelled(name)}(?![\w$\"]))"
            text = re.sub(pattern, f'"{self._places[schema]}".', text)
        return text


def _spelled(name: str) -> str:
    """Returns a pattern for an identifier: quoted, or in any case if it needs no quotes."""
    quoted = '"' + re.escape(name.replace('"', '""')) + '"'
    return f"(?:{quoted}|(?i:{re.escape(name)}))" if name == name.lower() else quoted


def _mapped(own: _State, before: _State, after: _State, name: TableName) -> dict[str, Any]:
    """Returns the shape of a copy, with the column numbers of the original table.

    A copy has no gaps for dropped columns. A new column gets the next number of the original. The
    default that older rows have in a column (`missing`) is known only from the original.
    """
    numbers = {number: own.numbers[column] for column, number in before.numbers.items()}
    more = own.shape["last_number"] - before.shape["last_number"]

    def number_of(number: int) -> int:
        return int(numbers.get(number, number + more))

    known = {column["number"]: column for column in own.shape["columns"]}
    columns = []
    for column in after.shape["columns"]:
        there = known.get(number_of(column["number"]))
        # rewritten rows have a stored value in every column
        kept = there is not None and before.file == after.file
        missing = there["missing"] if there is not None and kept else column["missing"]
        columns.append(column | {"number": number_of(column["number"]), "missing": missing})
    return after.shape | {
        "oid": own.oid,
        "schema": name.schema,
        "table": name.name,
        "columns": sorted(columns, key=lambda column: column["number"]),
        "key": [number_of(number) for number in after.shape["key"]],
        "partitions": own.shape["partitions"],
        "last_number": after.shape["last_number"] + more,
    }
