"""Compacting streams beside readers, writers and older transactions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from eventstore.errors import (
    ContentionError,
    EventStoreError,
    WrongExpectedVersionError,
)
from eventstore.log import LogPart, StreamPart
from eventstore.model.event import SNAPSHOT_TYPE, AppendRequest, StreamAppend
from eventstore.planning.snapshotting import BEGINNING
from eventstore.postgres import compaction
from eventstore.postgres.audit import PostgresAudit
from eventstore.postgres.log import PostgresEventLog
from eventstore.upkeep.compaction import CompactionPolicy
from tests.fix_counters import (
    ORIGINALS,
    STREAM,
    Added,
    Doubled,
    Streams,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration


def test_a_reader_of_a_stream_has_it_from_one_moment(streams: Streams) -> None:
    streams.append(*map(Added, range(8)))
    before = streams.read()

    reader = streams.log.read_stream("default", STREAM)
    first = next(reader)
    streams.compact(6)

    assert before == [first, *reader]


def test_a_reader_who_comes_back_for_more_is_right_with_the_snapshot_in_the_middle(
    streams: Streams,
) -> None:
    streams.append(*map(Added, range(8)))
    part = StreamPart(limit=3)
    pages = streams.read(part)

    streams.compact(6)
    pages += streams.read(StreamPart(after=pages[-1].stream_position))

    assert [1, 2, 3, 6, 7, 8] == [row.stream_position for row in pages]
    assert streams.truth() == streams.after(BEGINNING, pages)


def test_a_transaction_that_has_read_the_stream_before_still_reads_it_whole(
    streams: Streams,
) -> None:
    streams.append(*map(Added, range(4)))
    with psycopg.connect(streams.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        count = "SELECT count(*) FROM eventstore.events"
        before = connection.execute(count).fetchone()

        streams.compact(3)

        assert (4,) == before == connection.execute(count).fetchone()


def test_a_reader_of_the_log_sees_each_event_once_while_all_streams_are_compacted(
    store_dsn: str,
) -> None:
    log = PostgresEventLog(store_dsn, page=7)
    streams = Streams(log, store_dsn)
    names = [f"counter-{number}" for number in range(12)]
    for _ in range(5):
        for name in names:
            streams.append(*map(Added, range(4)), stream=name)
    before = [event.event_id for event in log.read_log("default")]
    compacting = threading.Thread(target=compact_all, args=(streams,))

    compacting.start()
    reads = [[event.event_id for event in log.read_log("default")]]
    while compacting.is_alive():
        reads.append([event.event_id for event in log.read_log("default")])
    compacting.join()
    backwards = [event.event_id for event in log.read_log("default", LogPart(backwards=True))]
    log.close()

    assert all(before == read for read in reads)
    assert before == backwards[::-1]
    assert 12 == sum(1 for name in names if streams_rows(store_dsn, name) == 2)


def compact_all(streams: Streams) -> None:
    for keep in (15, 9, 4, 1):
        policy = CompactionPolicy("counter", larger_than=keep + 1, keep_events=keep)
        streams.compactor.compact_category(streams.fold, policy)


def streams_rows(dsn: str, name: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM eventstore.events WHERE stream = %s", (name,)
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_writers_and_several_compactors_at_once_leave_every_stream_right(
    streams: Streams,
) -> None:
    streams.append(Added(1))
    problems: list[BaseException] = []
    written = threading.Event()

    def write() -> None:
        try:
            for number in range(120):
                streams.append(Added(number))
        except BaseException as error:  # noqa: BLE001  # shown below
            problems.append(error)
        finally:
            written.set()

    def compact() -> None:
        try:
            while not written.is_set():
                streams.compact()
        except BaseException as error:  # noqa: BLE001  # shown below
            problems.append(error)

    threads = [threading.Thread(target=work) for work in (write, compact, compact)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    streams.compact()

    assert [] == problems
    assert [(121, SNAPSHOT_TYPE)] == streams.rows()
    assert list(range(1, 122)) == [row.stream_position for row in streams.read(ORIGINALS)]
    assert streams.truth() == streams.state()
    assert PostgresAudit(streams.dsn).verify().clean


def test_an_append_under_way_is_waited_for_and_then_kept(streams: Streams) -> None:
    streams.append(*map(Added, range(4)))
    done: list[Any] = []
    with psycopg.connect(streams.dsn) as writer:
        made = streams.fold.codec.encode(Added(9), tenant="default", stream=STREAM)
        request = AppendRequest((StreamAppend(STREAM, (made,)),))
        streams.log.append(request, connection=writer)
        compacting = threading.Thread(target=lambda: done.append(streams.compact(4)))
        compacting.start()
        compacting.join(0.3)

        assert compacting.is_alive()
        writer.commit()
    compacting.join()

    assert [(STREAM, 4, 4)] == done
    assert [(4, SNAPSHOT_TYPE), (5, "counter.added")] == streams.rows()


def test_a_writer_that_does_not_end_is_not_waited_for_for_ever(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LOCK_TIMEOUT_MS", 100)
    streams.append(*map(Added, range(4)))
    with psycopg.connect(streams.dsn) as writer:
        made = streams.fold.codec.encode(Added(9), tenant="default", stream=STREAM)
        streams.log.append(AppendRequest((StreamAppend(STREAM, (made,)),)), connection=writer)

        with pytest.raises(ContentionError):
            streams.compact(4)

    assert 5 == len(streams.rows())


@pytest.fixture
def old_transaction(store_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction whose snapshot is older than everything that is written later."""
    with psycopg.connect(store_dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM eventstore.events")
        yield connection
        connection.rollback()


def test_what_an_older_transaction_does_not_see_yet_is_not_made_free_for_it(
    streams: Streams,
    old_transaction: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_TIMEOUT_S", 0.2)
    streams.append(*map(Added, range(4)))

    with pytest.raises(ContentionError, match="a transaction is older"):
        streams.compact(3)

    made = streams.fold.codec.encode(Added(9), tenant="default", stream=STREAM)
    with pytest.raises((psycopg.Error, EventStoreError)):
        streams.log.append(
            AppendRequest((StreamAppend(STREAM, (made,), 0),)), connection=old_transaction
        )
    old_transaction.rollback()
    assert (STREAM, 3, 3) == streams.compact(3)


def test_a_transaction_that_began_later_holds_no_compaction_up(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SNAPSHOT_TIMEOUT_S", 0.0)
    streams.append(*map(Added, range(4)))
    with psycopg.connect(streams.dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM eventstore.events")

        assert (STREAM, 3, 3) == streams.compact(3)


def test_a_stale_writer_who_waited_for_a_compaction_is_still_refused(streams: Streams) -> None:
    streams.append(*map(Added, range(4)))
    answers: list[Any] = []

    def stale() -> None:
        try:
            answers.append(streams.append(Doubled(), expected=1))
        except WrongExpectedVersionError as error:
            answers.append(error.actual)

    with psycopg.connect(streams.dsn) as connection:
        connection.execute(
            "SELECT eventstore.compact('default', %s, %s, 3, gen_random_uuid(), '{}')",
            (STREAM, streams.read()[0].event_id),
        )
        writer = threading.Thread(target=stale)
        writer.start()
        writer.join(0.3)
        connection.commit()
    writer.join()

    assert [4] == answers
    assert [3, 4] == [place for place, _ in streams.rows()]
