from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.postgres import session, slot
from cdc.table import TableName
from tests.fix_capture import event_of
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.change_event import ChangeEvent
    from tests.fix_capture import Captured
    from tests.fix_worker import Worker

pytestmark = [pytest.mark.integration, pytest.mark.fault]


class Traffic:
    """Two writers whose transactions interleave: copies of many rows, updates, deletes."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(first,)) for first in (0, 1_000_000)
        ]
        self.transactions = 0

    def __enter__(self) -> Traffic:  # noqa: PYI034
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, transactions: int) -> None:
        wanted = self.transactions + transactions
        wait_until(lambda: self.transactions, f"{wanted} commits", accept=lambda n: n >= wanted)

    def _write(self, first: int) -> None:
        with psycopg.connect(self._dsn) as connection, connection.cursor() as cursor:
            number = first
            while not self._stop.wait(0.15):
                with cursor.copy("COPY ledger FROM STDIN") as copy:
                    for row in range(number + 1, number + 41):
                        copy.write_row((row, 0))
                cursor.execute(
                    "UPDATE ledger SET n = n + 1 WHERE id BETWEEN %s AND %s", (number - 40, number)
                )
                cursor.execute("UPDATE ledger SET n = n * 2 WHERE id = %s", (number,))
                cursor.execute("DELETE FROM ledger WHERE id = %s", (number - 20,))
                connection.commit()
                number += 40
                self.transactions += 1


def place(event: ChangeEvent) -> tuple[Any, ...]:
    assert event.key is not None
    return (event.position.lsn, event.key["id"], event.operation)


def test_what_a_killed_worker_sends_again_has_the_places_it_had_and_nothing_is_missing(
    database: str, capture: Callable[..., Captured], worker: Worker
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE ledger (id int PRIMARY KEY, n int)")
        connection.execute("ALTER TABLE ledger SET (autovacuum_enabled = false)")
    captured = capture("public.ledger", connect_url=worker.url)
    with Traffic(database) as traffic:
        for _ in range(2):
            traffic.wait_for_more(60)
            worker.kill()
            worker.start()
            traffic.wait_for_more(30)
            _wait_until_read(captured)
        traffic.wait_for_more(30)

    records = captured.records("ledger", timeout_s=120)

    events = [event_of(record) for record in records if record.value is not None]
    copies = defaultdict(list)
    for event in events:
        copies[place(event)].append(event)
    for same in copies.values():
        assert 1 == len({(event.position.version, repr(event.after)) for event in same})
    by_key: dict[int, set[int]] = defaultdict(set)
    distinct = sorted((same[0] for same in copies.values()), key=lambda event: event.position)
    state: dict[int, int] = {}
    for event in distinct:
        assert event.key is not None
        key, version = event.key["id"], event.position.version
        assert version > max(by_key[key], default=0)
        by_key[key].add(version)
        if event.after is None:
            del state[key]
        else:
            state[key] = event.after["n"]
    with session.connect(database) as connection:
        rows = connection.execute("SELECT id, n FROM ledger WHERE id <> -1").fetchall()
    assert dict(rows) == state
    print(f"{len(events)} events, {len(events) - len(distinct)} of them sent twice")  # noqa: T201


def _wait_until_read(captured: Captured) -> None:
    """Waits until a worker reads the slot again after the kill."""
    with session.connect(captured.database) as connection:
        before = slot.status(connection, captured.spec.slot)
        assert before is not None
        wait_until(
            lambda: slot.status(connection, captured.spec.slot),
            "a worker that reads the slot again",
            accept=lambda now: (
                now is not None
                and now.active
                and now.confirmed_flush_lsn != before.confirmed_flush_lsn
            ),
            timeout_s=LONG_S,
        )


def test_messages_of_the_outbox_survive_a_killed_worker_in_the_order_of_their_stream(
    store_dsn: str, capture: Callable[..., Captured], worker: Worker
) -> None:
    outbox = TableName("eventstore", "outbox")
    with psycopg.connect(store_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE ledger (id int PRIMARY KEY)")
    captured = capture("public.ledger", dsn=store_dsn, outbox=outbox, connect_url=worker.url)
    stop, sent = threading.Event(), [0, 0]

    def write(stream: int) -> None:
        with psycopg.connect(store_dsn) as connection:
            while not stop.wait(0.005):
                connection.execute(
                    "SELECT eventstore.send('default', json_build_array(json_build_object("
                    "'message_id', gen_random_uuid(), 'topic', 'order', 'stream', %s::text,"
                    "'type', 'Counted', 'version', 1, 'payload', %s::text)), NULL)",
                    (f"order-{stream}", str(sent[stream] + 1)),
                )
                connection.commit()
                sent[stream] += 1

    writers = [threading.Thread(target=write, args=(stream,)) for stream in (0, 1)]
    for writer in writers:
        writer.start()
    for _ in range(2):
        reached = sum(sent) + 300
        wait_until(lambda reached=reached: sum(sent) > reached)
        worker.kill()
        worker.start()
        _wait_until_read(captured)
    stop.set()
    for writer in writers:
        writer.join()
    last = {f"order-{stream}".encode(): str(count).encode() for stream, count in enumerate(sent)}

    def all_came(record: Any) -> bool:
        if last.get(record.key) == record.value:
            del last[record.key]
        by_stream[record.key].append(int(record.value))
        return not last

    by_stream: dict[bytes, list[int]] = defaultdict(list)
    captured.read(captured.spec.outbox_prefix + "order", all_came, timeout_s=120)

    for stream, count in enumerate(sent):
        came = by_stream[f"order-{stream}".encode()]
        assert list(range(1, count + 1)) == list(dict.fromkeys(came))
