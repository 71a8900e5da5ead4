"""What cannot be read or applied waits, its key behind it; all else flows, and all ends equal."""

from __future__ import annotations

import json
import shutil
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from cdc.broker.producing.producer import producer
from cdc.change_event import EPOCH_HEADER
from cdc.snapshot import reader, reads
from cdc.snapshot.reads import SnapshotRequest
from cdc.table import TableName
from headwater.cli.app import main
from projections.changes.quarantine import admin as quarantine_admin
from projections.changes.quarantine.admin import KeySelection
from projections.changes.quarantine.table import BEHIND, UNRESOLVED
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.stores.factory import open_sink
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=3),
    pytest.mark.timeout(1800),
]

TABLES = """
CREATE TABLE orders (
    id int PRIMARY KEY, note text, total numeric(12,2), placed_at timestamptz, big text
);
ALTER TABLE orders ALTER big SET STORAGE EXTERNAL;
CREATE TABLE stock (id int PRIMARY KEY, units int);
INSERT INTO orders SELECT n, 'new', n, '2026-01-01', repeat('big ' || n, 1000)
  FROM generate_series(1, 40) n;
INSERT INTO stock SELECT n, n FROM generate_series(1, 20) n
"""
UNDECODABLE = "HW-C002"
NO_CHANGE = "HW-C001"
UNHOLDABLE = "HW-P013"


class Shop:
    """The job of a captured database, what waits of it, and the reader beside it."""

    def __init__(self, captured: Captured, job: ViewJob, folder: Path) -> None:
        self.captured = captured
        self.job = job
        self.source = captured.spec.name
        self.folder = folder
        self.orders, self.stock = job.spec.plans

    def execute(self, *statements: str) -> None:
        self.captured.execute(*statements)

    def waiting(self, picked: KeySelection | None = None) -> dict[tuple[str, str], str]:
        """Cause by store and key; the same key waits apart in each store."""
        with psycopg.connect(self.captured.database, autocommit=True) as connection:
            found = quarantine_admin.keys(connection, self.source, picked or KeySelection())
        return {(each.store, each.key): each.code for each in found}

    def await_waiting(self, wanted: dict[tuple[str, str], str], timeout_s: float = 120) -> None:
        wait_until(
            self.waiting,
            f"keys that wait: {wanted}",
            accept=lambda found: found == wanted,
            timeout_s=timeout_s,
        )

    def differing(self) -> set[tuple[str, Store]]:
        return {(report.view, report.store) for report in self.job.catch_up()}

    def send(self, key: bytes | None, value: bytes, epoch: bytes | None = b"1") -> None:
        """Sends a record that is not the connector's."""
        topic = self.orders.topic
        with producer(self.captured.spec.kafka_bootstrap) as sender:
            sender.open(topic, [] if epoch is None else [(EPOCH_HEADER, epoch)])
            sender.send(topic, key, value)
            sender.flush()

    def headwater(self, *words: str) -> int:
        return main([*words, "--config", str(self.folder / "headwater.toml")])

    def counted(self) -> dict[str, dict[str, int]]:
        """By store, what became of the records of the orders."""
        queries = self.job.status()["queries"]
        return {store: queries[store]["views"][self.orders.name] for store in Store}


@pytest.fixture
def shop(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    database: str,
    tmp_path: Path,
) -> Iterator[Shop]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    captured = capture("public.orders", "public.stock")
    name = captured.spec.name
    (tmp_path / "views.py").write_text(
        "from headwater import source\n"
        f"source({name!r}, tables=['public.orders', 'public.stock'])\n"
    )
    (tmp_path / "headwater.toml").write_text(f"[source.{name}]\ndsn = {json.dumps(database)}\n")
    enough = threading.Event()
    reading = threading.Thread(target=reader.keep_reading, args=(captured.spec, enough))
    reading.start()
    yield Shop(captured, view_job(captured, own_jvm=True), tmp_path)
    enough.set()
    reading.join()


