"""Transactions that are huge, undone in part, prepared, or open while much else is written."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc.broker.client.admin import consumer
from cdc.broker.topics.offsets import end_offsets, partitions
from cdc.postgres import pressure, session
from cdc.table import TableName
from headwater.runtime.servers.connect import HEAP_MB
from tests.fix_capture import event_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.change_event import ChangeEvent
    from cdc.postgres.pressure import Pressure
    from tests.fix_capture import Captured
    from tests.fix_worker import Worker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROWS = 1_000_000
SAMPLE = 1_000
"""One row in so many is looked at closely."""

FILLER_BYTES = 100_000


@pytest.fixture
def ledger(database: str, capture: Callable[..., Captured], worker: Worker) -> Captured:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE ledger (id int PRIMARY KEY, note text)")
    return capture("public.ledger", connect_url=worker.url)


@pytest.mark.slow
@pytest.mark.soak(minutes=3)
def test_a_million_rows_of_one_transaction_pass_through_a_small_connect(ledger: Captured) -> None:
    assert HEAP_MB == 512
    with psycopg.connect(ledger.database) as connection:
        connection.execute(
            "INSERT INTO ledger SELECT n, 'row ' || n FROM generate_series(1, %s) n", (ROWS,)
        )
        connection.execute("SAVEPOINT a")
        connection.execute("UPDATE ledger SET note = 'undone' WHERE id <= %s", (ROWS // 10,))
        connection.execute("ROLLBACK TO SAVEPOINT a")

    count, keys, sample = _all_records(ledger)

    assert (ROWS, ROWS) == (count, len(keys))
    assert list(range(SAMPLE, ROWS + 1, SAMPLE)) == [event.position.order for event in sample]
    assert 1 == len({event.transaction_id for event in sample})
    assert all(
        event.after == {"id": event.position.order, "note": f"row {event.position.order}"}
        for event in sample
    )
    assert _rises(sample)


def test_what_was_undone_never_comes(ledger: Captured) -> None:
    with psycopg.connect(ledger.database) as connection:
        connection.execute("INSERT INTO ledger VALUES (1, 'kept')")
        connection.execute("SAVEPOINT a")
        connection.execute("UPDATE ledger SET note = 'undone'")
        connection.execute("INSERT INTO ledger VALUES (2, 'undone')")
        connection.execute("SAVEPOINT b")
        connection.execute("DELETE FROM ledger")
        connection.execute("ROLLBACK TO SAVEPOINT a")
        connection.execute("INSERT INTO ledger VALUES (2, 'kept')")
        connection.execute("RELEASE SAVEPOINT a")
    ledger.execute("BEGIN; INSERT INTO ledger VALUES (3, 'undone'); PREPARE TRANSACTION 'undone'")
    ledger.execute("ROLLBACK PREPARED 'undone'")

    assert [(1, "kept"), (2, "kept")] == _told(ledger.events("ledger"))


def test_a_prepared_transaction_comes_when_it_is_committed(ledger: Captured) -> None:
    ledger.execute(
        "INSERT INTO ledger VALUES (1, 'first'), (2, 'first')",
        "BEGIN; UPDATE ledger SET note = 'prepared' WHERE id = 1; PREPARE TRANSACTION 'late'",
        "UPDATE ledger SET note = 'meanwhile' WHERE id = 2",
    )
    found = _pressure(ledger)
    ledger.execute("COMMIT PREPARED 'late'", "UPDATE ledger SET note = 'after' WHERE id = 1")

    events = ledger.events("ledger")

    assert "prepared transaction late" in str(found.writer)
    assert [
        (1, "first"),
        (2, "first"),
        (2, "meanwhile"),
        (1, "prepared"),
        (1, "after"),
    ] == _told(events)
    assert _rises(events)
    versions = [event.position.version for event in events if event.key == {"id": 1}]
    assert sorted(versions) == versions


def test_a_transaction_that_stays_open_keeps_the_log_and_holds_nobody_up(
    ledger: Captured, worker: Worker
) -> None:
    """What others write in an hour is written in a moment, and the reader dies meanwhile.

    The messages are an application's own, which is nobody's concern here.
    """
    with psycopg.connect(ledger.database, application_name="forgetful") as forgetful:
        forgetful.execute("INSERT INTO ledger VALUES (1, 'open for long')")
        for number in range(2, 52):
            ledger.execute(
                f"INSERT INTO ledger VALUES ({number}, 'meanwhile')",  # noqa: S608
                f"SELECT pg_logical_emit_message(false, 'filler', repeat('x', {FILLER_BYTES}))",
            )
        ledger.execute("CHECKPOINT")
        meanwhile = _told(ledger.events("ledger", mark="id"))
        found = _confirmed(ledger, beyond_bytes=50 * FILLER_BYTES)
        worker.kill()
        worker.start()  # and has to read the log again since the open one began
        forgetful.commit()
    worker.await_answer()
    ledger.execute("INSERT INTO ledger VALUES (52, 'last')")

    topic = TableName("public", "ledger").topic(ledger.spec.name)
    records = ledger.read(topic, lambda record: record.key == b'{"id":52}', timeout_s=240)

    assert [(number, "meanwhile") for number in range(2, 52)] == meanwhile
    assert "forgetful" in str(found.writer)
    told = [key for key, _ in _told([event_of(r) for r in records if r.value is not None])]
    assert {1, -1, *range(2, 52)} == set(told)
    assert told[-1] == 1, "last, because it was committed last"


def _all_records(ledger: Captured) -> tuple[int, set[bytes], list[ChangeEvent]]:
    """Returns how many there are, their keys, and some of them decoded."""
    topic = TableName("public", "ledger").topic(ledger.spec.name)
    wait_until(
        lambda: sum(end_offsets(ledger.spec.kafka_bootstrap, [topic]).values()),
        f"{ROWS} records",
        accept=lambda sent: sent >= ROWS,
        timeout_s=600,
        pause_s=0.5,
    )
    keys: set[bytes] = set()
    count, sample = 0, []
    with consumer(ledger.spec.kafka_bootstrap) as client:
        places = partitions(client, [topic])
        client.assign(places)
        client.seek_to_beginning(*places)
        while records := [r for found in client.poll(timeout_ms=2000).values() for r in found]:
            keys |= {record.key for record in records}
            sample += [event_of(r) for r in records if (r.offset + 1) % SAMPLE == 0]
            count += len(records)
    return count, keys, sample


def _confirmed(ledger: Captured, beyond_bytes: int) -> Pressure:
    """Waits until the reader has more than so many bytes that the slot still keeps."""

    def enough(found: Pressure) -> bool:
        read, kept = found.slot.confirmed_flush_lsn, found.slot.restart_lsn
        assert read is not None
        assert kept is not None
        return read.value - kept.value > beyond_bytes

    return wait_until(lambda: _pressure(ledger), f"{beyond_bytes} bytes", accept=enough)


def _pressure(ledger: Captured) -> Pressure:
    with session.connect(ledger.database) as connection:
        found = pressure.look(connection, ledger.spec.slot)
    assert found is not None
    return found


def _told(events: list[ChangeEvent]) -> list[tuple[object, object]]:
    return [(event.after["id"], event.after["note"]) for event in events if event.after]


def _rises(events: list[ChangeEvent]) -> bool:
    return all(one.position < other.position for one, other in pairwise(events))
