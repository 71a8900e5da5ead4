"""SubscriptionRunner: delivers the existing events, then new ones, until it is stopped.

A runner has one connection, used by one thread. Several runners, in one process or in several,
share the subscription's partitions. The server session must be dedicated to the runner, so a pooler
in transaction mode is refused.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog

from eventstore.errors import SubscriptionError, WrongKindError
from eventstore.model.callables import check_function, check_result
from eventstore.postgres.connection import check_address
from eventstore.subscription.alarm import Alarm, AsyncAlarm
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.serving import Chore, Serving
from eventstore.subscription.session import blocking_session, completed
from eventstore.subscription.subscription import AsyncSubscription, Subscription
from eventstore.subscription.trace import traceback_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from eventstore.async_store import AsyncEventStore
    from eventstore.model.token import Token
    from eventstore.serialization.codec import Codec
    from eventstore.store import EventStore
    from eventstore.subscription.limit import DeliveryLimit
    from eventstore.subscription.session import RunnerSession

    Opened = Callable[..., AbstractAsyncContextManager[RunnerSession]]

__all__ = ["Chore", "Runner", "SubscriptionRunner"]

SubscriptionT = TypeVar("SubscriptionT", bound=Subscription)
StoreT = TypeVar("StoreT", bound="EventStore | AsyncEventStore")

_log = structlog.get_logger(__name__)


class Runner(ABC, Generic[SubscriptionT, StoreT]):
    """The shared part of `SubscriptionRunner` and `AsyncSubscriptionRunner`.

    Attributes:
        subscription: The subscription, with its tenant.
        failed: The error that ended `run`; None while it runs, after `stop` and after a
            cancellation.
    """

    def __init__(  # noqa: PLR0913  # each is one thing that a caller can want
        self,
        dsn: str,
        subscription: SubscriptionT,
        *,
        store: StoreT | None = None,
        codec: Codec | None = None,
        chore: Chore | None = None,
        on_stop: Callable[[BaseException | None], object] | None = None,
        limit: DeliveryLimit | None = None,
    ) -> None:
        self._check(subscription, on_stop)
        self.subscription = replace(subscription, tenant=tenant_of(subscription, store))
        check_address(dsn)
        self.failed: BaseException | None = None
        self._dsn = dsn
        self._on_stop = on_stop
        codec = store.codec if codec is None and store is not None else codec
        in_threads = codec is not None and codec.keyring is not None
        self._alarm, opened = self._connecting(in_threads=in_threads)
        self._serving = Serving(self.subscription, codec, chore, self._alarm, opened, limit)

    @abstractmethod
    def _check(self, subscription: SubscriptionT, on_stop: object) -> None:
        """Checks that this kind of runner can run the subscription and call `on_stop`."""

    @abstractmethod
    def _connecting(self, *, in_threads: bool) -> tuple[Alarm | AsyncAlarm, Opened]:
        """Returns the alarm of the runner, and the function that opens its connection.

        Args:
            in_threads: Whether decoding an event may query a key ring's database.
        """

    @property
    def ready(self) -> bool:
        """Whether it is connected and a member of the subscription now."""
        return self._serving.ready

    def stop(self) -> None:
        """Ends `run` after the current event; the handled events are committed."""
        self._alarm.ring()

    async def _run(self) -> None:
        try:
            await self._serving.run()
        except asyncio.CancelledError:  # the usual end of a task
            raise
        except BaseException as error:
            self.failed = error
            _log.error(
                "runner failed",
                subscription=self.subscription.name,
                tenant=self.subscription.owner,
                error_type=type(error).__qualname__,
                error_code=getattr(error, "code", None),
                traceback=traceback_of(error),
            )
            raise
        finally:
            if self._on_stop is not None:
                await self._call_on_stop(self._on_stop)

    async def _call_on_stop(self, on_stop: Callable[[BaseException | None], Any]) -> None:
        try:
            result = on_stop(self.failed)
            if isinstance(self._alarm, AsyncAlarm) and hasattr(result, "__await__"):
                result = await result
            check_result("on_stop", result)
        except Exception as error:  # noqa: BLE001  # it must not hide what ended the run
            _log.error(
                "on_stop failed",
                subscription=self.subscription.name,
                traceback=traceback_of(error),
            )


class SubscriptionRunner(Runner[Subscription, "EventStore"]):
    """Runs a subscription. A runner can run only once.

    Threads: `run` belongs to one thread; other methods may be called from any thread, `stop` also
    from a signal handler.

    Args:
        dsn: The event store's database; never shown.
        subscription: The subscription.
        store: Decodes events for the handler, and determines their tenant. Without a store and
            without a codec, the handler takes `StoredEvent`.
        codec: Decodes events if there is no store; the subscription determines their tenant.
        chore: Further work on the connection between batches.
        limit: When events may be delivered, and how many in one transaction; None: no limit.
        on_stop: Called once, in the thread of `run`, when `run` ends: with the error that ended it,
            or with None after `stop`.

    Attributes:
        subscription: The subscription, with its tenant.
        failed: The error that ended `run`; None while it runs and after `stop`.
        ready: Whether it is connected and a member of the subscription now.

    Raises:
        StoreUnavailableError: The database cannot be reached.
        SubscriptionError: The subscription is declared for another tenant than the store's.
        WrongKindError: `on_stop` is not a function, or is async; or the subscription is an
            `AsyncSubscription`.
    """

    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    def _check(self, subscription: Subscription, on_stop: object) -> None:
        if on_stop is not None:
            check_function("on_stop", on_stop)
        if isinstance(subscription, AsyncSubscription):
            raise WrongKindError(
                f"subscription {subscription.name} is for asyncio, and nothing awaits its handler",
                detail="an AsyncSubscription",
                hint="run it with AsyncSubscriptionRunner, or declare it as a Subscription",
            )

    def _connecting(self, *, in_threads: bool) -> tuple[Alarm, Opened]:  # noqa: ARG002  # has one thread
        return Alarm(), partial(blocking_session, self._dsn)

    def run(self) -> None:
        """Delivers events until `stop`.

        The runner reconnects without a time limit, and repeats the interrupted batch.

        Raises:
            UndeclaredError: An event's type or version is unknown, and the policy is to halt.
            CheckpointBeyondHeadError: The subscription is ahead of the log.
            SubscriptionError: The declaration of the subscription or its handler is invalid.
            EventStoreError: The database reported a permanent error.
        """
        completed(self._run())

    def start(self) -> None:
        """Starts `run` in a thread; `failed`, `on_stop` and `join` report how it ended."""
        self._thread = threading.Thread(
            target=self._keep_error, name=f"subscription {self.subscription.name}", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the thread and raises the error of `run`; returns False if it still runs."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return True

    def wait_for(self, token: Token, timeout_s: float) -> None:
        """See `Subscriptions.wait_for`; raises the error of `run` if `run` has failed.

        Each call opens a connection. To wait often, use a `Subscriptions`.
        """
        with Subscriptions(self._dsn, tenant=self.subscription.owner) as subscriptions:
            subscriptions.wait_for(self.subscription.name, token, timeout_s, running=self._running)

    def __enter__(self) -> SubscriptionRunner:  # noqa: PYI034
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    def _keep_error(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001  # join raises it in the caller's thread
            self._error = error

    def _running(self) -> None:
        if self._thread is not None:
            self.join(0)


def tenant_of(subscription: Subscription, store: EventStore | AsyncEventStore | None) -> str:
    """Returns the tenant whose events a subscription reads."""
    if store is None:
        return subscription.owner
    if subscription.tenant not in (None, store.tenant):
        raise SubscriptionError(
            f"subscription {subscription.name} belongs to another tenant than its store",
            detail=f"subscription: {subscription.tenant}; store: {store.tenant}",
            hint="omit the tenant, or run it with store.for_tenant(...)",
        )
    return store.tenant
