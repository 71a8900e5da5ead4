"""Typed changes in a consumer group, on the real components."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import cdc
from cdc import Operation
from cdc.values import UNCHANGED
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured

    Capture = Callable[..., Captured]

pytestmark = pytest.mark.integration


def create(database: str, *statements: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, total numeric(12,2), placed_at timestamptz,"
            " note text)"
        )
        connection.execute("ALTER TABLE orders ALTER note SET STORAGE external")
        for statement in statements:
            connection.execute(statement.encode())


def orders(captured: Captured, group: str = "billing", **options: Any) -> cdc.Changes:
    return cdc.changes(captured.spec, group=group, **options)


def taken(changes: cdc.Changes, count: int, timeout_s: float = 60.0) -> list[cdc.Change]:
    """The next changes, acknowledged."""
    found: list[cdc.Change] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        change = changes.take(max(0.0, deadline - time.monotonic()))
        assert change is not None, f"{len(found)} of {count} changes came in time"
        found.append(change)
        change.ack()
    return found


def settle(changes: cdc.Changes, offset: int, timeout_s: float = 120.0) -> None:
    """Waits until the group has committed an offset.

    Nothing is committed while a group deals out its partitions, and what was acknowledged may come
    once more.
    """

    def committed() -> list[int | None]:
        change = changes.take(0.1)
        if change is not None:
            change.ack()
        return [place.committed for place in changes.lag()]

    wait_until(
        committed,
        f"offset {offset} committed",
        accept=lambda places: places == [offset],
        timeout_s=timeout_s,
        pause_s=0,
    )


def test_rows_have_exact_values_and_say_where_they_come_from(
    database: str, capture: Capture
) -> None:
    create(database, "INSERT INTO orders VALUES (0, 0.10)")
    captured = capture("public.orders")
    captured.execute(
        "INSERT INTO orders VALUES (1, 12.50, '2026-01-02 03:04:05.678901+01', repeat('x', 9000))",
        "UPDATE orders SET total = 13 WHERE id = 1",
        "DELETE FROM orders WHERE id = 1",
        "TRUNCATE orders",
        "ALTER TABLE orders ADD COLUMN paid boolean",
        "INSERT INTO orders (id, paid) VALUES (2, true)",
    )
    with orders(captured) as changes:
        read, made, changed, deleted, truncated, later = taken(changes, 6)

    placed_at = datetime(2026, 1, 2, 2, 4, 5, 678901, UTC)
    assert [Operation.READ, True, {"id": 0, "total": Decimal("0.10")}] == [
        read.operation,
        read.snapshot,
        {name: read.after[name] for name in ("id", "total")},
    ]
    assert {"id": 1, "total": Decimal("12.50"), "placed_at": placed_at, "note": "x" * 9000} == (
        made.after
    )
    assert UNCHANGED is changed.after["note"]
    assert (Decimal(13), {"id": 1}, None) == (changed.after["total"], deleted.key, deleted.after)
    assert ([Operation.TRUNCATE, None], True) == (
        [truncated.operation, truncated.key],
        later.after["paid"],
    )
    positions = [change.position for change in (read, made, changed, deleted, truncated, later)]
    assert sorted(positions) == positions
    assert abs(later.committed_at - datetime.now(UTC)).total_seconds() < 60
    assert ("public.orders", 1, False) == (str(made.table), made.attempt, made.parked)
    assert str(made.topic).endswith(".public.orders")


def test_a_reader_goes_on_when_a_column_gets_another_type(database: str, capture: Capture) -> None:
    create(database, "ALTER TABLE orders ADD COLUMN size int", "INSERT INTO orders (id) VALUES (0)")
    captured = capture("public.orders")
    with orders(captured) as changes:
        taken(changes, 1)
        captured.execute(
            "INSERT INTO orders (id, total, size) VALUES (1, 12.50, 5)",
            "ALTER TABLE orders ALTER size TYPE numeric, ALTER total TYPE text",
            "INSERT INTO orders (id, total, size) VALUES (2, 'none', 5.5)",
        )
        _, followed = taken(changes, 2)
    with orders(captured, "late") as changes:
        _, old, new = taken(changes, 3)
        parked = changes.parked()

    sizes = [change.after["size"] for change in (followed, old, new)]
    totals = [change.after["total"] for change in (followed, old, new)]
    assert [Decimal("5.5"), 5, Decimal("5.5")] == sizes
    assert ["none", "12.50", "none"] == totals
    assert [] == parked


class Broken(Exception):  # noqa: N818
    """What a handler raises in these tests."""


def numbers(changes: list[cdc.Change]) -> list[tuple[int, Decimal]]:
    return [(change.key["id"], change.after["total"]) for change in changes]


def test_what_was_not_acknowledged_comes_again_and_nothing_below_it_is_lost(
    database: str, capture: Capture
) -> None:
    create(database)
    captured = capture("public.orders")
    captured.execute("INSERT INTO orders SELECT g, g FROM generate_series(1, 6) g")
    with orders(captured) as changes:
        first = [changes.take(30) for _ in range(6)]
        assert [1, 2, 3, 4, 5, 6] == [change.key["id"] for change in first]
        for number in (5, 0, 1, 3):  # not in order
            assert first[number].ack()
        assert not first[0].ack()  # once is enough

    with orders(captured) as changes:
        again = taken(changes, 4)
        assert changes.take(0.5) is None
        settle(changes, 6)

    # the third holds the commit back
    assert [3, 4, 5, 6] == [change.key["id"] for change in again]
    assert not first[2].ack()  # it is somebody else's by now
    with orders(captured) as changes:
        assert changes.take(0.8) is None
        (place,) = changes.lag()

    assert (6, 6, 0, 0.0) == (
        place.committed,
        place.end,
        place.consumer_lag_records,
        place.consumer_lag_s,
    )


def test_a_poison_change_parks_its_key_and_leaves_the_shelf_in_order(
    database: str, capture: Capture
) -> None:
    create(database)
    captured = capture("public.orders")
    captured.execute(
        "INSERT INTO orders VALUES (1, 1), (2, 1)",
        "UPDATE orders SET total = 2",
        "INSERT INTO orders VALUES (3, 1)",
    )
    handled: list[cdc.Change] = []
    attempts: list[int] = []
    broken = True

    def handle(change: cdc.Change) -> None:
        if broken and change.key == {"id": 1}:
            attempts.append(change.attempt)
            raise Broken("no values in what is kept: 4711")
        handled.append(change)

    def work(*, handled_in_all: int, parked_in_all: int) -> None:
        with orders(captured, retry=cdc.ConsumerRetryPolicy(3, 0.02)) as changes:
            worker = threading.Thread(target=changes.run, args=(handle,))
            worker.start()
            wait_until(lambda: len(handled) == handled_in_all)
            wait_until(lambda: sum(1 + key.waiting for key in changes.parked()) == parked_in_all)
            changes.stop()
            worker.join()

    work(handled_in_all=3, parked_in_all=2)
    assert ([(2, 1), (2, 2), (3, 1)], [1, 2, 3]) == (numbers(handled), attempts)

    # another process knows what is parked, and puts later changes behind it
    captured.execute("UPDATE orders SET total = 3")
    work(handled_in_all=5, parked_in_all=3)
    assert [(2, 3), (3, 3)] == numbers(handled[3:])
    with orders(captured) as changes:
        (parked,) = changes.parked()
        assert ({"id": 1}, 0, 3, 2) == (
            parked.key,
            parked.offset,
            parked.attempts,
            parked.waiting,
        )
        assert parked.error_type.endswith(".Broken")
        assert "4711" not in repr(parked)
        changes.retry(parked)
        refused = changes.take(20)
        assert (True, 1) == (refused.parked, refused.attempt)
        refused.park(Broken())
        assert changes.take(0.8) is None  # those behind it still wait

        broken = False
        changes.drop(parked)
        back = taken(changes, 2)
        captured.execute("UPDATE orders SET total = 4 WHERE id = 1")
        (after,) = taken(changes, 1)
        assert [] == wait_until(lambda: [changes.parked()] if not changes.parked() else [])[0]

    assert [(1, 2), (1, 3), (1, 4)] == numbers([*back, after])
    assert [True, True, False] == [change.parked for change in (*back, after)]
    with orders(captured) as changes:
        assert changes.take(0.8) is None


def test_what_no_connector_wrote_is_parked_and_the_group_goes_on(
    database: str, capture: Capture
) -> None:
    from kafka import KafkaProducer

    create(database)
    captured = capture("public.orders")
    captured.execute("INSERT INTO orders VALUES (1, 1)")
    topic = f"{captured.spec.name}.public.orders"
    (real,) = [record for record in captured.records("orders") if record.value is not None]
    header = [("headwater.epoch", b"1")]
    producer = KafkaProducer(bootstrap_servers=captured.spec.kafka_bootstrap)
    for key, value, headers in (
        (b"not json", b"nor this", header),
        (b'{"id":7}', real.value, []),  # no epoch
        (b'{"id":8}', real.value.replace(b'"placed_at":null', b'"placed_at":"infinity"'), header),
        (b'{"id":9}', real.value.replace(b'"table":"orders"', b'"table":"others"'), header),
        (b'{"id":10}', b'{"op":"c","source":{"schema":3}}', header),
    ):
        producer.send(topic, value, key, headers)
    producer.close()
    captured.execute("INSERT INTO orders VALUES (2, 1)")

    with orders(captured) as changes:
        found = taken(changes, 3)
        parked = wait_until(lambda: changes.parked() if len(changes.parked()) == 5 else None)

    assert [1, -1, 2] == [change.key["id"] for change in found]
    assert ["HW-C001", "HW-C001", "HW-C002", "HW-C001", "HW-C001"] == [
        key.error_code for key in sorted(parked, key=lambda key: key.offset)
    ]
    assert [0] * 5 == [key.attempts for key in parked]


def test_what_is_in_hand_when_it_is_stopped_still_counts(database: str, capture: Capture) -> None:
    create(database)
    captured = capture("public.orders")
    captured.execute("INSERT INTO orders VALUES (1, 1)", "INSERT INTO orders VALUES (2, 2)")
    with orders(captured, handover_s=0.5) as changes:
        in_hand = [changes.take(60), changes.take(60)]
        changes.stop()
        (feed,) = (each for each in threading.enumerate() if each.name == "changes-feed")
        feed.join(2)
        assert feed.is_alive()  # it keeps its place in the group, and commits there
        assert changes.take() is None
        assert [True, True] == [change.ack() for change in in_hand if change is not None]

    (place,) = changes.lag()
    assert 0 == place.consumer_lag_records


def test_a_new_group_begins_where_it_is_told_to_and_an_old_one_where_it_was(
    database: str, capture: Capture
) -> None:
    create(database, "INSERT INTO orders VALUES (0, 0)")
    captured = capture("public.orders")
    captured.execute("INSERT INTO orders VALUES (1, 1)", "INSERT INTO orders VALUES (2, 2)")
    with orders(captured, "all") as changes:
        read, first, second = taken(changes, 3)
    with psycopg.connect(database) as connection:
        lsn, now = connection.execute("SELECT pg_current_wal_lsn()::text, now()").fetchone()
    captured.execute("INSERT INTO orders VALUES (3, 3)", "INSERT INTO orders VALUES (4, 4)")

    def had(group: str, start: cdc.GroupStart, *, more: int = 0) -> list[int]:
        with orders(captured, group, start=start) as changes:
            if more:
                assert changes.take(0.8) is None
                captured.execute(f"INSERT INTO orders VALUES ({more}, 1)")  # noqa: S608
                return [taken(changes, 1)[0].key["id"]]
            found = taken(changes, 1)
            while found[-1].key["id"] < 4:
                found += taken(changes, 1)
            return [change.key["id"] for change in found]

    assert [0, 1, 2, 3, 4] == had("beginning", cdc.GroupStart.BEGINNING)
    assert [2, 3, 4] == had("position", cdc.GroupStart.after(first.position))
    assert [1, 2, 3, 4] == had("read", cdc.GroupStart.after(read.position))
    assert [3, 4] == had("time", cdc.GroupStart.at_time(now))
    assert [2, 3, 4] == had("same-time", cdc.GroupStart.at_time(second.committed_at))
    # its records do not say where the second's commit is, so that one may come again
    assert had("lsn", cdc.GroupStart.after(cdc.Lsn.parse(lsn))) in ([3, 4], [2, 3, 4])
    assert [5] == had("end", cdc.GroupStart.END, more=5)
    assert [6] == had("end", cdc.GroupStart.BEGINNING, more=6)


def test_records_that_are_gone_are_an_error_and_never_a_jump(
    database: str, capture: Capture
) -> None:
    from kafka import TopicPartition

    from cdc import consumer
    from cdc.broker.client.admin import admin

    create(database)
    captured = capture("public.orders")
    captured.execute("INSERT INTO orders SELECT g, g FROM generate_series(1, 9) g")
    topic = f"{captured.spec.name}.public.orders"
    with orders(captured) as changes:
        taken(changes, 2)
        wait_until(lambda: changes.lag()[0].committed == 2)
        (behind,) = changes.lag()
    assert (7, True) == (behind.consumer_lag_records, 0.0 < behind.consumer_lag_s < 60)

    with admin(captured.spec.kafka_bootstrap) as client:
        client.delete_records({TopicPartition(topic, 0): 5})
    with orders(captured) as changes, pytest.raises(consumer.RecordsGoneError) as raised:
        changes.take(20)

    assert f"topic {topic}, partition 0: wanted offset 2, the earliest there is 5" == (
        raised.value.detail
    )
    where = {"source": captured.spec.name, "group": "billing", "tables": ["public.orders"]}
    at = consumer.move(captured.spec.kafka_bootstrap, **where, start=cdc.GroupStart.BEGINNING)
    assert {(topic, 0): 5} == at
    with orders(captured) as changes:
        assert [6, 7, 8, 9] == [change.key["id"] for change in taken(changes, 4)]
        with pytest.raises(consumer.GroupActiveError):
            consumer.move(captured.spec.kafka_bootstrap, **where, start=cdc.GroupStart.BEGINNING)


def test_a_broken_handler_stops_instead_of_parking_everything(
    database: str, capture: Capture
) -> None:
    from cdc import consumer

    create(database)
    captured = capture("public.orders")
    captured.execute("INSERT INTO orders SELECT g, g FROM generate_series(1, 9) g")

    def handle(_: cdc.Change) -> None:
        raise Broken

    retry = cdc.ConsumerRetryPolicy(1)
    with (
        orders(captured, retry=retry, parked_keys_max=3) as changes,
        pytest.raises(consumer.TooManyParkedError),
    ):
        changes.run(handle, workers=2)

    with orders(captured) as changes:  # what was not parked comes again
        assert {4, 5, 6, 7, 8, 9} == {change.key["id"] for change in taken(changes, 6)}
