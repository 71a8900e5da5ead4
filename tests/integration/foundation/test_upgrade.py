"""An installation of the release before is upgraded, from a dump with a row in each table."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from cdc.postgres import escaped_topics, own_schema, session
from cdc.postgres.errors import SchemaOwnerError
from cdc.table import TableName
from cdc.upkeep import reconcile
from eventstore import EventData, EventStore, EventTypes
from eventstore.postgres import schema
from eventstore.postgres.log import PostgresEventLog
from foundation.migration import Migration, MigrationHistory
from tests.fix_services import fresh_database

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

DUMPS = Path(__file__).resolve().parents[2] / "dumps"
HEADWATER = ("headwater",)
EVENTSTORE = ("eventstore", "eventstore_keys")

COLUMNS = """
SELECT c.oid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       pg_get_expr(d.adbin, d.adrelid), a.attidentity::text
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relkind IN ('r', 'v') AND c.relnamespace = ANY (%s::regnamespace[])
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(oid), true, '', ''
  FROM pg_constraint WHERE connamespace = ANY (%s::regnamespace[]) AND contype <> 'n'
"""
INDEXES = """
SELECT indrelid::regclass::text, indexrelid::regclass::text, pg_get_indexdef(indexrelid), true,
       '', ''
  FROM pg_index JOIN pg_class c ON c.oid = indrelid
 WHERE c.relnamespace = ANY (%s::regnamespace[])
"""
FUNCTIONS = """
SELECT oid::regprocedure::text, '', prosrc, prosecdef, '', proconfig::text
  FROM pg_proc WHERE pronamespace = ANY (%s::regnamespace[])
"""
TABLES = """
SELECT oid::regclass::text FROM pg_class
 WHERE relkind = 'r' AND relnamespace = ANY (%s::regnamespace[]) ORDER BY 1
"""


def shape(connection: psycopg.Connection[Any], schemas: tuple[str, ...]) -> set[tuple[Any, ...]]:
    asked = (COLUMNS, CONSTRAINTS, INDEXES, FUNCTIONS)
    return {row for each in asked for row in connection.execute(each, (list(schemas),)).fetchall()}


def content(connection: psycopg.Connection[Any], schemas: tuple[str, ...]) -> dict[str, list[str]]:
    tables = [name for (name,) in connection.execute(TABLES, (list(schemas),)).fetchall()]
    texts = sql.SQL("SELECT t::text FROM {} t ORDER BY 1")
    return {
        table: [text for (text,) in connection.execute(texts.format(_identifier(table)))]
        for table in tables
    }


def _identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))


@pytest.fixture
def old(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A database as the release before has left it."""
    with psycopg.connect(database, autocommit=True) as restoring:
        for name in ("headwater", "eventstore"):
            restoring.execute((DUMPS / f"{name}.sql").read_bytes())
    with closing(session.connect(database)) as connection:
        yield connection


