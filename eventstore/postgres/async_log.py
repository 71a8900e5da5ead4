"""AsyncPostgresEventLog: the event log on Postgres for asyncio, with the same statements."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg
import stamina
from psycopg import AsyncConnection, AsyncCursor

from eventstore.errors import (
    ConditionFailedError,
    ContentionError,
    WrongExpectedVersionError,
)
from eventstore.log import WHOLE_LOG, WHOLE_STREAM
from eventstore.model.event import Appended, AppendRequest, StoredEvent
from eventstore.postgres import answer, append_statement, statement
from eventstore.postgres.async_paging import items, pages
from eventstore.postgres.connection import (
    CONNECTIONS_MAX,
    check_address,
    joined,
    own_cursor,
)
from eventstore.postgres.errors import EVENT_ID, STREAM_POSITION, translated, violated
from eventstore.postgres.high_water_mark import HighWaterMark
from eventstore.postgres.sessions import AsyncSessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

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
"""Retries of an append after a deadlock or a serialization failure; waits are in seconds."""

PAGE: Final = 5_000
"""Events that one statement of a log read fetches: some MiB."""


class AsyncPostgresEventLog:
    """An `AsyncEventLog` on one Postgres database; belongs to the event loop that first uses it.

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
        self._sessions = AsyncSessions(dsn, connections_max)
        self._page = page
        self._mark = HighWaterMark()

    async def append(self, request: AppendRequest, *, connection: Any = None) -> Appended:
        """See `EventLog.append`."""
        if connection is not None:
            return await self._append_joined(request, joined(AsyncConnection, connection))
        asked = append_statement.append(request)
        try:
            return await self._append(request, asked)
        except ContentionError:
            # the transaction was rolled back, so the append can be repeated
            async for attempt in stamina.retry_context(on=ContentionError, **RETRIES):
                with attempt:
                    return await self._append(request, asked)
            raise

    async def _append(self, request: AppendRequest, asked: Statement) -> Appended:
        try:
            row = await self._executed(request.tenant, asked)
            if row is not None:
                return append_statement.appended(request, row)
        except psycopg.Error as error:
            # the plain INSERT violates the unique index if another writer used the version first
            lost = violated(error) == STREAM_POSITION and append_statement.plain(asked)
            if violated(error) == EVENT_ID:
                if done := await self._repeated(request):
                    return done
            elif not lost:
                raise translated(error, writing=True) from error
        except (WrongExpectedVersionError, ConditionFailedError):
            if done := await self._repeated(request):
                return done
            raise
        return await self._refused(request)

    async def _executed(self, tenant: str, asked: Statement) -> Sequence[Any] | None:
        async with self._sessions.acting(tenant) as connection:
            await connection.writer.execute(asked.sql, asked.parameters, prepare=True)
            row: Sequence[Any] | None = await connection.writer.fetchone()
            connection.used_at = time.monotonic()
            return row

    async def _refused(self, request: AppendRequest) -> Appended:
        """Returns the first result of a repeated append, else raises the version conflict."""
        if done := await self._repeated(request):
            return done
        actual = await self.stream_version(request.tenant, request.appends[0].stream)
        raise append_statement.wrong_version(request, actual)

    async def _append_joined(
        self, request: AppendRequest, connection: AsyncConnection[Any]
    ) -> Appended:
        asked = append_statement.append(request, joined=True)
        with _translating():
            cursor = await own_cursor(AsyncCursor, connection).execute(asked.sql, asked.parameters)
            row = await cursor.fetchone()
        return append_statement.appended(request, row or ())

    async def _repeated(self, request: AppendRequest) -> Appended | None:
        found = await self._events(statement.events_by_id(request), request.tenant)
        done = append_statement.repeated(request, found)
        if done is None or 0 not in done.versions:
            return done
        tenant, streams = request.tenant, [append.stream for append in request.appends]
        versions = [
            version or await self.stream_version(tenant, stream)
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
    ) -> AsyncIterator[StoredEvent]:
        """See `EventLog.read_stream`."""
        return items(self._stream, tenant, stream, part, connection)

    async def _stream(
        self, tenant: str, stream: str, part: StreamPart, connection: Any
    ) -> list[StoredEvent]:
        asked = statement.read_stream(tenant, stream, part)
        found = await self._events(asked, tenant, connection)
        return answer.of_stream(found, tenant, stream)

    def read_log(self, tenant: str | None, part: LogPart = WHOLE_LOG) -> AsyncIterator[StoredEvent]:
        """See `EventLog.read_log`."""
        return pages(self.high_water_mark, self._answer, tenant, part, self._page)

    async def high_water_mark(self) -> int:
        """See `EventLog.high_water_mark`."""
        mark, head = await self._row(statement.HIGH_WATER_MARK)
        return self._mark.seen(mark, head)

    async def head(self) -> int:
        """Returns the last assigned global position, committed or not."""
        row = await self._row(statement.HEAD)
        return int(row[0])

    async def stream_version(self, tenant: str, stream: str, *, connection: Any = None) -> int:
        """See `EventLog.stream_version`."""
        row = await self._row(statement.stream_version(tenant, stream), tenant, connection)
        return int(row[0])

    async def result_of(self, tenant: str, key: str, *, connection: Any = None) -> Repeated | None:
        """See `EventLog.result_of`."""
        row = await self._row(statement.result_of(tenant, key), tenant, connection)
        return statement.known_result(row or None)

    async def read_boundary(self, tenant: str, query: Query, *, connection: Any = None) -> Boundary:
        """See `EventLog.read_boundary`."""
        asked = statement.read_boundary(tenant, query)
        cursor = await self._answer(asked, tenant, connection)
        return statement.boundary(await cursor.fetchall())

    async def snapshot(
        self, tenant: str, stream: str, fold: str, *, through: int | None = None
    ) -> StateSnapshot | None:
        """See `EventLog.snapshot`."""
        row = await self._row(statement.snapshot(tenant, stream, fold, through), tenant)
        return statement.known_snapshot(row or None)

    async def save_snapshot(self, tenant: str, snapshot: StateSnapshot) -> None:
        """See `EventLog.save_snapshot`."""
        await self._row(statement.save_snapshot(tenant, snapshot), tenant)

    async def close(self) -> None:
        """See `EventLog.close`."""
        await self._sessions.close()

    async def _row(
        self, asked: Statement, tenant: str | None = None, connection: Any = None
    ) -> Sequence[Any]:
        """Returns the first row; empty without one."""
        cursor = await self._answer(asked, tenant, connection)
        return () if cursor.description is None else await cursor.fetchone() or ()

    async def _events(
        self, asked: Statement, tenant: str | None, connection: Any = None
    ) -> list[StoredEvent]:
        cursor = await self._answer(asked, tenant, connection)
        found = list(map(StoredEvent._make, await cursor.fetchall()))
        return answer.of_tenant(found, tenant)

    async def _answer(
        self, asked: Statement, tenant: str | None, connection: Any = None
    ) -> AsyncCursor[Any]:
        """Returns a cursor that holds all its rows in memory, independent of its connection."""
        with _translating():
            if connection is not None:
                cursor = own_cursor(AsyncCursor, joined(AsyncConnection, connection))
                if tenant is not None:
                    await cursor.execute(
                        "SELECT set_config('eventstore.tenant', %s, true)", (tenant,)
                    )
                return await cursor.execute(asked.sql, asked.parameters)
            async with self._sessions.acting(tenant) as own:
                return await own.cursor(binary=True).execute(asked.sql, asked.parameters)


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translated(error) from error
