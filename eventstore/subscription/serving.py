"""Serving: delivers the existing events, then new ones, until it is stopped.

While events arrive, the runner polls the end of the log every few milliseconds, which is cheap for
the database and costs writers nothing. After a quiet period it requests one notification from the
next append. In case the notification is lost, it also polls every quarter of a second.
"""

from __future__ import annotations

import math
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

import psycopg
import structlog

from eventstore.errors import ContentionError, LoginRefusedError
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
"""Poll interval while events arrive; the longest delay that polling adds to an event."""

BUSY_S: Final = 0.5
"""A quiet period of this length ends the busy phase."""

IDLE_POLL_S: Final = 0.25
"""Poll interval after a quiet period, in case a notification is lost."""

WRITING_POLL_S: Final = 0.05
"""Longest poll interval while an appending transaction is open, whose end sends no notification."""

BALANCE_S: Final = 0.5
"""Interval at which members redistribute the partitions."""

LOGIN_REFUSED_MAX_S: Final = 60.0
"""A runner that was connected retries a refused login for this long: a pooler that reads its users
again refuses for a moment. Of a password that was changed, a running process has the old one."""

_RECONNECT_S: Final = (0.1, 5.0)
_CONTENTION_S: Final = (0.005, 0.5)


class Chore(Protocol):
    """Further work on the runner's connection, such as firing timers."""

    async def run(self, session: RunnerSession) -> float | None:
        """Does due work; returns the seconds until more is due, None if nothing is planned."""
        ...


class Serving:
    """The work of one runner, over one connection at a time.

    Args:
        subscription: The subscription, with its tenant.
        codec: Decodes events for the handler; None: the handler takes stored events.
        chore: Further work between batches.
        alarm: Ends the work when it rings.
        opened: Opens a connection; takes its application name.
        limit: When events may be delivered; None: no limit.

    Attributes:
        subscription: As given.
        ready: Whether it is connected and a member of the subscription now.
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
        # when the login was refused first since the last connection; None: there was none yet
        self._refused_at: float | None = None

    async def run(self) -> None:
        """Delivers events until the alarm rings; see `SubscriptionRunner.run`."""
        self._alarm.open()
        outages = 0
        try:
            while not self._alarm.rung:
                connected = False
                try:
                    async with self._session() as session:
                        connected, outages, self._refused_at = True, 0, math.inf
                        await self._serve(session)
                except (psycopg.OperationalError, LoginRefusedError) as error:
                    if isinstance(error, LoginRefusedError) and (
                        connected or self._refused_for_good()
                    ):
                        raise
                    outages += 1
                    self._say_lost(error, outages)
                    await self._alarm.sleep(_pause_s(outages, *_RECONNECT_S))
        except psycopg.Error as error:
            raise translated(error) from error
        finally:
            self._alarm.close()

    def _refused_for_good(self) -> bool:
        """Whether a login is refused that was never accepted, or not for a long time."""
        now = time.monotonic()
        if self._refused_at is None:
            return True
        self._refused_at = min(self._refused_at, now)
        return now - self._refused_at >= LOGIN_REFUSED_MAX_S

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[RunnerSession]:
        """Opens a connection and joins the subscription."""
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
                look, wait_s = await self._due_work(session, batch, redelivery, mine)
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
                # the cause may be a pooler that has assigned another server session
                await membership.check_session(
                    session, self.subscription.name, self._server_process
                )
                raise
            if look is None or not look.behind:
                await self._pause(session, look, min(wait_s, balance_at - time.monotonic()))

    def _stopping(self) -> bool:
        return self._alarm.rung

    async def _due_work(
        self, session: RunnerSession, batch: Batch, redelivery: Redelivery, mine: list[int]
    ) -> tuple[Look | None, float]:
        """Runs a batch and other due work; returns the state of the log and the longest wait, s."""
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
        """Waits until the log may have more events, for `wait_s` seconds at most."""
        if look is None:  # this runner owns no partition, or delivery is paused
            await self._alarm.sleep(wait_s)
            return
        now = time.monotonic()
        deadline = now + wait_s
        if look.head != self._head:
            self._head, self._moved_at = look.head, now
        while not self._alarm.rung and (left := deadline - time.monotonic()) > 0:
            quiet = time.monotonic() - self._moved_at
            if look.mark < look.head:
                # An open transaction may have appended before this runner requested a
                # notification, so its commit would send none.
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
        """Requests a notification, and waits for it."""
        self._woken = False
        if await session.value(statement.WANT_WAKE) == head and not self._woken:
            await self._alarm.sleep(timeout_s, session.connection.fileno())

    def _say_lost(self, error: psycopg.OperationalError | LoginRefusedError, outages: int) -> None:
        _log.warning(
            "connection lost",
            subscription=self.subscription.name,
            error_type=type(error).__name__,
            error_code=error.code if isinstance(error, LoginRefusedError) else error.sqlstate,
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
    return wait * random.uniform(0.5, 1.0)  # noqa: S311  # spreads retries, is no secret
