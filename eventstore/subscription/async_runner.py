"""AsyncSubscriptionRunner: `SubscriptionRunner` as a task of an event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Self

from eventstore.errors import WrongKindError
from eventstore.model.callables import check_callable
from eventstore.subscription.alarm import AsyncAlarm
from eventstore.subscription.async_control import AsyncSubscriptions
from eventstore.subscription.runner import Runner
from eventstore.subscription.session import async_session
from eventstore.subscription.subscription import AsyncSubscription

if TYPE_CHECKING:
    from eventstore.async_store import AsyncEventStore  # noqa: F401  # named in a base class
    from eventstore.model.token import Token
    from eventstore.subscription.runner import Opened


class AsyncSubscriptionRunner(Runner[AsyncSubscription, "AsyncEventStore"]):
    """Runs a subscription with an async handler. A runner can run only once.

    The runner calls the handler in the event loop of `run`, for one event at a time. If the task of
    `run` is cancelled, the transaction of the current batch is rolled back, and the next runner
    delivers its events again.

    Threads: all methods belong to the thread of the event loop; `stop` may be called from any
    thread and from a signal handler.

    Args:
        dsn: The event store's database; never shown.
        subscription: The subscription.
        store: Decodes events for the handler, and determines their tenant. Without a store and
            without a codec, the handler takes `StoredEvent`. With a key ring, a thread decodes
            events.
        codec: Decodes events if there is no store; the subscription determines their tenant.
        chore: Further work on the connection between batches.
        limit: When events may be delivered, and how many in one transaction; None: no limit.
        on_stop: Called once when `run` ends, and awaited if it is async: with the error that ended
            `run`, or with None after `stop` or a cancellation.

    Raises:
        StoreUnavailableError: The database cannot be reached.
        SubscriptionError: The subscription is declared for another tenant than the store's.
        WrongKindError: The subscription is not an `AsyncSubscription`, or `on_stop` is not
            callable.
    """

    _task: asyncio.Task[None] | None = None

    def _check(self, subscription: AsyncSubscription, on_stop: object) -> None:
        if on_stop is not None:
            check_callable("on_stop", on_stop)
        if not isinstance(subscription, AsyncSubscription):
            raise WrongKindError(
                "an AsyncSubscriptionRunner runs an AsyncSubscription",
                detail=f"{type(subscription).__qualname__}",
                hint="its handler is async def, and writes with await delivery.connection.execute",
            )

    def _connecting(self, *, in_threads: bool) -> tuple[AsyncAlarm, Opened]:
        return AsyncAlarm(), partial(async_session, self._dsn, in_threads=in_threads)

    async def run(self) -> None:
        """Delivers events until `stop`, or until the task is cancelled.

        The runner reconnects without a time limit, and repeats the interrupted batch.

        Raises:
            UndeclaredError: An event's type or version is unknown, and the policy is to halt.
            CheckpointBeyondHeadError: The subscription is ahead of the log.
            SubscriptionError: The declaration of the subscription or its handler is invalid.
            EventStoreError: The database reported a permanent error.
        """
        await self._run()

    def start(self) -> None:
        """Starts `run` as a task; `failed`, `on_stop` and `join` report how it ended.

        Call `join` later: an error that `join` does not raise is only logged.
        """
        name = f"subscription {self.subscription.name}"
        self._task = asyncio.get_running_loop().create_task(self.run(), name=name)
        self._task.add_done_callback(_retrieved)

    async def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the task and raises the error of `run`; returns False if it still runs.

        Cancelling `join` does not cancel the task.
        """
        if self._task is None:
            return True
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            return False
        task, self._task = self._task, None
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        return True

    async def wait_for(self, token: Token, timeout_s: float) -> None:
        """See `Subscriptions.wait_for`; raises the error of `run` if `run` has failed.

        Each call opens a connection. To wait often, use an `AsyncSubscriptions`.
        """
        async with AsyncSubscriptions(self._dsn, tenant=self.subscription.owner) as subscriptions:
            await subscriptions.wait_for(
                self.subscription.name, token, timeout_s, running=self._running
            )

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops the runner after the current event; cancels it if this wait is cancelled."""
        self.stop()
        try:
            await self.join()
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait({self._task})
            raise

    async def _running(self) -> None:
        if self._task is not None and self._task.done():
            await self.join()


def _retrieved(task: asyncio.Task[None]) -> None:
    """Retrieves a task's error, so that asyncio does not log it: the runner has logged it."""
    if not task.cancelled():
        task.exception()
