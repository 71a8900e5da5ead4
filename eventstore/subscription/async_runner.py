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
    """Runs a subscription whose handler is awaited. Each runner is run once.

    Handlers run in the loop of `run`, one at a time. Whatever happens to a batch, its transaction
    decides: where the task of `run` is cancelled, what is under way is rolled back, and delivered
    again by the next runner.

    Threads: everything belongs to the loop's; `stop` may be called from any, and from a signal
    handler.

    Args:
        dsn: The event store's database; never shown.
        subscription: What to run.
        store: Decodes events for the handler, and says whose they are. Without it and without a
            codec, the handler takes `StoredEvent`. With a key ring, events are decoded in a thread.
        codec: Decodes events where there is no store; the subscription says whose they are.
        chore: What else is to be done on the connection between batches.
        limit: When events may be delivered, and how many at once; None: always.
        on_stop: Is called once when `run` ends, and awaited if it is async: with what ended it, or
            None after `stop` and where the task was cancelled.

    Raises:
        StoreUnavailableError: There is no way to the database.
        SubscriptionError: The subscription is declared for another tenant than the store's.
        WrongKindError: It is no `AsyncSubscription`, or `on_stop` cannot be called.
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

        It reconnects for as long as it takes; what was under way is repeated.

        Raises:
            UndeclaredError: An event's type or version is unknown, and the policy is to halt.
            CheckpointBeyondHeadError: The subscription is ahead of the log.
            SubscriptionError: It cannot run as it is declared, or its handler is broken.
            EventStoreError: The database refuses what no repetition changes.
        """
        await self._run()

    def start(self) -> None:
        """Runs it in a task of the running loop; `failed`, `on_stop` and `join` tell how it ended.

        The caller that starts it joins it: an error that `join` has not raised is in the log alone.
        """
        name = f"subscription {self.subscription.name}"
        self._task = asyncio.get_running_loop().create_task(self.run(), name=name)
        self._task.add_done_callback(_retrieved)

    async def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the task's end and raises what `run` has raised; False if it still runs.

        To cancel `join` leaves the task alone.
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
        """See `Subscriptions.wait_for`; raises what `run` has raised, if it has.

        Each call connects once. To wait often, keep an `AsyncSubscriptions`.
        """
        async with AsyncSubscriptions(self._dsn, tenant=self.subscription.owner) as subscriptions:
            await subscriptions.wait_for(
                self.subscription.name, token, timeout_s, running=self._running
            )

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops it after the event under way; cancels it if this wait is cancelled itself."""
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
    """Looks at a task's error, which the runner has logged: asyncio need not log it as well."""
    if not task.cancelled():
        task.exception()
