"""AsyncEventLogContract: all that an event log promises, said of one for asyncio."""

# ruff: noqa: D102, S101, PLR2004, SIM300  # tests, though they ship
from __future__ import annotations

import asyncio
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from eventstore.errors import WrongExpectedVersionError
from eventstore.log import WHOLE_LOG, WHOLE_STREAM
from eventstore.model.expected_version import NO_STREAM
from eventstore.testing.contract import EventLogContract
from eventstore.testing.sample import append_to, some_events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from eventstore.log import (
        AsyncEventLog,
        Boundary,
        LogPart,
        Repeated,
        StateSnapshot,
        StreamPart,
    )
    from eventstore.model.event import Appended, AppendRequest, StoredEvent
    from eventstore.model.query import Query

_T = TypeVar("_T")

ANSWER_TIMEOUT_S: Final = 120.0
"""A log that does not answer by then never will."""


class BlockingLog:
    """An `EventLog` over an `AsyncEventLog`, with its event loop in a separate thread.

    Args:
        log: An unused log, owned by this object from now on.
    """

    def __init__(self, log: AsyncEventLog) -> None:
        self.log = log
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="event loop", daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[_T]) -> _T:
        """Runs a coroutine in the loop and waits for it."""

        async def done() -> _T:
            return await work

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(ANSWER_TIMEOUT_S)

    def append(self, request: AppendRequest, *, connection: Any = None) -> Appended:
        """See `EventLog.append`."""
        return self.run(self.log.append(request, connection=connection))

    def read_stream(
        self,
        tenant: str,
        stream: str,
        part: StreamPart = WHOLE_STREAM,
        *,
        connection: Any = None,
    ) -> Iterator[StoredEvent]:
        """See `EventLog.read_stream`."""
        return self._each(self.log.read_stream(tenant, stream, part, connection=connection))

    def read_log(self, tenant: str | None, part: LogPart = WHOLE_LOG) -> Iterator[StoredEvent]:
        """See `EventLog.read_log`."""
        return self._each(self.log.read_log(tenant, part))

    def _each(self, events: AsyncIterator[StoredEvent]) -> Iterator[StoredEvent]:
        while (event := self.run(anext(events, None))) is not None:
            yield event

    def high_water_mark(self) -> int:
        """See `EventLog.high_water_mark`."""
        return self.run(self.log.high_water_mark())

    def stream_version(self, tenant: str, stream: str, *, connection: Any = None) -> int:
        """See `EventLog.stream_version`."""
        return self.run(self.log.stream_version(tenant, stream, connection=connection))

    def result_of(self, tenant: str, key: str, *, connection: Any = None) -> Repeated | None:
        """See `EventLog.result_of`."""
        return self.run(self.log.result_of(tenant, key, connection=connection))

    def read_boundary(self, tenant: str, query: Query, *, connection: Any = None) -> Boundary:
        """See `EventLog.read_boundary`."""
        return self.run(self.log.read_boundary(tenant, query, connection=connection))

    def snapshot(
        self, tenant: str, stream: str, fold: str, *, through: int | None = None
    ) -> StateSnapshot | None:
        """See `EventLog.snapshot`."""
        return self.run(self.log.snapshot(tenant, stream, fold, through=through))

    def save_snapshot(self, tenant: str, snapshot: StateSnapshot) -> None:
        """See `EventLog.save_snapshot`."""
        self.run(self.log.save_snapshot(tenant, snapshot))

    def close(self) -> None:
        """See `EventLog.close`."""
        self.run(self.log.close())

    def stop(self) -> None:
        """Ends the event loop and its thread; the log cannot be used afterwards."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_TIMEOUT_S)
        self._loop.close()


class AsyncEventLogContract(EventLogContract):
    """The same contract for asyncio; a subclass provides the fixture `async_log`, an unused log."""

    @pytest.fixture
    def log(self, async_log: AsyncEventLog) -> Iterator[BlockingLog]:
        """The log as the tests of `EventLogContract` call it."""
        log = BlockingLog(async_log)
        yield log
        log.close()
        log.stop()

    def test_tasks_of_one_loop_compete_for_a_stream_and_one_wins(self, log: BlockingLog) -> None:
        async def first() -> bool:
            try:
                await log.log.append(append_to("order-1", expected_version=NO_STREAM))
            except WrongExpectedVersionError:
                return False
            return True

        async def together() -> list[bool]:
            return await asyncio.gather(*[first() for _ in range(20)])

        assert [True] == [won for won in log.run(together()) if won]

    def test_a_read_that_is_left_in_the_middle_holds_nothing(self, log: BlockingLog) -> None:
        log.append(append_to("order-1", *some_events(50)))

        async def look_at_one() -> StoredEvent:
            return await anext(log.log.read_log(None))

        async def often() -> set[int]:
            return {(await look_at_one()).stream_position for _ in range(30)}

        assert {1} == log.run(often())
        assert 51 == log.append(append_to("order-1")).version

    def test_a_cancelled_append_happened_whole_or_not_at_all(self, log: BlockingLog) -> None:
        async def cancelled() -> None:
            task = asyncio.ensure_future(log.log.append(append_to("order-1", *some_events(500))))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        for _ in range(5):
            log.run(cancelled())

        assert 0 == log.stream_version("default", "order-1") % 500
        version = log.stream_version("default", "order-1")
        assert version + 1 == log.append(append_to("order-1", expected_version=version)).version
