"""Databases by chance are captured at the source, and the application goes on as before.

`tests/support/database_grammar.py` says what there can be. Each example is a transaction that is
rolled back: the application's statements run, are undone, the tables are published as `headwater
up` does it, and the same statements run again. A failure prints the statements that lead to it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from psycopg import sql

from cdc.capture import OWN_TABLES
from cdc.postgres import catalog, own_schema, preflight, publication, session
from cdc.postgres.check import CheckState
from cdc.schema_change import history, trigger
from cdc.table import TableName
from tests.support.database_attempts import ATTEMPT, NOT_LOGGED, attempt
from tests.support.database_grammar import COPIED, Database, databases, q
from tests.support.pgoutput import Folded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import psycopg

    from cdc.table import TableSchema

pytestmark = pytest.mark.integration

PUBLICATION: Final = "headwater_any"

_COLUMNS: Final = """
SELECT coalesce(array_agg(a.attname::text), '{}') FROM pg_attribute a
  JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
_TABLES: Final = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition
 ORDER BY 2
"""

_PARTITIONED: Final = """
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'p'
"""
_few = settings(
    max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
_SHARDS: Final = 12
"""Tests that thousands of examples are shared out to, so that none takes minutes by itself."""


@dataclass(frozen=True)
class Survey:
    """Tables that can be captured, and why each other one is not."""

    tables: tuple[TableName, ...]
    left_out: dict[TableName, str]


class Source:
    """A database with Headwater's schema and event triggers, and a session in it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.warnings: list[str] = []
        connection.add_notice_handler(self._note)

    def _note(self, told: Any) -> None:
        if "headwater" in (told.message_primary or ""):
            self.warnings.append(told.message_primary)

    def attempt(self, path: str, statements: Sequence[str]) -> list[str]:
        """Runs statements; returns an empty text or what is wrong for each."""
        return attempt(self.connection, path, statements)

    def rows(self, query: str, arguments: tuple[Any, ...]) -> list[Any]:
        """Answers a query."""
        return self.connection.execute(query.encode(), arguments).fetchall()


@pytest.fixture
def source(database: str) -> Iterator[Source]:
    with session.connect(database) as connection:
        own_schema.ensure(connection)
        trigger.ensure(connection)
        connection.execute(ATTEMPT.encode())
        connection.prepare_threshold = None
        yield Source(connection)
        # the file is the server's, which may run as another user
        connection.execute(f"COPY (SELECT) TO PROGRAM 'rm -f {COPIED}'".encode())


@contextmanager
def undone(connection: psycopg.Connection[Any]) -> Iterator[None]:
    with connection.transaction(force_rollback=True):
        yield


def check(source: Source, database: Database) -> None:
    """Captures a database at its source, and compares what the application can do."""
    connection, path = source.connection, q(database.schema)
    source.warnings.clear()
    with undone(connection):
        connection.execute(f"CREATE SCHEMA {path}".encode())
        connection.execute("SET LOCAL event_triggers = off")
        made = source.attempt(path, database.made)
        note(script(database, made))
        with undone(connection):
            before = source.attempt(path, database.done)
        connection.execute("SET LOCAL event_triggers = on")
        seen = survey(source, database)
        captured = (*seen.tables, *OWN_TABLES)
        every_column_is_named(source, seen)
        publication.ensure(connection, PUBLICATION, captured)
        history.observe(connection, seen.tables)
        found = publication.find(connection, PUBLICATION)
        assert found is not None
        assert set(captured) == found.tables
        after = source.attempt(path, database.done)
    for statement, could, can in zip(database.done, before, after, strict=True):
        assert could or not can, f"refused now: {statement}\n{can}\nleft out: {seen.left_out}"
    assert not source.warnings


def survey(source: Source, database: Database) -> Survey:
    """Chooses tables as `headwater init` does: what nothing speaks against."""
    there = [TableName(*row) for row in source.rows(_TABLES, (database.schema,))]
    told = preflight.checks(
        source.connection, source="any", tables=there, slot="headwater_any", publication=PUBLICATION
    )
    refused = {check.name: check.message for check in told if check.state is CheckState.FAIL}
    left_out = {table: refused[name] for table in there if (name := f"table {table}") in refused}
    return Survey(tuple(table for table in there if table not in left_out), left_out)


