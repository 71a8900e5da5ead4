"""Tables of every shape are captured; those that need no capture of their own share one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import psycopg
import pytest
from psycopg import sql

from cdc import source
from cdc.postgres import catalog, publication, session, slot
from cdc.table import TableName
from cdc.values import UNCHANGED, decoder
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@dataclass(frozen=True, slots=True)
class Kept:
    """A table with columns `id` and `code`.

    Attributes:
        columns: All its columns.
        identity: Its replica identity; `{table}` is its name.
        key: The columns of its key.
        more: Values of the columns behind `code`.
    """

    columns: str
    identity: str
    key: tuple[str, ...]
    more: str = ""


KEPT = {
    "kept_0": Kept("id int PRIMARY KEY, code text", "DEFAULT", ("id",)),
    "kept_1": Kept("id int PRIMARY KEY, code text", "FULL", ("id",)),
    "kept_2": Kept("id int, code text, PRIMARY KEY (code, id)", "DEFAULT", ("code", "id")),
    "kept_3": Kept("id int PRIMARY KEY, code text NOT NULL UNIQUE",
                   "USING INDEX {table}_code_key", ("code",)),
    "kept_4": Kept("id int NOT NULL UNIQUE, code text", "USING INDEX {table}_id_key", ("id",)),
    "kept_5": Kept("id int, code text NOT NULL, b int NOT NULL, UNIQUE (code, b), UNIQUE (code)",
                   "DEFAULT", ("code",), ", 1"),
    "kept_6": Kept("id int, code text UNIQUE", "DEFAULT", ()),
    "kept_7": Kept("id int, code text", "FULL", ()),
    "kept_8": Kept("id int, code text, PRIMARY KEY (id) INCLUDE (code)", "DEFAULT", ("id",)),
    "kept_9": Kept("id int NOT NULL, code text, UNIQUE (id) INCLUDE (code)", "FULL", ("id",)),
    "kept_10": Kept("id int, code text, m text GENERATED ALWAYS AS (lower(code)) STORED,"
                    " PRIMARY KEY (id, m)", "DEFAULT", ("id", "m")),
    "kept_11": Kept("id int PRIMARY KEY, code text,"
                    " made text GENERATED ALWAYS AS (lower(code)) STORED", "FULL", ("id",)),
}  # fmt: skip
ODD = "Odd, schema.T.1 (x)|$"
NAMES = ("Order No", "a:b", "a,b", "pay$id", "(id)", "ключ")
NAMED = f"""
    CREATE TABLE "acme.com"."t;1" (
        {", ".join(f'"{name}" int NOT NULL' for name in NAMES)}, id int,
        UNIQUE ({", ".join(f'"{name}"' for name in NAMES)})
    )
