"""The traffic's ledger is what the database says."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from eventstore import EventStore
from eventstore.postgres.log import PostgresEventLog
from examples.globalshop import activity, order_tables, seed
from examples.globalshop.ledger import Notes
from examples.globalshop.orders import Order
from examples.globalshop.traffic import Traffic
from headwater.demo.globalshop import GlobalShop
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
TABLES = ("customers", "products", "inventory", "orders", "order_items", "payments", "events")
OF_ORDERS = {
    "orders": "id, status, customer_id, total, note, placed_at, shipped_on",
    # a product's new key reaches the rows of its orders, and no event of theirs
    "order_items": "order_id, line, quantity, unit_price, gift",
    "payments": "order_id, id, amount, method, refunded, paid_at",
}


def counts(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn, options="-c search_path=public,eventstore") as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            for table in TABLES
        }


@pytest.fixture
def open_store(database):
    """Opens the event store of the database, which has its schema once the shop is seeded."""
    opened = []

    def open_() -> EventStore:
        opened.append(EventStore(PostgresEventLog(database), deciders=[Order]))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


def test_the_seed_fills_every_table_and_says_how_much(database):
    made = seed.prepare(database, scale=0.1)

    assert made == counts(database)
    assert all(made.values())


def test_rows_in_the_tables_are_those_of_the_ledger(database):
    before = seed.prepare(database, scale=0.2)
    traffic = Traffic(rate=1_500.0, seconds=3.0)

    ledger = traffic.run(database)

    changed: Any = ledger.to_json()["tables"]
    expected = {
        table: before[table]
        + changed.get(table, {}).get("insert", 0)
        - changed.get(table, {}).get("delete", 0)
        for table in TABLES
    }
    assert expected == counts(database)
    assert ledger.rows > 0


def test_every_kind_of_change_happens_and_rolled_back_rows_are_nowhere(database):
    seed.prepare(database, scale=0.2)

    ledger = Traffic(rate=2_000.0, seconds=3.0).run(database)

    kinds = {kind for (_, kind), rows in ledger.changes.items() if rows}
    assert kinds == {"insert", "update", "delete", "rekey"}
    assert ledger.rolled_back > 0
    assert ledger.refused > 0
    assert ledger.savepoints_rolled_back > 0
    with psycopg.connect(database) as connection:
        ghosts = connection.execute(
            "SELECT count(*) FROM customers WHERE email LIKE %s OR email LIKE 'guest-%%'",
            [activity.GHOST + "%"],
        ).fetchone()
        emptied = connection.execute(
            "SELECT count(*) FILTER (WHERE nickname = ''), count(*) FILTER (WHERE nickname IS NULL)"
            " FROM customers"
        ).fetchone()
    assert ghosts == (0,)
    assert all(emptied)


def test_rows_of_orders_are_what_their_events_say(database, open_store):
    """All events, taken into empty tables, give the rows that are there."""
    seed.prepare(database, scale=0.2)
    Traffic(rate=2_000.0, seconds=3.0).run(database)
    happened = [recorded.event for recorded in open_store().read_category("order")]
    with psycopg.connect(database) as connection:
        rows = {table: rows_of(connection, table) for table in OF_ORDERS}
        there = {row[0] for row in rows["orders"]}

        connection.execute("CREATE SCHEMA replayed")
        for table in OF_ORDERS:
            connection.execute(f"CREATE TABLE replayed.{table} (LIKE public.{table})")
        connection.execute("SET search_path = replayed, public")
        for event in happened:
            order_tables.apply(connection, Notes(), event)
        replayed = {table: rows_of(connection, table) for table in OF_ORDERS}

    gone = {row[0]: row[1] for row in replayed["orders"] if row[0] not in there}
    assert gone
    assert set(gone.values()) == {"cancelled"}
    for table, found in rows.items():
        assert found == [row for row in replayed[table] if row[0] not in gone]


def test_the_money_is_the_same_by_events_and_by_rows_until_somebody_changes_a_row(database):
    seed.prepare(database, scale=0.1)
    Traffic(rate=1_000.0, seconds=2.0).run(database)

    (kept,) = GlobalShop().invariants(database, {})
    with psycopg.connect(database) as connection:
        connection.execute(
            "UPDATE payments SET amount = amount + 0.01"
            " WHERE id = (SELECT id FROM payments WHERE NOT refunded LIMIT 1)"
        )
    (broken,) = GlobalShop().invariants(database, {})

    assert kept.holds
    assert min(kept.values.values()) > 0
    assert not broken.holds


def test_an_order_is_in_the_state_to_which_its_events_fold(database, open_store):
    seed.prepare(database, scale=0.1)
    ledger = Traffic(rate=1_000.0, seconds=2.0).run(database)
    store = open_store()
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT id, status, total FROM orders").fetchall()

    folded = [(id_, store.state(Order, id_).value) for id_, _, _ in found]

    assert found == [(id_, state.status, state.total) for id_, state in folded]
    assert len(found) > 250
    assert ledger.changes["orders", "insert"] > 0


def test_a_rolled_back_order_leaves_no_event(database, open_store):
    """Numbers that were drawn and given up have no stream, whole transactions and savepoints."""
    made = seed.prepare(database, scale=0.1)
    ledger = Traffic(rate=2_000.0, seconds=3.0).run(database)
    recorded = list(open_store().read_category("order"))
    with psycopg.connect(database) as connection:
        (drawn,) = connection.execute("SELECT last_value FROM orders_id_seq").fetchone()
        there = {id_ for (id_,) in connection.execute("SELECT id FROM orders")}

    streams = {int(event.stream.removeprefix("order-")) for event in recorded}
    placed = made["orders"] + ledger.changes["orders", "insert"]
    assert len(streams) == placed < drawn
    assert there < streams
    assert len(recorded) == made["events"] + ledger.changes["events", "insert"]


def test_first_orders_are_of_the_first_version_and_read_as_of_the_latest(database, open_store):
    seed.prepare(database, scale=0.1)

    recorded = [e for e in open_store().read_category("order") if e.type == "order.placed"]

    versions = [event.schema_version for event in recorded]
    assert versions == [1] * 25 + [2] * 225
    assert not any(line.gift for event in recorded[:25] for line in event.event.lines)
    assert any(line.gift for event in recorded[25:] for line in event.event.lines)


def test_a_seed_that_was_interrupted_goes_on_where_it_was(database, monkeypatch):
    portions = seed._missing

    def two_portions(*arguments):
        yield from itertools.islice(portions(*arguments), 2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(seed, "_missing", two_portions)
        with pytest.raises(KeyboardInterrupt):
            seed.prepare(database, scale=0.2)
    before = counts(database)
    added = seed.prepare(database, scale=0.2)
    again = seed.prepare(database, scale=0.2)

    assert before["orders"] == 200
    assert added["orders"] == 300
    assert "customers" not in added
    assert again == {}


def rows_of(connection, table: str) -> list[tuple]:
    query = f"SELECT {OF_ORDERS[table]} FROM {table} ORDER BY {OF_ORDERS[table]}"  # noqa: S608
    return connection.execute(query).fetchall()


def test_the_log_holds_exactly_the_changes_of_the_ledger(database):
    seed.prepare(database, scale=0.2)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE PUBLICATION everything FOR TABLES IN SCHEMA public, TABLE eventstore.events"
        )
        connection.execute("SELECT pg_create_logical_replication_slot('ledger', 'pgoutput')")

        ledger = Traffic(rate=1_000.0, seconds=2.0).run(database)
        logged = connection.execute(
            "SELECT count(*) FROM pg_logical_slot_get_binary_changes('ledger', NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'everything')"
            " WHERE substr(data, 1, 1) IN ('I', 'U', 'D')"
        ).fetchone()

    assert logged == (ledger.rows,)


def test_the_traffic_process_stops_when_its_input_ends(database):
    seed.prepare(database, scale=0.05)
    traffic = GlobalShop().start_traffic(database, rate=300.0, seconds=60.0)
    try:
        wait_until(lambda: traffic.written().transactions > 5)
    finally:
        written = traffic.stop()

    assert not traffic.running()
    assert written.changes >= written.transactions > 5


def test_the_traffic_process_ends_in_order_on_sigterm(database):
    seed.prepare(database, scale=0.05)
    with subprocess.Popen(
        [sys.executable, "-m", "examples.globalshop.traffic"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        child.stdin.write(json.dumps({"dsn": database, "rate": 200}) + "\n")
        child.stdin.flush()
        child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        lines = child.stdout.read().splitlines()
        code = child.wait(20)

    assert code == 0
    assert json.loads(lines[-1])["done"] is True
