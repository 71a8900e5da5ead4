"""Global order without a global lock: what readers see while writers are under way."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest

from eventstore.errors import StoreUnavailableError
from eventstore.log import LogPart, StreamPart
from eventstore.model.event import AppendRequest, NewEvent, StreamAppend
from eventstore.postgres.log import PostgresEventLog

pytestmark = pytest.mark.integration

APPENDED = "SELECT eventstore.append_event('default', %s, -1, 'note.made', 1::smallint, %s,"
APPENDED += " '{}', NULL, now(), NULL, NULL, NULL)"


def note(stream: str) -> AppendRequest:
    event = NewEvent("note.made", b"{}", uuid4(), datetime.now(UTC))
    return AppendRequest((StreamAppend(stream, (event,)),))


def append_on(connection: psycopg.Connection, stream: str) -> int:
    row = connection.execute(APPENDED, [stream, uuid4()]).fetchone()
    assert row is not None
    return int(row[0][0])


def seen(log: PostgresEventLog, after: int = 0) -> list[tuple[str, int]]:
    return [(e.stream, e.global_position) for e in log.read_log("default", LogPart(after=after))]


def test_a_reader_waits_for_a_writer_paused_between_insert_and_commit(pg_log, store_dsn):
    with psycopg.connect(store_dsn) as paused:
        early = append_on(paused, "note-early")
        late = pg_log.append(note("note-late")).token.global_position

        assert early < late
        assert [] == seen(pg_log)
        assert early > pg_log.high_water_mark()

        paused.commit()

    assert [("note-early", early), ("note-late", late)] == seen(pg_log)


def test_what_was_written_before_the_paused_writer_began_is_read_meanwhile(pg_log, store_dsn):
    first = pg_log.append(note("note-1")).token.global_position
    with psycopg.connect(store_dsn) as paused:
        append_on(paused, "note-2")
        pg_log.append(note("note-3"))

        assert [("note-1", first)] == seen(pg_log)


def test_a_rolled_back_position_is_a_gap_that_holds_nobody_back(pg_log, store_dsn):
    with psycopg.connect(store_dsn) as undone:
        gap = append_on(undone, "note-gone")
        after = pg_log.append(note("note-1")).token.global_position
        undone.rollback()

    assert gap < after
    assert [("note-1", after)] == seen(pg_log)
    assert after == pg_log.high_water_mark()


def test_a_writer_whose_connection_dies_holds_nobody_back(pg_log, store_dsn):
    dying = psycopg.connect(store_dsn)
    append_on(dying, "note-gone")
    after = pg_log.append(note("note-1")).token.global_position
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        killed = admin.execute("SELECT pg_terminate_backend(%s, 10000)", [dying.info.backend_pid])
        assert (True,) == killed.fetchone()
    dying.close()

    assert [("note-1", after)] == seen(pg_log)


def test_a_reader_replaced_while_a_gap_is_open_misses_nothing(store_dsn, pg_log):
    """The mark is found in the database alone: a new reader knows as much as the one before."""
    before = pg_log.append(note("note-1")).token.global_position
    with psycopg.connect(store_dsn) as paused:
        early = append_on(paused, "note-2")
        late = pg_log.append(note("note-3")).token.global_position
        first = PostgresEventLog(store_dsn)
        checkpoint = seen(first)[-1][1]
        first.close()
        second = PostgresEventLog(store_dsn)
        while_open = seen(second, checkpoint)
        paused.commit()
        then = seen(second, checkpoint)
        second.close()

    assert (before, []) == (checkpoint, while_open)
    assert [("note-2", early), ("note-3", late)] == then


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_an_unrelated_idle_transaction_does_not_stall_the_log(pg_log, store_dsn, isolation):
    with psycopg.connect(store_dsn) as idle:
        idle.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        idle.execute("CREATE TABLE unrelated (x int)")
        idle.execute("SELECT pg_current_xact_id(), count(*) FROM eventstore.events")
        position = pg_log.append(note("note-1")).token.global_position

        assert position == pg_log.high_water_mark()
        assert [("note-1", position)] == seen(pg_log)


def test_a_savepoint_that_is_rolled_back_leaves_the_writer_known(pg_log, store_dsn):
    with psycopg.connect(store_dsn) as writer:
        writer.execute("SAVEPOINT undone")
        append_on(writer, "note-1")
        writer.execute("ROLLBACK TO undone")
        again = append_on(writer, "note-1")
        pg_log.append(note("note-2"))

        assert again > pg_log.high_water_mark()


def test_a_transaction_of_many_appends_takes_one_lock_for_the_mark(store_dsn):
    with psycopg.connect(store_dsn) as writer:
        for _ in range(50):
            append_on(writer, "note-1")
        locks = writer.execute("SELECT count(*) FROM eventstore.writers_under_way").fetchone()

    assert (1,) == locks


def test_who_holds_the_mark_back_is_told(pg_log, store_dsn):
    with psycopg.connect(store_dsn, application_name="slow importer") as writer:
        append_on(writer, "note-1")
        with psycopg.connect(store_dsn) as looking:
            found = looking.execute(
                "SELECT pid, application_name, state FROM eventstore.writers_under_way"
            ).fetchall()
        pid = writer.info.backend_pid

    assert [(pid, "slow importer", "idle in transaction")] == found


def test_a_snapshot_older_than_the_mark_is_refused(store_dsn):
    with psycopg.connect(store_dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.Error, match="read committed"):
            reader.execute("SELECT eventstore.high_water_mark()")


def test_a_database_that_defaults_to_another_isolation_is_read_and_written_all_the_same(store_dsn):
    with psycopg.connect(store_dsn, autocommit=True) as owner:
        name = owner.info.dbname
        owner.execute(f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
    log = PostgresEventLog(store_dsn)
    position = log.append(note("note-1")).token.global_position
    found = seen(log)
    log.close()

    assert [("note-1", position)] == found


def test_writers_of_different_streams_do_not_wait_for_each_other(pg_log, store_dsn):
    with psycopg.connect(store_dsn) as paused:
        append_on(paused, "note-1")
        with psycopg.connect(store_dsn) as other:
            other.execute("SET lock_timeout = '5s'")

            assert append_on(other, "note-2") > 0


def test_readers_racing_writers_that_pause_and_roll_back_see_every_event_once(store_dsn):
    log = PostgresEventLog(store_dsn)
    written: set[int] = set()
    done = threading.Event()
    writers = [
        threading.Thread(target=write_and_waver, args=(store_dsn, seed, written))
        for seed in range(8)
    ]
    readings: list[list[int]] = [[], []]
    readers = [threading.Thread(target=follow, args=(log, reading, done)) for reading in readings]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    everything = [e.global_position for e in log.read_log("default")]
    log.close()

    assert sorted(written) == everything
    assert [everything, everything] == readings


def write_and_waver(dsn: str, seed: int, written: set[int]) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable, not secret
    with psycopg.connect(dsn) as connection:
        for _ in range(60):
            positions = [append_on(connection, f"note-{rng.randrange(100)}-{seed}")]
            if rng.random() < 0.3:
                connection.execute("SELECT pg_sleep(%s)", [rng.random() / 100])
                positions.append(append_on(connection, f"note-{rng.randrange(100)}-{seed}"))
            if rng.random() < 0.3:
                connection.rollback()
            else:
                connection.commit()
                written.update(positions)


def follow(log: PostgresEventLog, reading: list[int], done: threading.Event) -> None:
    while True:
        last_round = done.is_set()
        checkpoint = reading[-1] if reading else 0
        reading.extend(e.global_position for e in log.read_log(None, LogPart(after=checkpoint)))
        if last_round:
            return


def test_a_clock_that_was_set_back_makes_no_hole_in_what_was_then(pg_log, store_dsn):
    """As of an instant a stream is a beginning of itself, whatever the clock said later."""
    for _ in range(4):
        pg_log.append(note("note-1"))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with psycopg.connect(store_dsn) as clock:
        clock.execute("SET LOCAL eventstore.compacting = 'on'")
        for place, minutes in ((1, 0), (2, 60), (3, -30), (4, 90)):
            clock.execute(
                "UPDATE eventstore.events SET recorded_at = %s WHERE stream_position = %s",
                [noon + timedelta(minutes=minutes), place],
            )
    then = {
        minutes: [
            event.stream_position
            for event in pg_log.read_stream(
                "default", "note-1", StreamPart(as_of=noon + timedelta(minutes=minutes))
            )
        ]
        for minutes in (-10, 10, 70, 100)
    }

    assert {-10: [], 10: [1], 70: [1, 2, 3], 100: [1, 2, 3, 4]} == then


def test_a_database_that_is_not_there_is_named_at_once():
    with pytest.raises(StoreUnavailableError, match="cannot connect"):
        PostgresEventLog("postgresql://nobody:secret@127.0.0.1:1/none")