@pytest.fixture
def new(postgres_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A database that this release has made."""
    with fresh_database(postgres_dsn) as dsn, closing(session.connect(dsn)) as connection:
        own_schema.ensure(connection)
        schema.upgrade(dsn)
        yield connection


def test_an_upgrade_leaves_every_row_and_comes_to_what_a_new_installation_has(
    old: psycopg.Connection[Any], new: psycopg.Connection[Any], database: str
) -> None:
    before = content(old, (*HEADWATER, *EVENTSTORE))
    upgraded = own_schema.ensure(old), schema.upgrade(database)
    after = content(old, (*HEADWATER, *EVENTSTORE))

    assert {table: after[table] for table in before} == before
    assert [] == [table for table, rows in before.items() if not rows]
    first = set(own_schema._tables(own_schema._FIRST))
    assert first <= {table.removeprefix("headwater.") for table in before}
    assert shape(new, EVENTSTORE) == shape(old, EVENTSTORE)
    record = {row for row in shape(new, HEADWATER) if row[0] == "headwater.migrations"}
    assert shape(new, HEADWATER) - record == shape(old, HEADWATER) - record
    assert ([], []) == (own_schema.ensure(old), schema.upgrade(database))
    assert upgraded[1] == [name for name in upgraded[1] if name > "0006_reactors"]


def test_an_upgraded_event_store_goes_on_where_it_was(
    old: psycopg.Connection[Any], database: str
) -> None:
    schema.upgrade(database)
    schema.check(database)
    with closing(EventStore(PostgresEventLog(database), types=EventTypes())) as store:
        store.append("order-1", [EventData("order.shipped", {})], expected_version=2)
        types = [event.type for event in store.read_stream("order-1")]

    assert ["order.placed", "order.paid", "order.shipped"] == types


def test_a_migration_that_comes_later_is_recorded_with_those_before_it(
    old: psycopg.Connection[Any],
) -> None:
    """The release before had no record: what it has made counts as run."""
    later = Migration("cdc", "0003_later", "ALTER TABLE headwater.heartbeat ADD later int;")
    history = own_schema._HISTORY  # a later release's has one migration more
    next_history = MigrationHistory("headwater", (*history.migrations, later), history.adopted)
    ran = next_history.upgrade(old)
    rows = old.execute(
        "SELECT name, digest IS NULL FROM headwater.migrations ORDER BY 1"
    ).fetchall()

    assert ["0002_escaped_topics", "0003_later"] == [each.name for each in ran]
    assert [
        ("0001_capture", True),
        ("0001_views", True),
        ("0002_escaped_topics", False),
        ("0003_later", False),
        ("functions", True),
    ] == rows
    assert [] == next_history.upgrade(old)
    assert [later.name] == history.unknown(history.applied(old))


@pytest.mark.parametrize("escaped", [False, True])
def test_a_table_that_came_with_its_first_row_is_a_migration_of_an_upgrade(
    old: psycopg.Connection[Any], new: psycopg.Connection[Any], *, escaped: bool
) -> None:
    """The commit before had only the first migrations, and made the table of escaped topics."""
    history = own_schema._HISTORY
    MigrationHistory("headwater", own_schema._FIRST, history.adopted).upgrade(old, functions=True)
    if escaped:
        old.execute(
            "CREATE TABLE headwater.escaped_topics (source text, table_schema text,"
            " table_name text, PRIMARY KEY (source, table_schema, table_name))"
        )
        old.execute("INSERT INTO headwater.escaped_topics VALUES ('shop', 'public', 'a b')")
    before = content(old, HEADWATER)
    tables = {TableName("public", "a b")} if escaped else set()

    assert own_schema.exists(old)
    assert own_schema.pending(old)
    assert tables == escaped_topics.names(old, "shop").escaped
    assert ["added to schema headwater"] == own_schema.ensure(old)
    after = content(old, HEADWATER)
    record = before.pop("headwater.migrations"), after["headwater.migrations"]
    assert 1 == len(record[1]) - len(record[0])
    assert {table: after[table] for table in before} == before
    assert shape(new, HEADWATER) == shape(old, HEADWATER)
    assert tables == escaped_topics.names(old, "shop").escaped
    assert [] == own_schema.ensure(old)


def test_an_installation_that_lacks_what_came_last_gets_it(
    old: psycopg.Connection[Any], new: psycopg.Connection[Any]
) -> None:
    old.execute("ALTER TABLE headwater.captures DROP wal_at, DROP wal_lsn")
    old.execute("ALTER TABLE headwater.alert_episodes DROP until")
    old.execute("DROP TABLE headwater.alert_messages, headwater.sweeps")
    old.execute("DROP FUNCTION headwater.may_stream")
    changed = own_schema.ensure(old)

    assert ["created schema headwater"] == changed
    assert shape(new, HEADWATER) == shape(old, HEADWATER)
    assert 1 == len(content(old, HEADWATER)["headwater.captures"])


def test_an_older_schema_is_upgraded_by_what_up_and_apply_run(
    old: psycopg.Connection[Any],
) -> None:
    """Its tables are all there, so it was left as it was."""
    old.execute("ALTER TABLE headwater.alert_episodes DROP until")
    (step,) = reconcile._schema(old)
    done = step.do()

    (difference,) = step.differences
    assert "schema headwater: of an earlier release → upgraded" == str(difference)
    assert ["added to schema headwater"] == done
    assert [] == list(reconcile._schema(old))


def test_functions_are_replaced_when_their_text_has_changed(new: psycopg.Connection[Any]) -> None:
    assert not own_schema.pending(new)
    new.execute("UPDATE headwater.migrations SET digest = '00' WHERE name = 'functions'")
    new.execute(
        "CREATE OR REPLACE FUNCTION headwater.may_stream(capture text) RETURNS boolean"
        " LANGUAGE sql RETURN false"
    )

    assert own_schema.pending(new)
    assert ["added to schema headwater"] == own_schema.ensure(new)
    (body,) = new.execute(
        "SELECT prosrc FROM pg_proc WHERE oid = 'headwater.may_stream(text)'::regprocedure"
    ).fetchone() or ("",)
    assert "pg_replication_slots" in body
    assert [] == own_schema.ensure(new)


@pytest.fixture
def stranger(database: str) -> Iterator[str]:
    """How a role comes in that owns nothing; it may use the schema."""
    parts = urlsplit(database)
    name = f"r_{parts.path[3:]}"
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(name)))
    yield parts._replace(netloc=f"{name}:x@{parts.hostname}:{parts.port}").geturl()
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_role_without_rights_may_ask_and_is_refused_only_what_is_needed(
    old: psycopg.Connection[Any], stranger: str
) -> None:
    name = sql.Identifier(urlsplit(stranger).username or "")
    old.execute(sql.SQL("GRANT USAGE ON SCHEMA headwater TO {}").format(name))
    with closing(session.connect(stranger)) as connection:
        with pytest.raises(SchemaOwnerError, match="another role") as caught:
            own_schema.ensure(connection)
        assert "headwater source role" in (caught.value.hint or "")
        old.execute(own_schema.script().encode())  # what an administrator runs
        assert [] == own_schema.ensure(connection)
        old.execute(own_schema.script().encode())
    schema.check(stranger)
