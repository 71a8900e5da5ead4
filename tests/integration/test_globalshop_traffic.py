"""The traffic's ledger is what the database says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psycopg
import pytest

from examples.globalshop import activity, seed
from examples.globalshop.traffic import Traffic
from headwater.demo.globalshop import GlobalShop

pytestmark = pytest.mark.integration
TABLES = ("customers", "products", "inventory", "orders", "order_items", "payments")


def counts(dsn: str) -> dict[str, int]:
    with psycopg.connect(dsn) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            for table in TABLES
        }


def test_the_seed_fills_every_table_and_says_how_much(database):
    made = seed.prepare(database, scale=0.1)

    assert made == counts(database)
    assert all(made.values())


def test_rows_in_the_tables_are_those_of_the_ledger(database):
    before = seed.prepare(database, scale=0.2)
    traffic = Traffic(rate=1_500.0, seconds=3.0)

    ledger = traffic.run(database)

    changed = ledger.to_json()["tables"]
    expected = {
        table: before[table]
        + changed.get(table, {}).get("insert", 0)
        - changed.get(table, {}).get("delete", 0)
        for table in TABLES
    }
    assert expected == counts(database)
    assert ledger.rows > 500


def test_every_kind_of_change_happens_and_rolled_back_rows_are_nowhere(database):
    seed.prepare(database, scale=0.2)

    ledger = Traffic(rate=2_000.0, seconds=3.0).run(database)

    kinds = {kind for (_, kind), rows in ledger.changes.items() if rows}
    assert kinds == {"insert", "update", "delete", "rekey"}
    assert ledger.rolled_back > 0
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


def test_the_log_holds_exactly_the_changes_of_the_ledger(database):
    seed.prepare(database, scale=0.2)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
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
        _until(lambda: traffic.written().transactions > 5)
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


def _until(reached, seconds: float = 20.0) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)
