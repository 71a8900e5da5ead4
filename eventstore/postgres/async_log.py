"""AsyncPostgresEventLog: the event log on Postgres for asyncio, with the same statements."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import stamina

from eventstore.errors import (
    ConditionFailedError,
    ContentionError,
    WrongExpectedVersionError,
)
from eventstore.log import WHOLE_LOG, WHOLE_STREAM
from eventstore.model.event import Appended, AppendRequest, StoredEvent
from eventstore.postgres import answer, statement
from eventstore.postgres.connection import (
    CONNECTIONS_MAX,
    check_address,
    joined_async,
    own_async_cursor,
)
from eventstore.postgres.errors import EVENT_ID, STREAM_POSITION, translated, violated
from eventstore.postgres.log import PAGE, RETRIES
from eventstore.postgres.sessions import AsyncSessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from psycopg import AsyncConnection, AsyncCursor

    from eventstore.log import Boundary, LogPart, Repeated, StateSnapshot, StreamPart
    from eventstore.model.query import Query
    from eventstore.postgres.statement import Statement


class AsyncPostgresEventLog:
    """An `AsyncEventLog` on one Postgres database; belongs to the event loop that first uses it.

    Args:
        dsn: The database; never shown.
        connections_max: Size of the connection pool; further tasks wait.
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
        self._mark = 0

    async def append(self, request: AppendRequest, *, connection: Any = None) -> Appended:
        """See `EventLog.append`."""
        if connection is not None:
            return await self._append_joined(request, joined_async(connection))
        asked = statement.append(request)
        try:
            return await self._append(request, asked)
        except ContentionError:
            async for attempt in stamina.retry_context(on=ContentionError, **RETRIES):
                with attempt:
                    return await self._append(request, asked)
            raise

    async def _append(self, request: AppendRequest, asked: Statement) -> Appended:
        try:
            async with self._sessions.acting(request.tenant) as connection:
                cursor = await connection.writer.execute(asked.sql, asked.parameters, prepare=True)
                row = await cursor.fetchone()
                connection.used_at = time.monotonic()
            if row is not None:
                return statement.appended(request, row)
        except psycopg.Error as error:
            # of the plain INSERT: another writer was at this version, too, and came first
            lost = violated(error) == STREAM_POSITION and statement.plain(asked)
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

    async def _refused(self, request: AppendRequest) -> Appended:
        """An append that found its stream at another version, unless it is there already."""
        if done := await self._repeated(request):
            return done
        actual = await self.stream_version(request.tenant, request.appends[0].stream)
        raise statement.wrong_version(request, actual)

    async def _append_joined(
        self, request: AppendRequest, connection: AsyncConnection[Any]
    ) -> Appended:
        asked = statement.append(request, joined=True)
        async with _translating():
            cursor = own_async_cursor(connection)
            row = await (await cursor.execute(asked.sql, asked.parameters)).fetchone()
        return statement.appended(request, row or ())

    async def _repeated(self, request: AppendRequest) -> Appended | None:
        found = await self._events(statement.events_by_id(request), request.tenant)
        done = statement.repeated(request, found)
        if done is None or 0 not in done.versions:
            return done
        tenant, streams = request.tenant, [append.stream for append in request.appends]
        versions = [
            version or await self.stream_version(tenant, stream)
            for stream, version in zip(streams, done.versions, strict=True)
        ]
        return replace(done, versions=tuple(versions))

    async def read_stream(
        self,
        tenant: str,
        stream: str,
        part: StreamPart = WHOLE_STREAM,
        *,
        connection: Any = None,
    ) -> AsyncIterator[StoredEvent]:
        """See `EventLog.read_stream`."""
        asked = statement.read_stream(tenant, stream, part)
        found = await self._events(asked, tenant, connection)
        for event in answer.of_stream(found, tenant, stream):
            yield event

    async def read_log(
        self, tenant: str | None, part: LogPart = WHOLE_LOG
    ) -> AsyncIterator[StoredEvent]:
        """See `EventLog.read_log`."""
        mark = await self.high_water_mark()
        after, left = part.after, part.limit
        through = mark if part.through is None else min(mark, part.through)
        while after < through and (left is None or left > 0):
            limit = self._page if left is None else min(self._page, left)
            asked = statement.read_log(tenant, part, after=after, through=through, limit=limit)
            page = answer.of_range(await self._events(asked, tenant), tenant, after, through)
            for event in page:
                yield event
            if len(page) < limit:
                return
            left = None if left is None else left - len(page)
            if part.backwards:
                through = page[-1].global_position - 1
            else:
                after = page[-1].global_position

    async def high_water_mark(self) -> int:
        """See `EventLog.high_water_mark`."""
        mark, head = await self._row(statement.HIGH_WATER_MARK)
        self._mark = max(mark, self._mark) if self._mark <= head else mark  # see the blocking log
        return self._mark

    async def head(self) -> int:
        """Returns the last assigned global position, committed or not."""
        return int((await self._row(statement.HEAD))[0])

    async def stream_version(self, tenant: str, stream: str, *, connection: Any = None) -> int:
        """See `EventLog.stream_version`."""
        asked = statement.stream_version(tenant, stream)
        return int((await self._row(asked, tenant, connection))[0])

    async def result_of(self, tenant: str, key: str, *, connection: Any = None) -> Repeated | None:
        """See `EventLog.result_of`."""
        row = await self._row(statement.result_of(tenant, key), tenant, connection)
        return statement.known_result(row or None)

    async def read_boundary(self, tenant: str, query: Query, *, connection: Any = None) -> Boundary:
        """See `EventLog.read_boundary`."""
        asked = statement.read_boundary(tenant, query)
        async with self._answer(asked, tenant, connection) as cursor:
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
        """The first row, or nothing."""
        async with self._answer(asked, tenant, connection) as cursor:
            return () if cursor.description is None else await cursor.fetchone() or ()

    async def _events(
        self, asked: Statement, tenant: str | None, connection: Any = None
    ) -> list[StoredEvent]:
        async with self._answer(asked, tenant, connection) as cursor:
            found = list(map(StoredEvent._make, await cursor.fetchall()))
        return answer.of_tenant(found, tenant)

    @asynccontextmanager
    async def _answer(
        self, asked: Statement, tenant: str | None, connection: Any
    ) -> AsyncIterator[AsyncCursor[Any]]:
        async with _translating():
            if connection is not None:
                cursor = own_async_cursor(joined_async(connection))
                if tenant is not None:
                    await cursor.execute(
                        "SELECT set_config('eventstore.tenant', %s, true)", (tenant,)
                    )
                yield await cursor.execute(asked.sql, asked.parameters)
                return
            async with self._sessions.acting(tenant) as own:
                yield await own.cursor(binary=True).execute(asked.sql, asked.parameters)


@asynccontextmanager
async def _translating() -> AsyncIterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translated(error) from error