"""


@pytest.fixture(scope="module")
def captured(module_database: str, module_capture: Callable[..., Captured]) -> Captured:
    """Tables of the tests that need no capture of their own, each of one test alone."""
    run(module_database,
        "CREATE TABLE large (id int PRIMARY KEY, n int, t text, b bytea NOT NULL"
        " DEFAULT 'x', j jsonb, a text[], i int[], u uuid[], d numeric)",
        "ALTER TABLE large ALTER t SET STORAGE external, ALTER b SET STORAGE external,"
        " ALTER j SET STORAGE external, ALTER a SET STORAGE external, ALTER i SET STORAGE external,"
        " ALTER u SET STORAGE external, ALTER d SET STORAGE external",
        "INSERT INTO large SELECT 1, 1, repeat('x', 9000), convert_to(repeat('y', 9000), 'UTF8'),"
        " to_jsonb(repeat('z', 9000)), array_agg('w' || g), array_agg(g),"
        " array_agg(gen_random_uuid()), repeat('123456789', 900)::numeric"
        " FROM generate_series(1, 3000) g",
        'CREATE SCHEMA "Odd, schema"',
        'CREATE TABLE "Odd, schema"."T.1 (x)|$" (id int PRIMARY KEY, "a b.c""d" int, "select" int)',
        'CREATE TABLE "Odd, schema"."T.1 (X)|$" (id int PRIMARY KEY)',
        'INSERT INTO "Odd, schema"."T.1 (X)|$" VALUES (1)',
        "CREATE TABLE parted (id int PRIMARY KEY, t text) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_a PARTITION OF parted FOR VALUES FROM (-10) TO (10)",
        "INSERT INTO parted VALUES (1, 'snapshot')",
        'CREATE SCHEMA "acme.com"', NAMED,
        'ALTER TABLE "acme.com"."t;1" REPLICA IDENTITY FULL',
    )  # fmt: skip
    for table, kept in KEPT.items():
        run(module_database, f"CREATE TABLE {table} ({kept.columns})",
            f"ALTER TABLE {table} REPLICA IDENTITY {kept.identity.format(table=table)}",
            f"INSERT INTO {table} VALUES (1, 'a'{kept.more})",  # noqa: S608
        )  # fmt: skip
    return module_capture(
        "public.large", ODD, "public.parted", '"acme.com".t;1', *(f"public.{name}" for name in KEPT)
    )


def test_a_large_value_that_an_update_leaves_alone_is_known_as_unchanged(
    captured: Captured,
) -> None:
    captured.execute("UPDATE large SET n = 2 WHERE id = 1")

    update = captured.events("large")[-1]

    with session.connect(captured.database) as connection:
        table = TableName("public", "large")
        row = decoder(catalog.describe(connection, [table])[table])(update.after or {})
    assert {"id": 1, "n": 2} | dict.fromkeys("tbjaiud", UNCHANGED) == row


def test_names_that_need_quotes_are_captured_and_only_they(captured: Captured) -> None:
    captured.execute('INSERT INTO "Odd, schema"."T.1 (x)|$" VALUES (1, 2, 3)')

    topic = TableName.parse(ODD).topic(captured.spec.name)
    captured.execute('INSERT INTO "Odd, schema"."T.1 (x)|$" VALUES (-1)')
    (record,) = captured.read(topic, lambda record: record.key == b'{"id":-1}')

    assert f"{captured.spec.name}.Odd__schema.T.1__x___" == topic
    assert b'"after":{"id":1,"a b.c\\"d":2,"select":3}' in record.value


def test_partitions_appear_as_their_root_those_of_the_snapshot_and_later_ones_too(
    captured: Captured,
) -> None:
    captured.execute(
        "CREATE TABLE parted_b PARTITION OF parted FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parted VALUES (11, 'later')",
        "UPDATE parted SET id = 2 WHERE id = 11",
    )

    events = captured.events("parted")

    told = [(str(event.operation), (event.key or {})["id"]) for event in events]
    assert [("r", 1), ("c", 11), ("d", 11), ("c", 2)] == told


@pytest.mark.parametrize("table", KEPT)
def test_the_key_of_a_record_is_the_key_that_the_catalog_tells(
    captured: Captured, table: str
) -> None:
    kept, name = KEPT[table], TableName("public", table)
    captured.execute(f"INSERT INTO {table} VALUES (2, 'b'{kept.more})")  # noqa: S608
    if kept.identity != "DEFAULT" or "PRIMARY" in kept.columns:
        captured.execute(f"DELETE FROM {table} WHERE id = 1")  # noqa: S608
    captured.execute(f"INSERT INTO {table} VALUES (-1, 'mark'{kept.more})")  # noqa: S608

    records = captured.read(
        name.topic(captured.spec.name), lambda record: b'"code":"mark"' in (record.value or b"")
    )

    with session.connect(captured.database) as connection:
        schema = catalog.describe(connection, [name])[name]
    assert kept.key == schema.key
    if "UNIQUE" not in kept.columns or kept.key:  # Debezium takes an index with NULLs; we do not
        assert {frozenset(kept.key)} == {frozenset(orjson.loads(r.key or b"{}")) for r in records}


def test_key_columns_of_any_name_are_the_key_and_no_other_column_is(captured: Captured) -> None:
    captured.execute('INSERT INTO "acme.com"."t;1" SELECT 1, 2, 3, 4, 5, 6, 7')

    topic = TableName("acme.com", "t;1").topic(captured.spec.name)
    captured.execute('INSERT INTO "acme.com"."t;1" SELECT -1, 2, 3, 4, 5, 6, 7')
    (record,) = captured.read(topic, lambda record: b"-1" in (record.key or b""))

    assert dict(zip(NAMES, range(1, 7), strict=True)) == orjson.loads(record.key)


def test_stored_generated_columns_are_read_and_streamed_and_children_are_left_alone(
    database: str, capture: Callable[..., Captured]
) -> None:
    run(database, "CREATE TABLE priced (id int PRIMARY KEY, net int, gross int GENERATED ALWAYS"
        " AS (net * 2) STORED, shown int GENERATED ALWAYS AS (net + 1) VIRTUAL)",
        "CREATE TABLE child (more int) INHERITS (priced)",
        "INSERT INTO priced VALUES (1, 10)",
        "INSERT INTO child VALUES (7, 70, DEFAULT, DEFAULT, 1)",
    )  # fmt: skip
    captured = capture("public.priced", insert_only=frozenset())
    captured.execute(
        "INSERT INTO priced VALUES (2, 20)",
        "UPDATE priced SET net = 11 WHERE id = 1",
        "ALTER TABLE priced ADD COLUMN later int GENERATED ALWAYS AS (net * 3) STORED",
        "UPDATE priced SET net = 22 WHERE id = 2",
        "UPDATE child SET net = 1", "DELETE FROM child",
    )  # fmt: skip

    assert [] == source.plan(captured.spec)
    rows = [dict(event.after or {}) for event in captured.events("priced")]
    assert {
        "r1": {"id": 1, "net": 10, "gross": 20},
        "c2": {"id": 2, "net": 20, "gross": 40},
        "u1": {"id": 1, "net": 11, "gross": 22},
        "u2": {"id": 2, "net": 22, "gross": 44, "later": 66},
    } == dict(zip(("r1", "c2", "u1", "u2"), rows, strict=True))


def test_apply_again_changes_nothing_and_remove_leaves_nothing(
    database: str, capture: Callable[..., Captured]
) -> None:
    run(database, "CREATE TABLE a (id int PRIMARY KEY)")
    captured = capture("public.a")

    again = source.apply(captured.spec)
    status = source.status(captured.spec)
    source.remove(captured.spec, with_topics=True)

    assert [] == again
    assert status.healthy
    with session.connect(database) as connection:
        assert slot.status(connection, captured.spec.slot) is None
        assert publication.find(connection, captured.spec.publication) is None
    assert "MISSING" == source.status(captured.spec).connector_state


def test_an_idle_database_frees_the_log_while_its_neighbour_writes(
    database: str, capture: Callable[..., Captured], postgres_dsn: str
) -> None:
    run(database, "CREATE TABLE quiet (id int PRIMARY KEY)")
    captured = capture("public.quiet", heartbeat_interval_ms=200)
    with psycopg.connect(postgres_dsn, autocommit=True) as neighbour:
        name = sql.Identifier(f"busy_{captured.spec.name}")
        neighbour.execute(sql.SQL("CREATE TABLE {} (t text)").format(name))
        neighbour.execute(
            sql.SQL(
                "INSERT INTO {} SELECT repeat(md5(g::text), 9) FROM generate_series(1, 60000) g"
            ).format(name)
        )
        row = neighbour.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        neighbour.execute(sql.SQL("DROP TABLE {}").format(name))
    assert row is not None

    with session.connect(database) as connection:
        query = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s"
        wait_until(
            lambda: connection.execute(query, (row[0], captured.spec.slot)).fetchone(),
            "a slot that lets the neighbour's log go",
            accept=lambda found: found == (True,),
        )
