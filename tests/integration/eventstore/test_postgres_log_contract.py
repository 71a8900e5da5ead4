"""The event log on Postgres keeps the contract that every event log keeps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from eventstore.errors import WrongExpectedVersionError
from eventstore.log import LogPart
from eventstore.model.expected_version import NO_STREAM
from eventstore.postgres import append_statement
from eventstore.postgres.async_log import AsyncPostgresEventLog
from eventstore.postgres.log import PostgresEventLog
from eventstore.testing import (
    AsyncEventLogContract,
    BlockingLog,
    EventLogContract,
    append_to,
)
from eventstore.testing.log_reading import LogReadingContract
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration


class TestPostgresEventLog(EventLogContract):
    @pytest.fixture
    def log(self, pg_log: PostgresEventLog) -> PostgresEventLog:
        return pg_log


class TestAsyncPostgresEventLog(AsyncEventLogContract):
    @pytest.fixture
    def async_log(self, store_dsn: str) -> AsyncPostgresEventLog:
        return AsyncPostgresEventLog(store_dsn)


class TestLogReadInSmallPages(LogReadingContract):
    @pytest.fixture
    def log(self, store_dsn: str) -> Iterator[PostgresEventLog]:
        log = PostgresEventLog(store_dsn, page=3)
        yield log
        log.close()


class TestAsyncLogReadInSmallPages(LogReadingContract):
    @pytest.fixture
    def log(self, store_dsn: str) -> Iterator[BlockingLog]:
        log = BlockingLog(AsyncPostgresEventLog(store_dsn, page=3))
        yield log
        log.close()
        log.stop()


def test_a_mark_stays_complete_though_a_slow_writer_sets_it_back(pg_log, store_dsn):
    """A writer may take its floor from the sequence, and its lock only after others committed."""
    pg_log.append(append_to("order-1"))
    pg_log.append(append_to("order-2"))
    mark = pg_log.high_water_mark()
    with psycopg.connect(store_dsn) as slow:
        slow.execute("SELECT FROM eventstore.events WHERE false")
        slow.execute("SELECT pg_advisory_xact_lock_shared(1749231, 0)")
        promised = list(pg_log.read_log(None, LogPart(through=mark)))

    assert ["order-1", "order-2"] == [event.stream for event in promised]


def test_the_mark_of_a_moment_at_which_a_writer_begins_is_the_head(pg_log, store_dsn):
    """A floor that was drawn after the reader's head is above it, not far below."""
    last = pg_log.append(append_to("order-1")).token.global_position
    with psycopg.connect(store_dsn) as ahead:
        ahead.execute("SELECT FROM eventstore.events WHERE false")
        ahead.execute("SELECT pg_advisory_xact_lock_shared(1749231, %s)", [last + 5])

        assert last == pg_log.high_water_mark()


def test_a_joined_append_that_loses_leaves_the_caller_s_transaction_usable(pg_log, store_dsn):
    """Its rival commits between the look at the stream's version and the row."""
    with psycopg.connect(store_dsn) as rival, psycopg.connect(store_dsn) as caller:
        asked = append_statement.append(append_to("order-1", expected_version=0))
        rival.execute(asked.sql, asked.parameters, binary=True)
        with ThreadPoolExecutor(1) as thread:
            losing = thread.submit(
                pg_log.append, append_to("order-1", expected_version=0), connection=caller
            )
            wait_until_blocked(store_dsn, caller.info.backend_pid)
            rival.commit()
            with pytest.raises(WrongExpectedVersionError):
                losing.result()

        assert (1,) == caller.execute("SELECT 1").fetchone()


def wait_until_blocked(dsn: str, pid: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as looking:
        blocked = "SELECT pg_blocking_pids(%s) <> '{}'"
        wait_until(
            lambda: looking.execute(blocked, [pid]).fetchone(),
            "a session that is blocked",
            accept=lambda row: row == (True,),
        )


COMPACT = """
SET LOCAL eventstore.compacting = 'on';
INSERT INTO eventstore.archived_events SELECT * FROM eventstore.events WHERE stream_position <= 2;
DELETE FROM eventstore.events WHERE stream_position <= 2;
INSERT INTO eventstore.events (global_position, tenant, stream, stream_position, type,
                               schema_version, event_id, data, occurred_at)
SELECT global_position, tenant, stream, stream_position, '$snapshot', 1, gen_random_uuid(), '{}',
       occurred_at
  FROM eventstore.archived_events
 WHERE stream_position = 2;
"""


def test_a_compacted_stream_is_a_stream(pg_log, store_dsn):
    """Its first positions are in the archive, where no index of the events stands in the way."""
    for _ in range(3):
        pg_log.append(append_to("order-1"))
    with psycopg.connect(store_dsn) as compaction:
        compaction.execute(COMPACT)

    with pytest.raises(WrongExpectedVersionError):
        pg_log.append(append_to("order-1", expected_version=NO_STREAM))
    assert 4 == pg_log.append(append_to("order-1", expected_version=3)).version
