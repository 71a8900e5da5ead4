from __future__ import annotations

import itertools
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import orjson
import psycopg
import pytest

from cdc.envelope import Operation
from cdc.lsn import Lsn
from tests.fix_capture import event_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.change_event import ChangeEvent
    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration


@pytest.fixture
def letters(database: str, capture: Callable[..., Captured]) -> Captured:
    """A captured table with one row that its snapshot reads."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE letters (id int PRIMARY KEY, word text)")
        connection.execute("INSERT INTO letters VALUES (0, 'snapshot')")
    return capture("public.letters")


def words(events: list[ChangeEvent]) -> list[object]:
    return [event.after["word"] for event in events if event.after]


def rises(events: list[ChangeEvent]) -> bool:
    return all(one.position < other.position for one, other in pairwise(events))


def test_rows_of_a_snapshot_precede_the_first_transaction_after_it(letters: Captured) -> None:
    letters.execute("INSERT INTO letters VALUES (1, 'a')", "INSERT INTO letters VALUES (2, 'b')")

    read, first, second = letters.events("letters")

    assert (Operation.READ, True) == (read.operation, read.snapshot)
    assert (Lsn(0), 0) == (read.position.commit_lsn, read.position.order)
    assert read.position.version < first.position.version < second.position.version
    # a beat may come between: then the first has a commit before it, otherwise none
    assert first.position.commit_lsn <= first.position.lsn <= second.position.commit_lsn
    assert rises([read, first, second])


def test_rows_that_copy_writes_share_an_lsn_and_are_told_apart_by_their_number(
    letters: Captured,
) -> None:
    with (
        psycopg.connect(letters.database) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY letters FROM STDIN") as copy,
    ):
        for number in range(1, 501):
            copy.write_row((number, "copied"))

    copied = letters.events("letters")[1:]

    assert 500 == len(copied)
    assert len({event.position.lsn for event in copied}) < 50
    assert list(range(1, 501)) == [event.position.order for event in copied]
    assert rises(copied)


def test_transactions_follow_each_other_by_commit_though_their_rows_interleave(
    letters: Captured,
) -> None:
    with (
        psycopg.connect(letters.database) as early,
        psycopg.connect(letters.database) as late,
    ):
        late.execute("INSERT INTO letters VALUES (1, 'late 1')")
        early.execute("INSERT INTO letters VALUES (2, 'early 1')")
        late.execute("INSERT INTO letters VALUES (3, 'late 2')")
        early.execute("INSERT INTO letters VALUES (4, 'early 2')")
        early.commit()
        late.execute("UPDATE letters SET word = 'late 3' WHERE id = 2")
        late.commit()

    events = letters.events("letters")[1:]

    assert ["early 1", "early 2", "late 1", "late 2", "late 3"] == words(events)
    assert rises(events)
    assert events[2].position.lsn < events[0].position.lsn  # written first, committed last
    one_row = [event for event in events if event.key == {"id": 2}]
    assert one_row[0].position.version < one_row[1].position.version


def test_what_is_rolled_back_leaves_no_event(letters: Captured) -> None:
    with psycopg.connect(letters.database) as connection:
        connection.execute("INSERT INTO letters VALUES (1, 'whole transaction')")
        connection.rollback()
        connection.execute("INSERT INTO letters VALUES (2, 'kept')")
        with connection.transaction(force_rollback=True):
            connection.execute("INSERT INTO letters VALUES (3, 'inner part')")

    assert ["snapshot", "kept"] == words(letters.events("letters"))


def test_a_change_of_key_is_a_delete_and_a_create_at_one_place(letters: Captured) -> None:
    letters.execute("UPDATE letters SET id = 7 WHERE id = 0", "DELETE FROM letters WHERE id = 7")

    records = letters.records("letters")[1:]

    keys = [orjson.loads(record.key) for record in records]
    assert [{"id": 0}, {"id": 0}, {"id": 7}, {"id": 7}, {"id": 7}] == keys
    assert [True, False, True, True, False] == [record.value is not None for record in records]
    delete, create, final = [event_of(record) for record in records if record.value is not None]
    assert ["d", "c", "d"] == [delete.operation, create.operation, final.operation]
    assert delete.position.lsn == create.position.lsn
    assert rises([delete, create, final])


def test_every_record_carries_the_epoch_and_it_comes_first_in_the_order(
    database: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE letters (id int PRIMARY KEY, word text)")
        connection.execute("INSERT INTO letters VALUES (0, 'snapshot')")
    captured = capture("public.letters", epoch=3)
    captured.execute("DELETE FROM letters WHERE id = 0")

    records = captured.records("letters")

    assert 3 == len(records)  # read, delete, tombstone
    assert {b"3"} == {dict(record.headers)["headwater.epoch"] for record in records}
    assert 3 == event_of(records[0]).position.epoch
    assert 3 << 56 < event_of(records[0]).position.version < 4 << 56


def test_truncate_is_an_event_of_its_own(letters: Captured) -> None:
    letters.execute("TRUNCATE letters")

    truncate = letters.events("letters")[-1]

    assert (Operation.TRUNCATE, None) == (truncate.operation, truncate.after)


def test_between_snapshot_and_stream_nothing_is_missing_while_the_source_is_written_to(
    database: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE letters (id int PRIMARY KEY, word text)")
        connection.execute("INSERT INTO letters SELECT g, 'x' FROM generate_series(1, 2000) g")
    numbers, done = itertools.count(2001), threading.Event()

    def write() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not done.wait(0.002):
                connection.execute("INSERT INTO letters VALUES (%s, 'y')", (next(numbers),))

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    captured = capture("public.letters")
    done.set()
    for writer in writers:
        writer.join()

    events = captured.events("letters")

    # a row committed while the snapshot begins may come from both: then the stream's is the later
    assert set(range(1, next(numbers))) == {(event.key or {})["id"] for event in events}
    assert {"r", "c"} == {str(event.operation) for event in events}
