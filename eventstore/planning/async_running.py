"""AsyncPlanRunner: `PlanRunner` for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from eventstore.model.callables import check_log
from eventstore.planning.async_stream_locks import AsyncStreamLocks
from eventstore.planning.operation import Call, Finished, Pause, Plan, advanced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from eventstore.log import AsyncEventLog

S = TypeVar("S")
T = TypeVar("T")


async def mapped(function: Callable[[S], T], items: AsyncIterator[S]) -> AsyncIterator[T]:
    """Applies a function to each item of an iterator."""
    async for item in items:
        yield function(item)


class AsyncPlanRunner:
    """Runs the plans of a store and of its other tenants.

    Args:
        log: Answers what the plans ask.
        in_threads: Whether plans run in a thread: those that may query a key ring's database.

    Raises:
        WrongKindError: The log is a class, of another kind, or not one for asyncio.
    """

    def __init__(self, log: AsyncEventLog, *, in_threads: bool) -> None:
        check_log(log, asynchronous=True)
        self._log = log
        self._in_threads = in_threads
        self._stream_locks = AsyncStreamLocks()

    async def run(self, plan: Plan[T], serial_key: tuple[str, str] | None = None) -> T:
        """Runs a plan and returns its result.

        Args:
            plan: What to run.
            serial_key: Tenant and stream. Plans with the same one run one after the other.
        """
        if serial_key is None:
            return await self._run(plan)
        async with self._stream_locks.holding(*serial_key):
            return await self._run(plan)

    async def _run(self, plan: Plan[T]) -> T:
        step = await self._advanced(plan)
        while not isinstance(step, Finished):
            try:
                answer = await self._perform(step)
            except Exception as error:  # noqa: BLE001  # the plan knows what it means, or raises it
                step = await self._advanced(plan, error=error)
            else:
                step = await self._advanced(plan, answer)
        value: T = step.value
        return value

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls what may query a key ring's database, in a thread."""
        return await asyncio.to_thread(function, *arguments)

    async def close(self) -> None:
        """Closes the log; a wait ends when its task is cancelled."""
        await self._log.close()

    async def _advanced(
        self, plan: Plan[Any], answer: object = None, error: Exception | None = None
    ) -> Call | Pause | Finished:
        if not self._in_threads:
            return advanced(plan, answer, error)
        return await asyncio.to_thread(advanced, plan, answer, error)

    async def _perform(self, step: Call | Pause) -> object:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return False
        answer = getattr(self._log, step.method)(*step.arguments, **step.options)
        if step.method == "read_stream":
            return [stored async for stored in answer]
        return await answer
