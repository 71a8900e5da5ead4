"""SubscriptionRunner: history first, then each event as it comes, until it is stopped.

One runner has one connection, and one thread works on it. Run more of them, in this process or in
others, and they share the subscription's partitions. The server's session must be the runner's own:
no pooler that deals out sessions by transaction may stand between.

How it waits: while events come it looks at the log's end every few milliseconds, which is cheap for
the database and free for writers. After a quiet while it asks to be woken: the next append sends
one notification. Whatever happens to that, it looks again after a quarter of a second.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
import structlog

from eventstore.errors import ContentionError, SubscriptionError
from eventstore.model.callables import check_function
from eventstore.postgres.connection import NOTICED, check_address, options
from eventstore.postgres.errors import CONTENTION, translated
from eventstore.subscription import membership, statement
from eventstore.subscription.alarm import Alarm
from eventstore.subscription.batch import Batch, Look
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.handling import Handling
from eventstore.subscription.redelivery import Redelivery
from eventstore.subscription.trace import traceback_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection

    from eventstore.model.token import Token
    from eventstore.serialization.codec import Codec
    from eventstore.store import EventStore
    from eventstore.subscription.subscription import Subscription

_log = structlog.get_logger(__name__)

BUSY_POLL_S: Final = 0.004
"""Between two looks while events come; the most that waiting adds to an event's way."""

BUSY_S: Final = 0.5
"""A quiet time of this length ends the busy phase."""

IDLE_POLL_S: Final = 0.25
"""Between two looks whether or not a notification came."""

WRITING_POLL_S: Final = 0.05
"""While a transaction that appends is open, at most; it does not notify when it ends."""

BALANCE_S: Final = 0.5
"""Between two looks at who else shares the partitions."""

_RECONNECT_S: Final = (0.1, 5.0)
_CONTENTION_S: Final = (0.005, 0.5)


class Chore(Protocol):
    """What else is to be done on the runner's connection, such as firing timers."""

    def run(self, connection: Connection[Any]) -> float | None:
        """Does what is due; returns the seconds until the next is, None if nothing is planned."""
        ...