def every_column_is_named(source: Source, seen: Survey) -> None:
    """Each column of a captured table is captured, or is among those that are said to be not."""
    described = catalog.describe(source.connection, seen.tables)
    left_out = catalog.generated_columns(source.connection, seen.tables)
    for table in seen.tables:
        ((columns,),) = source.rows(_COLUMNS, (table.schema, table.name))
        assert set(columns) == {*described[table].by_name, *left_out.get(table, ())}
        assert set(described[table].key) <= set(described[table].by_name)


def check_log(source: Source, database: Database) -> None:
    """The log has every row of each captured table with a key, under its key, to the last value."""
    connection, path = source.connection, q(database.schema)
    connection.execute(f"CREATE SCHEMA {path}".encode())
    try:
        made = source.attempt(path, database.made)
        note(script(database, made))
        seen = survey(source, database)
        publication.ensure(connection, PUBLICATION, (*seen.tables, *OWN_TABLES))
        connection.execute("SELECT pg_create_logical_replication_slot('any_log', 'pgoutput')")
        rows = [statement for statement in database.done if not statement.startswith(NOT_LOGGED)]
        source.attempt(path, rows)
        described = catalog.describe(connection, seen.tables)
        keyed = {(t.schema, t.name): s.key for t, s in described.items() if s.key}
        folded = Folded({(t.schema, t.name): s.key for t, s in described.items()})
        folded.read(connection, "any_log", PUBLICATION)
        for table, key in keyed.items():
            schema = described[TableName(*table)]
            found = folded.rows.get(table, {})
            assert stored(source, schema) == found, (table, key)
    finally:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = 'any_log'"
        )
        publication.drop(connection, PUBLICATION)
        connection.execute(f"DROP SCHEMA {path} CASCADE".encode())


def stored(source: Source, schema: TableSchema) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows of a table alone, as texts, by key."""
    names = [column.name for column in schema.columns]
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
    of = sql.Identifier(schema.table.schema, schema.table.name)
    partitioned = source.rows(_PARTITIONED, (schema.table.schema, schema.table.name))
    query = sql.SQL("SELECT {} FROM {}{}").format(
        texts, sql.SQL("" if partitioned else "ONLY "), of
    )
    with source.connection.transaction():
        source.connection.execute("SET LOCAL TimeZone = 'UTC'")
        rows = source.connection.execute(query).fetchall()
    whole = [dict(zip(names, row, strict=True)) for row in rows]
    return {tuple(row[name] for name in schema.key): row for row in whole}


def script(database: Database, made: Sequence[str]) -> str:
    """What leads to a failure, without the statements that the server refused anyway."""
    taken = [text for text, wrong in zip(database.made, made, strict=True) if not wrong]
    return repr(Database(database.schema, taken, database.done))


def test_an_application_goes_on_with_any_database(source: Source) -> None:
    assert _run(source, _few) >= _few.max_examples


@pytest.mark.soak(minutes=1)
@pytest.mark.parametrize("shard", range(_SHARDS))
def test_an_application_goes_on_with_thousands_of_databases(
    source: Source, run_seed: int, shard: int
) -> None:
    assert _run(source, settings(_few, max_examples=500), seeded=f"{run_seed} {shard}") >= 500


def test_the_log_of_any_database_has_every_row_under_its_key(source: Source) -> None:
    source.connection.execute("SET TimeZone = 'UTC'")
    assert _run(source, settings(_few, max_examples=40), check_log) >= 40


@pytest.mark.soak(minutes=1)
@pytest.mark.parametrize("shard", range(_SHARDS))
def test_the_log_of_hundreds_of_databases_has_every_row_under_its_key(
    source: Source, run_seed: int, shard: int
) -> None:
    source.connection.execute("SET TimeZone = 'UTC'")
    many = settings(_few, max_examples=90)
    assert _run(source, many, check_log, seeded=f"{run_seed} {shard}") >= 90


def _run(
    source: Source,
    how: settings,
    checked: Callable[[Source, Database], None] = check,
    *,
    seeded: str | None = None,
) -> int:
    """Checks generated databases; returns how many had no fault."""
    passed = 0

    @how
    @given(databases())
    def each(database: Database) -> None:
        nonlocal passed
        checked(source, database)
        passed += 1

    (each if seeded is None else seed(seeded)(each))()
    return passed
