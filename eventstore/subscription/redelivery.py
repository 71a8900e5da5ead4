"""Redelivery: delivers parked events again in stream order, in one transaction each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
import structlog

from eventstore.errors import UndeclaredError
from eventstore.model.event import StoredEvent
from eventstore.subscription import statement
from eventstore.subscription.reporting import report
from eventstore.subscription.retry import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventstore.subscription.handling import Handling
    from eventstore.subscription.session import RunnerSession
    from eventstore.subscription.subscription import Subscription

_log = structlog.get_logger(__name__)

_AT_ONCE: Final = 100
"""Events of one parked stream that are delivered in a row before another stream's."""


class Redelivery:
    """Delivers the parked events of some partitions of a subscription when they are due.

    After a success, the parked event is deleted and the next one of its stream becomes due. When
    none is left, the stream is no longer parked.
    """

    def __init__(
        self,
        session: RunnerSession,
        subscription: Subscription,
        handling: Handling,
        stopping: Callable[[], bool],
    ) -> None:
        self._session = session
        self._subscription = subscription
        self._handling = handling
        self._stopping = stopping

    async def run(self, mine: Sequence[int]) -> None:
        """Delivers the due events.

        Args:
            mine: Partitions whose locks this session holds.

        Raises:
            UndeclaredError: See `Subscription.unknown`.
            SubscriptionError: The handler ended the transaction.
        """
        subscription = self._subscription
        due = await self._session.rows(
            statement.DUE,
            (
                subscription.owner,
                subscription.name,
                subscription.partitions,
                list(mine),
                subscription.retry.wait_max_s,
            ),
        )
        for (stream,) in due:
            for _ in range(_AT_ONCE):
                held = self._stopping() or self._handling.limit.held_now()
                if held or not await self._first(stream):
                    break

    async def retry_known(self, mine: Sequence[int]) -> None:
        """Retries events that were parked as undeclared, if this program declares their types.

        Args:
            mine: Partitions that this session has just claimed.
        """
        subscription = self._subscription
        scope = (subscription.owner, subscription.name)
        asked = (*scope, UndeclaredError.code, subscription.partitions, list(mine))
        found = await self._session.rows(statement.UNKNOWN, asked)
        known = 0
        for stream, position in found:
            event = await self._event(position)
            if event is not None and await self._handling.knows(event):
                await self._session.rows(statement.RETRY, (*scope, stream))
                known += 1
        if known:
            _log.info(
                "events that were unknown are retried",
                subscription=subscription.name,
                streams=known,
            )

    async def _first(self, stream: str) -> bool:
        """Delivers the first parked event of a stream; returns whether the next may follow."""
        place = (self._subscription.owner, self._subscription.name, stream)
        failures: list[tuple[int, Failure]] = []
        async with self._session.transaction():
            await self._lock(stream)
            row = await self._session.row(statement.FIRST_PARKED, place)
            if row is None:
                return False
            position, live, attempts = row
            failure = await self._deliver(place, position, live=live, attempt=attempts + 1)
            if failure is not None:
                failures.append((position, failure))
                raise psycopg.Rollback
        for position, failure in failures:
            await self._failed(stream, position, failure)
        if not failures:
            self._handling.committed()
        return not failures

    async def _deliver(
        self, place: tuple[str, str, str], position: int, *, live: bool, attempt: int
    ) -> Failure | None:
        event = await self._event(position)
        if event is None:
            return Failure(
                "eventstore.errors.SubscriptionError", "HW-E032", attempt, permanent=True
            )
        answer = await self._handling.call(event, live=live, attempt=attempt)
        if isinstance(answer, Failure):
            return answer
        await self._session.change(statement.DELIVERED, (*place, position))
        await self._session.rows(statement.PROMOTE, place)
        return await self._handling.act(answer, attempt)

    async def _failed(self, stream: str, position: int, failure: Failure) -> None:
        subscription = self._subscription
        wait_s = failure.wait_s(subscription.retry)
        async with self._session.transaction():
            await self._lock(stream)
            await self._session.change(
                statement.FAILED_AGAIN,
                {
                    "tenant": subscription.owner,
                    "name": subscription.name,
                    "stream": stream,
                    "global_position": position,
                    "wait_s": wait_s,
                    "attempts": failure.attempts,
                    "error_code": failure.error_code,
                    "error_type": failure.error_type,
                    "error_location": failure.error_location,
                },
            )
        await report(
            self._session,
            subscription,
            failure,
            wait_s,
            first=False,
            stream=stream,
            global_position=position,
        )

    async def _lock(self, stream: str) -> None:
        subscription = self._subscription
        await self._session.rows(
            statement.LOCK_STREAM,
            {"tenant": subscription.owner, "name": subscription.name, "stream": stream},
        )

    async def _event(self, position: int) -> StoredEvent | None:
        rows = await self._session.events(statement.EVENT, (self._subscription.owner, position))
        return StoredEvent._make(rows[0]) if rows else None