class SubscriptionRunner:
    """Runs a subscription. Each runner is run once; make another one to run it again.

    Threads: `run` belongs to one; everything else may be called from any, `stop` also from a signal
    handler.

    Args:
        dsn: The event store's database; never shown.
        subscription: What to run.
        store: Decodes events for the handler, and says whose they are. Without it and without a
            codec, the handler takes `StoredEvent`.
        codec: Decodes events where there is no store; the subscription says whose they are.
        chore: What else is to be done on the connection between batches.
        on_stop: Is called once, in the thread of `run`, when that ends: with what ended it, or None
            after `stop`.

    Attributes:
        subscription: What it runs, with the tenant that it runs for.
        failed: What ended `run`; None while it runs and after `stop`.
        ready: Whether it is connected and shares the subscription's partitions now.

    Raises:
        StoreUnavailableError: There is no way to the database.
        SubscriptionError: The subscription is declared for another tenant than the store's.
        WrongKindError: `on_stop` is no function, or an async one.
    """

    def __init__(  # noqa: PLR0913  # each is one thing that a caller can want
        self,
        dsn: str,
        subscription: Subscription,
        *,
        store: EventStore | None = None,
        codec: Codec | None = None,
        chore: Chore | None = None,
        on_stop: Callable[[BaseException | None], object] | None = None,
    ) -> None:
        if on_stop is not None:
            check_function("on_stop", on_stop)
        self.subscription = replace(subscription, tenant=_tenant(subscription, store))
        self.failed: BaseException | None = None
        self.ready = False
        check_address(dsn)
        self._dsn = dsn
        self._codec = store.codec if codec is None and store is not None else codec
        self._on_stop = on_stop
        self._server_process = 0
        self._chore = chore
        self._alarm = Alarm()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._head = -1
        self._moved_at = 0.0
        self._woken = False

    def run(self) -> None:
        """Delivers events until `stop`.

        A lost connection is made anew, for as long as it takes; what was under way is repeated.

        Raises:
            UndeclaredError: An event's type or version is unknown, and the policy is to halt.
            CheckpointBeyondHeadError: The subscription is ahead of the log.
            SubscriptionError: It cannot run as it is declared, or its handler is broken.
            EventStoreError: The database refuses what no repetition changes.
        """
        try:
            self._run()
        except BaseException as error:
            self.failed = error
            self._say_failed(error)
            raise
        finally:
            if self._on_stop is not None:
                self._call_on_stop(self._on_stop)

    def _run(self) -> None:
        self._alarm.open()
        outages = 0
        try:
            while not self._alarm.rung:
                try:
                    with self._session() as connection:
                        outages = 0
                        self._serve(connection)
                except psycopg.OperationalError as error:
                    outages += 1
                    self._say_lost(error, outages)
                    self._alarm.wait(_pause_s(outages, *_RECONNECT_S))
        except psycopg.Error as error:
            raise translated(error) from error
        finally:
            self._alarm.close()

    def _call_on_stop(self, on_stop: Callable[[BaseException | None], object]) -> None:
        try:
            on_stop(self.failed)
        except Exception as error:  # noqa: BLE001  # it must not hide what ended the run
            _log.error(
                "on_stop failed",
                subscription=self.subscription.name,
                traceback=traceback_of(error),
            )

    def stop(self) -> None:
        """Ends `run` after the event that is being handled; what is done is committed."""
        self._alarm.ring()

    def start(self) -> None:
        """Runs it in a thread of its own. `failed`, `on_stop` and `join` tell how it ended."""
        self._thread = threading.Thread(
            target=self._keep_error, name=f"subscription {self.subscription.name}", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the thread's end and raises what `run` has raised; False if it still runs."""
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
        """See `Subscriptions.wait_for`; raises what `run` has raised, if it has.

        Who waits often keeps a `Subscriptions` for it: this one connects anew each time.
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

    @contextmanager
    def _session(self) -> Iterator[Connection[Any]]:
        """A connection that is a member of the subscription."""
        name = f"headwater subscription {self.subscription.name}"
        given = options(self._dsn, name[:63])
        with psycopg.connect(self._dsn, connect_timeout=10, **given) as connection:
            # the mark is of use to snapshots that are taken after it only
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self._server_process = membership.own_session(
                connection, self._dsn, self.subscription.name
            )
            connection.add_notify_handler(self._notified)
            connection.execute(NOTICED)
            connection.execute(statement.ACT_FOR, (self.subscription.owner,))
            connection.execute(statement.LISTEN)
            membership.join(connection, self.subscription)
            self.ready = True
            try:
                yield connection
            finally:
                self.ready = False
                membership.leave(connection)

    def _notified(self, _: object) -> None:
        self._woken = True

    def _serve(self, connection: Connection[Any]) -> None:
        handling = Handling(connection, self.subscription, self._codec)
        work = (connection, self.subscription, handling, self._stopping)
        batch, redelivery = Batch(*work), Redelivery(*work)
        mine: list[int] = []
        balance_at = 0.0
        while not self._alarm.rung:
            if time.monotonic() >= balance_at:
                mine = self._balance(connection, redelivery, mine)
                balance_at = time.monotonic() + BALANCE_S
            try:
                look, wait_s = self._turn(connection, batch, redelivery, mine)
            except (*CONTENTION, ContentionError) as error:
                if connection.closed or connection.broken:
                    raise psycopg.OperationalError("the connection is lost") from error
                handling.contended += 1
                self._say_contended(error, handling.contended)
                self._alarm.wait(_pause_s(handling.contended, *_CONTENTION_S))
                continue
            except Exception as error:
                if connection.closed or connection.broken:
                    raise psycopg.OperationalError("the connection is lost") from error
                # what failed may be that the session is another one
                membership.check_session(connection, self.subscription.name, self._server_process)
                raise
            if look is None or not look.behind:
                self._pause(connection, look, min(wait_s, balance_at - time.monotonic()))

    def _stopping(self) -> bool:
        return self._alarm.rung

    def _turn(
        self, connection: Connection[Any], batch: Batch, redelivery: Redelivery, mine: list[int]
    ) -> tuple[Look | None, float]:
        """One round of work; returns what it saw, and how long to wait at most, in seconds."""
        wait_s = IDLE_POLL_S
        look = batch.run(mine) if mine else None
        if look is not None and look.due_in_s is not None:
            if not 0 < look.due_in_s <= self.subscription.retry.wait_max_s:
                redelivery.run(mine)
                wait_s = 0.0
            else:
                wait_s = min(wait_s, look.due_in_s)
        if self._chore is not None:
            due_in_s = self._chore.run(connection)
            wait_s = wait_s if due_in_s is None else min(wait_s, max(due_in_s, 0.0))
        return look, wait_s

    def _balance(
        self, connection: Connection[Any], redelivery: Redelivery, before: list[int]
    ) -> list[int]:
        mine = membership.claim(connection, self.subscription, self._server_process)
        if mine != before:
            _log.info(
                "partitions claimed",
                subscription=self.subscription.name,
                partitions=mine,
                of=self.subscription.partitions,
            )
            redelivery.retry_known([one for one in mine if one not in before])
        return mine

    def _pause(self, connection: Connection[Any], look: Look | None, wait_s: float) -> None:
        """Waits until there is reason to look again, for `wait_s` at most."""
        if look is None:  # no partition is ours
            self._alarm.wait(wait_s)
            return
        now = time.monotonic()
        deadline = now + wait_s
        if look.head != self._head:
            self._head, self._moved_at = look.head, now
        while not self._alarm.rung and (left := deadline - time.monotonic()) > 0:
            quiet = time.monotonic() - self._moved_at
            if look.mark < look.head:
                # A writer is under way who may have seen that nobody waits, so it will not notify.
                self._alarm.wait(min(left, max(BUSY_POLL_S, min(quiet / 10, WRITING_POLL_S))))
                return
            if quiet >= BUSY_S:
                self._sleep(connection, look.head, left)
                return
            self._alarm.wait(min(left, BUSY_POLL_S))
            if _one(connection, statement.HEAD) != look.head:
                return

    def _sleep(self, connection: Connection[Any], head: int, timeout_s: float) -> None:
        """Asks to be woken, and waits for it."""
        self._woken = False
        if _one(connection, statement.WANT_WAKE) == head and not self._woken:
            self._alarm.wait(timeout_s, connection.fileno())

    def _say_failed(self, error: BaseException) -> None:
        _log.error(
            "runner failed",
            subscription=self.subscription.name,
            tenant=self.subscription.owner,
            error_type=type(error).__qualname__,
            error_code=getattr(error, "code", None),
            traceback=traceback_of(error),
        )

    def _say_lost(self, error: psycopg.OperationalError, outages: int) -> None:
        _log.warning(
            "connection lost",
            subscription=self.subscription.name,
            error_type=type(error).__name__,
            error_code=error.sqlstate,
            outages=outages,
        )

    def _say_contended(self, error: Exception, times: int) -> None:
        _log.info(
            "transaction lost against another",
            subscription=self.subscription.name,
            error_type=type(error).__name__,
            times=times,
        )


def _tenant(subscription: Subscription, store: EventStore | None) -> str:
    """Whose events a subscription reads."""
    if store is None:
        return subscription.owner
    if subscription.tenant not in (None, store.tenant):
        raise SubscriptionError(
            f"subscription {subscription.name} is of another tenant than its store",
            detail=f"subscription: {subscription.tenant}; store: {store.tenant}",
            hint="leave the tenant out, or run it with store.for_tenant(...)",
        )
    return store.tenant


def _one(connection: Connection[Any], asked: str) -> int:
    row: Any = connection.execute(asked).fetchone()
    return int(row[0])


def _pause_s(times: int, first_s: float, longest_s: float) -> float:
    wait: float = min(first_s * 2 ** min(times - 1, 20), longest_s)
    return wait * random.uniform(0.5, 1.0)  # noqa: S311  # spreads, does not hide