def test_what_fails_waits_with_its_key_and_all_else_flows(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.job.start()
    assert set() == shop.differing()

    _poison(shop)
    _look(shop, capsys)
    _repair(shop, capsys)
    _lose_and_read_again(shop)
    _move_keys(shop)
    _truncate_and_sweep(shop)
    _kill_and_start_from_the_beginning(shop)
    assert 0 == shop.job.stop()


def _poison(shop: Shop) -> None:
    """One value no store can hold, one the tables cannot, and records of somebody else."""
    shop.execute(
        "UPDATE orders SET placed_at = 'infinity' WHERE id = 1",
        "UPDATE orders SET total = 'NaN' WHERE id = 2",
        "UPDATE orders SET note = 'behind' WHERE id IN (1, 2)",
        "UPDATE orders SET note = 'flows' WHERE id > 2",
        "UPDATE stock SET units = 0",
    )
    shop.job.catch_up()  # what comes now comes after it in the topic
    shop.send(b'{"id":3}', b"{")
    shop.send(b'{"id":4}', b'{"op":"c","after":{}}')
    shop.send(b'{"id":5}', b"{}", epoch=None)
    shop.send(b"\xff", b"not even a key")
    everywhere = {
        '{"id":1}': UNDECODABLE,
        '{"id":3}': NO_CHANGE,
        '{"id":4}': NO_CHANGE,
        '{"id":5}': NO_CHANGE,
        "hex:ff": NO_CHANGE,
    }
    wanted = {(store, key): code for store in Store for key, code in everywhere.items()}
    shop.await_waiting(wanted | {(Store.TABLE, '{"id":2}'): UNHOLDABLE})

    assert {(shop.orders.name, store) for store in Store} == shop.differing()
    shop.execute("UPDATE orders SET note = 'behind' WHERE id = 3")
    differing = {report.store: report.quarantined for report in shop.job.catch_up()}
    assert {Store.TABLE: 3, Store.SEARCH: 2, Store.CACHE: 2} == differing
    for counts in shop.counted().values():
        parts = counts["applied"] + counts["quarantined"] + counts["filtered"]
        assert (counts["records"], True) == (parts, counts["quarantined"] >= 6)


def _look(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert 0 == shop.headwater("quarantine", "list", "--store", "table", "--key", "2", "--json")
    (listed,) = json.loads(capsys.readouterr().out)
    assert (UNHOLDABLE, '{"id":2}', 1) == (listed["code"], listed["key"], listed["attempts"])
    assert "column total" in listed["message"]

    assert 0 == shop.headwater("quarantine", "show", "--key", "3", "--store", "cache", "--json")
    said = capsys.readouterr().out
    first, second = json.loads(said)
    assert "behind" not in said.replace("waits behind", "")
    assert (NO_CHANGE, BEHIND) == (first["code"], second["code"])
    assert (shop.orders.topic, 0) == (first["topic"], first["partition"])
    assert first["offset"] < second["offset"]
    assert 0 == shop.headwater(
        "quarantine", "show", "--key", "3", "--store", "cache", "--json", "--values"
    )
    values = [record["value"] for record in json.loads(capsys.readouterr().out)]
    assert "{" == values[0]
    assert '"note":"behind"' in values[1]


def _repair(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """In vain first; then the source is repaired, and what waits is tried again."""
    # no job of this project runs: the one that does is the test's own
    assert 3 == shop.headwater("quarantine", "retry", "--code", UNHOLDABLE)
    assert "the job does not run" in capsys.readouterr().err
    wait_until(lambda: _attempts(shop, UNHOLDABLE) == [2], timeout_s=LONG_S)

    shop.execute(
        "UPDATE orders SET placed_at = now() WHERE id = 1",
        "UPDATE orders SET total = 2 WHERE id = 2",
        "UPDATE orders SET note = 'repaired' WHERE id IN (4, 5)",
    )
    shop.job.catch_up()
    assert 2 == shop.headwater("quarantine", "retry")  # what?
    assert 3 == shop.headwater("quarantine", "retry", "--all")
    shop.await_waiting({(store, "hex:ff"): NO_CHANGE for store in Store})
    assert set() == shop.differing()
    assert 2 == shop.headwater("quarantine", "drop", "--key", "hex:ff")  # without --yes
    assert 0 == shop.headwater("quarantine", "drop", "--key", "hex:ff", "--yes")
    assert {} == shop.waiting()


def _lose_and_read_again(shop: Shop) -> None:
    """A store lost rows; changes that keep their large values wait until the rows are read."""
    keys = [
        f"{shop.job.spec.config.addresses.cache_prefix}{shop.orders.name}:{n}" for n in (6, 7, 8)
    ]
    with redis.Redis.from_url(shop.job.spec.config.cache_url) as cache:
        assert 3 == cache.delete(*keys)
    shop.execute("UPDATE orders SET note = 'small change' WHERE id IN (6, 7)")
    shop.execute("UPDATE orders SET big = repeat('other', 900) WHERE id = 8")
    wait_until(lambda: shop.differing() == set(), timeout_s=LONG_S)
    shop.await_waiting({})
    with psycopg.connect(shop.captured.database) as connection:
        asked = [read for read in reads.of_source(connection, shop.source, 1) if read.keys]
    unread = {("3",), ("4",), ("5",)}  # records that nobody could read: see _repair
    assert unread | {("6",), ("7",)} == {key for read in asked for key in read.keys or ()}


def _move_keys(shop: Shop) -> None:
    """Rows that change and swap their keys take their unchanged values along."""
    shop.execute(
        "UPDATE orders SET big = repeat(note || id, 700) WHERE id IN (10, 11, 12, 13)",
        "BEGIN; UPDATE orders SET id = 100 WHERE id = 10; UPDATE orders SET id = 10 WHERE id = 11;"
        " UPDATE orders SET id = 11 WHERE id = 100; COMMIT",
        "UPDATE orders SET id = 112, note = 'moved' WHERE id = 12",
        "UPDATE orders SET id = 113 WHERE id = 13",
        "INSERT INTO orders VALUES (13, 'again', 1, now(), 'small')",
        "UPDATE orders SET id = 114 WHERE id = 14",  # never streamed: its row was only read
    )
    wait_until(lambda: shop.differing() == set(), timeout_s=LONG_S)
    shop.await_waiting({})


def _truncate_and_sweep(shop: Shop) -> None:
    shop.execute("TRUNCATE stock", "INSERT INTO stock VALUES (1, 5), (99, 6)")
    ghost = RowChange((77,), 1 << 56 | 8, {"id": 77, "units": 1}, 1)
    assert set() == shop.differing()
    for store in Store:
        sink = open_sink(store, shop.job.spec.config.addresses)
        assert 1 == sink.apply(shop.stock, [ghost]).stale  # older than the truncate
        order = {"id": 77, "note": "x", "total": None, "placed_at": None, "big": "y"}
        late = RowChange((77,), (1 << 56) + _lsn(shop), order, 1)
        assert 1 == sink.apply(shop.orders, [late]).upserted
        sink.close()
    assert {(shop.orders.name, store) for store in Store} == shop.differing()
    with psycopg.connect(shop.captured.database, autocommit=True) as connection:
        reads.ask(connection, shop.source, 1, SnapshotRequest(TableName("public", "orders")))
    wait_until(lambda: shop.differing() == set(), timeout_s=LONG_S)


def _kill_and_start_from_the_beginning(shop: Shop) -> None:
    """Everything comes again, also what waits and what was given up."""
    shop.execute("UPDATE orders SET placed_at = '-infinity' WHERE id = 20")
    shop.execute("UPDATE orders SET placed_at = 'infinity' WHERE id = 21")
    wanted = {(store, f'{{"id":{n}}}'): UNDECODABLE for store in Store for n in (20, 21)}
    shop.await_waiting(wanted)
    assert 0 == shop.headwater("quarantine", "drop", "--key", "21", "--yes")
    shop.execute("UPDATE orders SET note = 'while it is killed'")
    shop.job.kill()
    assert [] == shop.job.orphans()
    shutil.rmtree(shop.job.spec.config.home / "checkpoints")
    shop.job.start()

    shop.execute("UPDATE orders SET placed_at = now() WHERE id IN (20, 21)")
    shop.await_waiting({place: code for place, code in wanted.items() if "20" in place[1]})
    assert {(shop.orders.name, store) for store in Store} == shop.differing()
    assert 3 == shop.headwater("quarantine", "retry", "--key", "20")
    shop.await_waiting({})
    assert set() == shop.differing()


def _attempts(shop: Shop, code: str) -> list[int]:
    with psycopg.connect(shop.captured.database, autocommit=True) as connection:
        found = quarantine_admin.records(connection, shop.source, KeySelection(cause=code))
    return [each.attempts for each in found if each.state == "waiting"]


def _lsn(shop: Shop) -> int:
    with psycopg.connect(shop.captured.database) as connection:
        row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])


def test_causes_are_those_that_the_test_names() -> None:
    assert {"HW-P014", "HW-P043"} == {UNRESOLVED, BEHIND}
