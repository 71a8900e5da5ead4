"""PostgresEventLog: the event log on Postgres; functions in the schema enforce its rules."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import stamina

from eventstore.errors import (
    ConditionFailedError,
    ContentionError,
    WrongExpectedVersionError,
)
from eventstore.forking import renew_after_fork
from eventstore.log import WHOLE_LOG, WHOLE_STREAM
from eventstore.model.event import Appended, AppendRequest, StoredEvent
from eventstore.postgres import answer, statement
from eventstore.postgres.connection import (
    CONNECTIONS_MAX,
    check_address,
    joined,
    own_cursor,
)
from eventstore.postgres.errors import EVENT_ID, STREAM_POSITION, translated, violated
from eventstore.postgres.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg import Connection

    from eventstore.log import Boundary, LogPart, Repeated, StateSnapshot, StreamPart
    from eventstore.model.query import Query
    from eventstore.postgres.statement import Statement

RETRIES: Final[dict[str, Any]] = {
    "attempts": 7,
    "wait_initial": 0.005,
    "wait_max": 0.2,
    "wait_jitter": 0.02,
    "timeout": None,
}
"""Of an append that met a deadlock or a serialization failure; waits are in seconds."""

PAGE: Final = 5_000
"""Events of one statement in a read of the log: some MiB in flight."""


class PostgresEventLog:
    """An `EventLog` on one Postgres database.

    Args:
        dsn: The database; never shown.
        connections_max: Size of the connection pool; further writers wait.
        page: Number of events that one statement of a log read fetches.

    Raises:
        StoreUnavailableError: The database cannot be reached.
    """

    def __init__(
        self, dsn: str, *, connections_max: int = CONNECTIONS_MAX, page: int = PAGE
    ) -> None:
        check_address(dsn)
        self._sessions = Sessions(dsn, connections_max)
        self._page = page
        self._mark = 0
        self._marking = threading.Lock()
        renew_after_fork(self)

    def append(self, request: AppendRequest, *, connection: Any = None) -> Appended:
        """See `EventLog.append`."""
        if connection is not None:
            return self._append_joined(request, joined(connection))
        asked = statement.append(request)
        try:
            return self._append(request, asked)
        except ContentionError:
            # it was rolled back as a whole, so nothing stands in the way of a repetition
            for attempt in stamina.retry_context(on=ContentionError, **RETRIES):
                with attempt:
                    return self._append(request, asked)
            raise

    def _append(self, request: AppendRequest, asked: Statement) -> Appended:
        try:
            row = self._executed(request.tenant, asked)
            if row is not None:
                return statement.appended(request, row)
        except psycopg.Error as error:
            # of the plain INSERT: another writer was at this version, too, and came first
            lost = violated(error) == STREAM_POSITION and statement.plain(asked)
            if violated(error) == EVENT_ID:
                if done := self._repeated(request):
                    return done
            elif not lost:
                raise translated(error, writing=True) from error
        except (WrongExpectedVersionError, ConditionFailedError):
            if done := self._repeated(request):
                return done
            raise
        return self._refused(request)

    def _executed(self, tenant: str, asked: Statement) -> Sequence[Any] | None:
        with self._sessions.acting(tenant) as connection:
            connection.writer.execute(asked.sql, asked.parameters, prepare=True)
            row: Sequence[Any] | None = connection.writer.fetchone()
            connection.used_at = time.monotonic()
            return row

    def _refused(self, request: AppendRequest) -> Appended:
        """An append that found its stream at another version, unless it is there already."""
        if done := self._repeated(request):
            return done
        actual = self.stream_version(request.tenant, request.appends[0].stream)
        raise statement.wrong_version(request, actual)

    def _append_joined(self, request: AppendRequest, connection: Connection[Any]) -> Appended:
        asked = statement.append(request, joined=True)
        with _translating():
            row = own_cursor(connection).execute(asked.sql, asked.parameters).fetchone()
        return statement.appended(request, row or ())

    def _repeated(self, request: AppendRequest) -> Appended | None:
        found = self._events(statement.events_by_id(request), request.tenant)
        done = statement.repeated(request, found)
        if done is None or 0 not in done.versions:
            return done
        tenant, streams = request.tenant, [append.stream for append in request.appends]
        versions = [
            version or self.stream_version(tenant, stream)
            for stream, version in zip(streams, done.versions, strict=True)
        ]
        return replace(done, versions=tuple(versions))

    def read_stream(
        self,
        tenant: str,
        stream: str,
        part: StreamPart = WHOLE_STREAM,
        *,
        connection: Any = None,
    ) -> Iterator[StoredEvent]:
        """See `EventLog.read_stream`."""
        asked = statement.read_stream(tenant, stream, part)
        if connection is None:
            found = self._events(asked, tenant)
        else:
            found = _joined_events(joined(connection), asked, tenant)
        return iter(answer.of_stream(found, tenant, stream))

    def read_log(self, tenant: str | None, part: LogPart = WHOLE_LOG) -> Iterator[StoredEvent]:
        """See `EventLog.read_log`."""
        mark = self.high_water_mark()
        return self._pages(tenant, part, mark if part.through is None else min(mark, part.through))

    def _pages(self, tenant: str | None, part: LogPart, through: int) -> Iterator[StoredEvent]:
        # While one page is turned into events here, the server prepares the next. A child that was
        # forked meanwhile has no thread that would, and goes on page by page.
        process = os.getpid()
        with ThreadPoolExecutor(1, thread_name_prefix="eventstore-read") as ahead:
            bounds = _Bounds(part.after, through, part.limit)
            limit = bounds.page(self._page)
            page = self._page_of(tenant, part, bounds, limit) if limit else None
            while page is not None:
                following, full, asked = None, page.rowcount == limit, bounds
                if full:
                    bounds = bounds.beyond(_last_position(page), limit, backwards=part.backwards)
                    limit = bounds.page(self._page)
                    if limit and process == os.getpid():
                        following = ahead.submit(self._page_of, tenant, part, bounds, limit)
                events = list(map(StoredEvent._make, page.fetchall()))
                yield from answer.of_range(events, tenant, asked.after, asked.through)
                if not full or not limit:
                    return
                if following is None or process != os.getpid():
                    page = self._page_of(tenant, part, bounds, limit)
                else:
                    page = following.result()

    def _page_of(
        self, tenant: str | None, part: LogPart, bounds: _Bounds, limit: int
    ) -> psycopg.Cursor[Any]:
        asked = statement.read_log(
            tenant, part, after=bounds.after, through=bounds.through, limit=limit
        )
        return self._answer(asked, tenant)

    def high_water_mark(self) -> int:
        """See `EventLog.high_water_mark`."""
        mark, head = self._row(statement.HIGH_WATER_MARK)
        # What was complete stays complete, though a slow writer may set the database's answer back.
        # Beyond the head there is nothing: then the log was restored to an earlier time.
        with self._marking:
            self._mark = max(mark, self._mark) if self._mark <= head else mark
            return self._mark

    def head(self) -> int:
        """Returns the last assigned global position, committed or not."""
        return int(self._row(statement.HEAD)[0])

    def stream_version(self, tenant: str, stream: str, *, connection: Any = None) -> int:
        """See `EventLog.stream_version`."""
        return int(self._row(statement.stream_version(tenant, stream), tenant, connection)[0])

    def result_of(self, tenant: str, key: str, *, connection: Any = None) -> Repeated | None:
        """See `EventLog.result_of`."""
        row = self._row(statement.result_of(tenant, key), tenant, connection)
        return statement.known_result(row or None)

    def read_boundary(self, tenant: str, query: Query, *, connection: Any = None) -> Boundary:
        """See `EventLog.read_boundary`."""
        asked = statement.read_boundary(tenant, query)
        if connection is None:
            return statement.boundary(self._answer(asked, tenant).fetchall())
        with _translating():
            rows = _joined_cursor(joined(connection), asked, tenant).fetchall()
        return statement.boundary(rows)

    def snapshot(
        self, tenant: str, stream: str, fold: str, *, through: int | None = None
    ) -> StateSnapshot | None:
        """See `EventLog.snapshot`."""
        row = self._row(statement.snapshot(tenant, stream, fold, through), tenant)
        return statement.known_snapshot(row or None)

    def save_snapshot(self, tenant: str, snapshot: StateSnapshot) -> None:
        """See `EventLog.save_snapshot`."""
        self._row(statement.save_snapshot(tenant, snapshot), tenant)

    def close(self) -> None:
        """See `EventLog.close`."""
        self._sessions.close()

    def after_fork(self) -> None:
        """See `Forked`."""
        self._marking = threading.Lock()

    def _row(
        self, asked: Statement, tenant: str | None = None, connection: Any = None
    ) -> Sequence[Any]:
        """The first row, or nothing."""
        with _translating():
            if connection is not None:
                return _row_of(_joined_cursor(joined(connection), asked, tenant))
            with self._sessions.acting(tenant) as own:
                return _row_of(own.execute(asked.sql, asked.parameters, binary=True))

    def _events(self, asked: Statement, tenant: str | None) -> list[StoredEvent]:
        found = list(map(StoredEvent._make, self._answer(asked, tenant).fetchall()))
        return answer.of_tenant(found, tenant)

    def _answer(self, asked: Statement, tenant: str | None) -> psycopg.Cursor[Any]:
        """A cursor that has all its rows in memory and needs its connection no more."""
        with _translating(), self._sessions.acting(tenant) as connection:
            return connection.cursor(binary=True).execute(asked.sql, asked.parameters)


class _Bounds(NamedTuple):
    """What is left to read of the log: `after < global position <= through`, `left` at most."""

    after: int
    through: int
    left: int | None

    def page(self, size: int) -> int:
        """Size of the next page; 0 if nothing is left."""
        if self.after >= self.through:
            return 0
        return size if self.left is None else min(size, self.left)

    def beyond(self, last: int, count: int, *, backwards: bool) -> _Bounds:
        """What is left after a page of `count` events that ended at `last`."""
        left = None if self.left is None else self.left - count
        if backwards:
            return _Bounds(self.after, last - 1, left)
        return _Bounds(last, self.through, left)


def _last_position(page: psycopg.Cursor[Any]) -> int:
    result = page.pgresult
    value = result.get_value(page.rowcount - 1, 0) if result else None
    return int.from_bytes(value or b"", "big")  # binary int8; positions are positive


def _joined_cursor(
    connection: Connection[Any], asked: Statement, tenant: str | None
) -> psycopg.Cursor[Any]:
    cursor = own_cursor(connection)
    if tenant is not None:
        cursor.execute("SELECT set_config('eventstore.tenant', %s, true)", (tenant,))
    return cursor.execute(asked.sql, asked.parameters)


def _joined_events(connection: Connection[Any], asked: Statement, tenant: str) -> list[StoredEvent]:
    with _translating():
        rows = _joined_cursor(connection, asked, tenant).fetchall()
    return list(map(StoredEvent._make, rows))


def _row_of(cursor: psycopg.Cursor[Any]) -> Sequence[Any]:
    return () if cursor.description is None else cursor.fetchone() or ()


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translated(error) from error
