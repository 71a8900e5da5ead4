"""Serving: history first, then each event as it comes, until it is stopped.

How it waits: while events come it looks at the log's end every few milliseconds, which is cheap for
the database and free for writers. After a quiet while it asks to be woken: the next append sends
one notification. Whatever happens to that, it looks again after a quarter of a second.
"""

from __future__ import annotations

import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

import psycopg
import structlog

from eventstore.errors import ContentionError
from eventstore.postgres.connection import NOTICED
from eventstore.postgres.errors import CONTENTION, translated
from eventstore.subscription import membership, statement
from eventstore.subscription.batch import Batch, Look
from eventstore.subscription.handling import Handling
from eventstore.subscription.limit import DeliveryLimit
from eventstore.subscription.redelivery import Redelivery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from eventstore.serialization.codec import Codec
    from eventstore.subscription.alarm import Alarm, AsyncAlarm
    from eventstore.subscription.session import RunnerSession
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

    async def run(self, session: RunnerSession) -> float | None:
        """Does what is due; returns the seconds until the next is, None if nothing is planned."""
        ...


class Serving:
    """The work of one runner, over one connection at a time.

    Args:
        subscription: What to run, with its tenant.
        codec: Decodes events for the handler; None: it takes them as they are stored.
        chore: What else is to be done between batches.
        alarm: Ends it.
        opened: Opens a connection, given what the server shall call it.
        limit: When events may be delivered; None: always.

    Attributes:
        subscription: As given.
        ready: Whether it is connected and shares the subscription's partitions now.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # what a runner is made of
        self,
        subscription: Subscription,
        codec: Codec | None,
        chore: Chore | None,
        alarm: Alarm | AsyncAlarm,
        opened: Callable[..., AbstractAsyncContextManager[RunnerSession]],
        limit: DeliveryLimit | None = None,
    ) -> None:
        self.subscription = subscription
        self.ready = False
        self._codec = codec
        self._chore = chore
        self._alarm = alarm
        self._opened = opened
        self._limit = limit or DeliveryLimit()
        self._server_process = 0
        self._head = -1
        self._moved_at = 0.0
        self._woken = False

    async def run(self) -> None:
        """Delivers events until the alarm rings; see `SubscriptionRunner.run`."""
        self._alarm.open()
        outages = 0
        try:
            while not self._alarm.rung:
                try:
                    async with self._session() as session:
                        outages = 0
                        await self._serve(session)
                except psycopg.OperationalError as error:
                    outages += 1
                    self._say_lost(error, outages)
                    await self._alarm.sleep(_pause_s(outages, *_RECONNECT_S))
        except psycopg.Error as error:
            raise translated(error) from error
        finally:
            self._alarm.close()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[RunnerSession]:
        """A connection that is a member of the subscription."""
        name = f"headwater subscription {self.subscription.name}"
        async with self._opened(name) as session:
            self._server_process = await membership.own_session(
                session, self._opened, self.subscription.name
            )
            session.connection.add_notify_handler(self._notified)
            await session.change(NOTICED)
            await session.change(statement.ACT_FOR, (self.subscription.owner,))
            await session.change(statement.LISTEN)
            await membership.join(session, self.subscription)
            await self._limit.joined(session, self.subscription)
            self.ready = True
            try:
                yield session
            finally:
                self.ready = False
                await membership.leave(session)

    def _notified(self, _: object) -> None:
        self._woken = True

    async def _serve(self, session: RunnerSession) -> None:
        handling = Handling(session, self.subscription, self._codec, self._limit)
        work = (session, self.subscription, handling, self._stopping)
        batch, redelivery = Batch(*work), Redelivery(*work)
        mine: list[int] = []
        balance_at = 0.0
        while not self._alarm.rung:
            if time.monotonic() >= balance_at:
                mine = await self._balance(session, redelivery, mine)
                balance_at = time.monotonic() + BALANCE_S
            try:
                look, wait_s = await self._turn(session, batch, redelivery, mine)
            except (*CONTENTION, ContentionError) as error:
                if session.lost:
                    raise psycopg.OperationalError("the connection is lost") from error
                handling.contended += 1
                self._say_contended(error, handling.contended)
                await self._alarm.sleep(_pause_s(handling.contended, *_CONTENTION_S))
                continue
            except Exception as error:
                if session.lost:
                    raise psycopg.OperationalError("the connection is lost") from error
                # what failed may be that the session is another one
                await membership.check_session(
                    session, self.subscription.name, self._server_process
                )
                raise
            if look is None or not look.behind:
                await self._pause(session, look, min(wait_s, balance_at - time.monotonic()))

    def _stopping(self) -> bool:
        return self._alarm.rung

    async def _turn(
        self, session: RunnerSession, batch: Batch, redelivery: Redelivery, mine: list[int]
    ) -> tuple[Look | None, float]:
        """One round of work; returns what it saw, and how long to wait at most, in seconds."""
        wait_s = IDLE_POLL_S
        held_s = await self._limit.held_s(session)
        if held_s > 0:
            return None, min(wait_s, held_s)
        look = await batch.run(mine) if mine else None
        if look is not None and look.due_in_s is not None:
            if not 0 < look.due_in_s <= self.subscription.retry.wait_max_s:
                await redelivery.run(mine)
                wait_s = 0.0
            else:
                wait_s = min(wait_s, look.due_in_s)
        if self._chore is not None:
            due_in_s = await self._chore.run(session)
            wait_s = wait_s if due_in_s is None else min(wait_s, max(due_in_s, 0.0))
        return look, wait_s

    async def _balance(
        self, session: RunnerSession, redelivery: Redelivery, before: list[int]
    ) -> list[int]:
        mine = await membership.claim(session, self.subscription, self._server_process)
        if mine != before:
            _log.info(
                "partitions claimed",
                subscription=self.subscription.name,
                partitions=mine,
                of=self.subscription.partitions,
            )
            await redelivery.retry_known([one for one in mine if one not in before])
            self._limit.claimed(len(mine) / self.subscription.partitions)
        return mine

    async def _pause(self, session: RunnerSession, look: Look | None, wait_s: float) -> None:
        """Waits until there is reason to look again, for `wait_s` at most."""
        if look is None:  # no partition is ours
            await self._alarm.sleep(wait_s)
            return
        now = time.monotonic()
        deadline = now + wait_s
        if look.head != self._head:
            self._head, self._moved_at = look.head, now
        while not self._alarm.rung and (left := deadline - time.monotonic()) > 0:
            quiet = time.monotonic() - self._moved_at
            if look.mark < look.head:
                # A writer is under way who may have seen that no one waits, so it will not notify.
                await self._alarm.sleep(
                    min(left, max(BUSY_POLL_S, min(quiet / 10, WRITING_POLL_S)))
                )
                return
            if quiet >= BUSY_S:
                await self._sleep(session, look.head, left)
                return
            await self._alarm.sleep(min(left, BUSY_POLL_S))
            if await session.value(statement.HEAD) != look.head:
                return

    async def _sleep(self, session: RunnerSession, head: int, timeout_s: float) -> None:
        """Asks to be woken, and waits for it."""
        self._woken = False
        if await session.value(statement.WANT_WAKE) == head and not self._woken:
            await self._alarm.sleep(timeout_s, session.connection.fileno())

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


def _pause_s(times: int, first_s: float, longest_s: float) -> float:
    wait: float = min(first_s * 2 ** min(times - 1, 20), longest_s)
    return wait * random.uniform(0.5, 1.0)  # noqa: S311  # spreads, does not hide
