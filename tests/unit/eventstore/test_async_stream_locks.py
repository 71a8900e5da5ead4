"""Commands to one stream run one after the other in an event loop, and never wait for ever."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from eventstore import AsyncEventStore
from eventstore.memory import AsyncMemoryEventLog
from eventstore.planning.async_stream_locks import AsyncStreamLocks
from tests.fix_account import Deposit, Empty, Overdrawn, Withdraw, account, types

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def others_ran() -> None:
    """Lets every task run that can."""
    reached = asyncio.Event()
    asyncio.get_running_loop().call_soon(reached.set)
    await reached.wait()


class SwitchingLog(AsyncMemoryEventLog):
    """Another task runs between any two calls, as with a log on a server."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    async def read_stream(self, *args: Any, **options: Any) -> Any:
        self.calls["read_stream"] += 1
        await others_ran()
        async for event in super().read_stream(*args, **options):
            yield event

    async def append(self, *args: Any, **options: Any) -> Any:
        self.calls["append"] += 1
        await others_ran()
        return await super().append(*args, **options)


def store_over(log: AsyncMemoryEventLog) -> AsyncEventStore:
    return AsyncEventStore(log, types=types, deciders=[account()])


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(30):
            return await coroutine

    return asyncio.run(bounded())


def test_concurrent_commands_to_one_stream_need_one_attempt_each():
    log = SwitchingLog()
    store = store_over(log)

    async def run() -> list[int]:
        commands = [Deposit(f"s{number % 20}", 1) for number in range(300)]
        return [one.version for one in await asyncio.gather(*map(store.handle, commands))]

    versions = finished(run())

    assert [1 + number // 20 for number in range(300)] == versions
    assert {"append": 300, "read_stream": 300} == log.calls


def test_a_refused_and_a_cancelled_command_let_the_next_go_on():
    log = SwitchingLog()
    store = store_over(log)

    async def run() -> list[Any]:
        tasks = [
            asyncio.create_task(store.handle(command))
            for command in (Deposit("a", 3), Withdraw("a", 9), Deposit("a", 1), Empty("a"))
        ]
        await others_ran()
        tasks[2].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, refused, cancelled, last = finished(run())

    assert (1, 2) == (first.version, last.version)
    assert isinstance(refused, Overdrawn)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert not store._runner._stream_locks._locks


def test_a_holder_that_is_not_done_in_time_lets_the_next_one_go_on():
    locks = AsyncStreamLocks(held_s_max=0.01)
    order: list[str] = []

    async def run() -> None:
        second_done = asyncio.Event()

        async def first() -> None:
            async with locks.holding("t", "s"):
                await second_done.wait()
                order.append("first")

        async def second() -> None:
            async with locks.holding("t", "s"):
                order.append("second")
            second_done.set()

        await asyncio.gather(first(), second())

    finished(run())

    assert ["second", "first"] == order
    assert not locks._locks


def test_a_late_holder_does_not_release_the_lock_of_the_next_one():
    locks = AsyncStreamLocks(held_s_max=0.01)

    async def run() -> bool:
        second_holds = asyncio.Event()
        late_done = asyncio.Event()

        async def late() -> None:
            async with locks.holding("t", "s"):
                locks._held_s_max = 60  # of the next holder
                await second_holds.wait()
            late_done.set()

        async def second() -> bool:
            async with locks.holding("t", "s"):
                second_holds.set()
                await late_done.wait()
                return locks._locks[asyncio.get_running_loop(), "t", "s"].lock.locked()

        return (await asyncio.gather(late(), second()))[1]

    assert finished(run())


@pytest.mark.parametrize(("tenant", "stream"), [("t", "other"), ("other", "s")])
def test_other_streams_and_other_tenants_do_not_wait(tenant, stream):
    locks = AsyncStreamLocks()

    async def run() -> None:
        async with locks.holding("t", "s"), locks.holding(tenant, stream):
            pass

    finished(run())


def test_two_event_loops_do_not_share_locks():
    locks = AsyncStreamLocks()
    meet = threading.Barrier(2, timeout=30)

    async def both() -> None:
        async with locks.holding("t", "s"):
            await asyncio.to_thread(meet.wait)

    threads = [threading.Thread(target=finished, args=(both(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not meet.broken
    assert not locks._locks
