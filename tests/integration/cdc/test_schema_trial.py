"""A migration is tried on copies: what it would make is what it makes, and nothing stays of it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc.column_rule import ColumnRules
from cdc.postgres import catalog, own_schema
from cdc.schema_change import history, trigger
from cdc.schema_change.shape import TableShape
from cdc.schema_change.trial import MigratedTable, MigrationError, try_migration
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

ORDERS, OTHER, DAYS = (TableName("public", name) for name in ("orders", "Other one", "days"))
TABLES = (ORDERS, OTHER, DAYS)
MADE = """
CREATE TYPE state AS ENUM ('new', 'paid');
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE orders (
    gone int, id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT orders_key PRIMARY KEY,
    customer int CONSTRAINT of_customer REFERENCES customers, state state DEFAULT 'new',
    total numeric(10,2) NOT NULL CHECK (total >= 0), price numeric(10,2), note varchar(20),
    twice numeric GENERATED ALWAYS AS (total * 2) STORED, code text NOT NULL);
ALTER TABLE orders DROP gone;
ALTER TABLE orders ADD flags int DEFAULT 3;
CREATE UNIQUE INDEX by_code ON orders (code);
CREATE INDEX "Of State" ON orders (state) WHERE total > 5;
CREATE TABLE "Other one" (id int, "a b" text, PRIMARY KEY (id));
ALTER TABLE "Other one" REPLICA IDENTITY FULL;
CREATE TABLE days (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM (0) TO (10);
INSERT INTO customers VALUES (1, 'a');
INSERT INTO orders (customer, total, note, code) SELECT 1, n, '5', n FROM generate_series(1, 9) n;
"""


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE.encode())
        own_schema.ensure(connection)
        trigger.ensure(connection)
        history.observe(connection, TABLES)
        yield connection


def shape_of(source: psycopg.Connection[Any], table: TableName) -> TableShape | None:
    latest = history.of_tables(source, [table])[table].latest
    assert latest is not None
    return latest.shape


def found(migrated: MigratedTable) -> TableShape | None:
    return None if migrated.shape is None else TableShape.of_json(migrated.shape)


@pytest.mark.parametrize(
    "migration",
    [
        "ALTER TABLE orders ADD channel text DEFAULT 'web'",
        "ALTER TABLE orders ADD seen timestamptz DEFAULT clock_timestamp()",
        "ALTER TABLE public.orders RENAME total TO amount",
        "ALTER TABLE PUBLIC . orders DROP note, DROP flags",
        "ALTER TABLE orders DROP note; ALTER TABLE orders ADD note text",
        "BEGIN;\nALTER TABLE orders ALTER note TYPE int USING note::int;\nCOMMIT;",
        "ALTER TABLE orders ALTER note TYPE text",
        "ALTER TABLE orders ALTER price TYPE numeric(12,2)",
        "ALTER TABLE orders ALTER flags TYPE bigint, ALTER state TYPE text",
        "ALTER TABLE orders DROP CONSTRAINT orders_key; ALTER TABLE orders ADD PRIMARY KEY (code)",
        (
            "ALTER TABLE orders DROP CONSTRAINT of_customer, ADD FOREIGN KEY (customer)"
            " REFERENCES public.customers (id) ON DELETE CASCADE"
        ),
        'ALTER TABLE orders REPLICA IDENTITY USING INDEX by_code; DROP INDEX public."Of State"',
        "ALTER TABLE orders ALTER twice DROP EXPRESSION",
        "ALTER TABLE orders RENAME TO purchases; ALTER TABLE purchases ADD x int",
        'ALTER TABLE public."Other one" RENAME "a b" TO c; ALTER TABLE "Other one" ADD d int',
        'ALTER TABLE "Other one" REPLICA IDENTITY DEFAULT; DROP TABLE orders',
        "ALTER TABLE days ADD v text",
        "CREATE INDEX CONCURRENTLY more ON orders (note)",
        "UPDATE orders SET note = 'x'; INSERT INTO customers VALUES (2, 'b')",
        "CREATE TABLE more (id int REFERENCES orders)",
    ],
)
def test_a_try_tells_what_the_migration_makes(
    source: psycopg.Connection[Any], database: str, migration: str
) -> None:
    before = {table: shape_of(source, table) for table in TABLES}
    rows = source.execute("SELECT * FROM orders ORDER BY id").fetchall()
    notes = source.execute("SELECT coalesce(max(id), 0) FROM headwater.schema_changes").fetchone()

    migrated = try_migration(database, TABLES, migration)

    assert before == {table: shape_of(source, table) for table in TABLES}
    assert rows == source.execute("SELECT * FROM orders ORDER BY id").fetchall()
    assert (
        []
        == source.execute(
            "SELECT 1 FROM pg_namespace WHERE nspname LIKE 'headwater_trial%'"
        ).fetchall()
    )
    for statement in migration.split(";"):  # CONCURRENTLY stands by itself
        source.execute(statement.encode())
    told = dict(
        source.execute(
            "SELECT table_oid, bool_or(rewritten) FROM headwater.schema_changes WHERE id > %s"
            " GROUP BY 1",
            notes,
        ).fetchall()
    )
    assert told == {each.oid: each.rewritten for each in migrated.values()}
    for table, each in migrated.items():
        now = shape_of(source, table)
        assert found(each) == now, table
        if now is not None:
            assert each.schema == catalog.describe(source, [now.table])[now.table]
        else:
            assert each.schema is None


def test_a_rule_for_columns_holds_for_what_is_tried(
    source: psycopg.Connection[Any], database: str
) -> None:
    rules = {ORDERS: ColumnRules(exclude=["note"])}
    migration = "ALTER TABLE orders ADD x int"
    migrated = try_migration(database, TABLES, migration, rules)[ORDERS]
    assert migrated.schema is not None
    assert {"note", "x"} & migrated.schema.by_name.keys() == {"x"}
    assert shape_of(source, ORDERS) is not None


@pytest.mark.parametrize(
    ("migration", "seen"),
    [
        ("ALTER TABLE orders DROP nothere", '42703: column "nothere" of relation'),
        ("SELECT 1;\nALTER TABL orders", "42601 in line 2: syntax error"),
        ("DROP TABLE customers", "2BP01: cannot drop"),
        ("SET search_path = public; ALTER TABLE orders DROP note", "no session waited"),
        ("DO $$ BEGIN EXECUTE 'DROP TABLE pub' || 'lic.orders'; END $$", "no session waited"),
        ("DROP SCHEMA public CASCADE", "no session waited"),
        ("DO $$ BEGIN COMMIT; END $$", "2D000: invalid transaction termination"),
        ("SELECT 1; ROLLBACK", "0A000: "),
        ("VACUUM orders", "25001: "),
    ],
)
def test_what_cannot_be_tried_is_refused_and_changes_nothing(
    source: psycopg.Connection[Any], database: str, migration: str, seen: str
) -> None:
    before = {table: shape_of(source, table) for table in TABLES}
    with pytest.raises(MigrationError) as refused:
        try_migration(database, TABLES, migration)
    assert seen in (refused.value.detail or "")
    assert before == {table: shape_of(source, table) for table in TABLES}
    assert (9,) == source.execute("SELECT count(*) FROM orders").fetchone()


def test_tables_whose_names_need_quotes_are_copied(
    source: psycopg.Connection[Any], database: str
) -> None:
    lines = TableName('a"b', "order lines")
    source.execute(
        'CREATE SCHEMA "a""b"; CREATE TABLE "a""b"."order lines" (id int);'
        'CREATE TABLE "a""b"."un""captured" (id int)'
    )
    history.observe(source, [lines])
    dsn = make_conninfo(database, options='-csearch_path="a""b",public')
    migration = 'ALTER TABLE "order lines" ADD x int; ALTER TABLE "a""b"."un""captured" ADD y int'
    with psycopg.connect(dsn) as reader:  # a real table would be altered after it only
        reader.execute('SELECT FROM "order lines", "un""captured"')
        migrated = try_migration(dsn, [*TABLES, lines], migration)

    assert {lines} == migrated.keys()
    assert {"id", "x"} == migrated[lines].schema.by_name.keys()
    assert not catalog.describe(source, [lines])[lines].by_name.keys() & {"x"}


def test_whoever_writes_does_not_wait_and_is_not_waited_for(
    source: psycopg.Connection[Any], database: str
) -> None:
    with psycopg.connect(database) as writer:
        writer.execute("UPDATE orders SET total = total + 1")  # and does not commit
        migrated = try_migration(database, TABLES, "ALTER TABLE orders ADD x int DEFAULT random()")
        assert {ORDERS} == migrated.keys()
        assert migrated[ORDERS].rewritten
        writer.execute("ALTER TABLE orders ADD y int")
        with pytest.raises(MigrationError, match=r"orders is being altered now"):
            try_migration(database, TABLES, "ALTER TABLE orders ADD x int")
        writer.rollback()
        assert (9,) == source.execute("SELECT count(*) FROM orders").fetchone()


def test_two_tries_at_once_do_not_meet(source: psycopg.Connection[Any], database: str) -> None:
    told: list[object] = []

    def one(number: int) -> None:
        told.append(
            try_migration(database, TABLES, f"ALTER TABLE orders ADD c_{number} int").keys()
        )

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [{ORDERS}] * 3 == told
    assert (9,) == source.execute("SELECT count(*) FROM orders").fetchone()
