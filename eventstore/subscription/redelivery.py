"""Redelivery: hands parked events to the handler again, one transaction each, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog

from eventstore.errors import UndeclaredError
from eventstore.model.event import StoredEvent
from eventstore.postgres.connection import payloads_as_bytes
from eventstore.subscription import statement
from eventstore.subscription.reporting import report
from eventstore.subscription.retry import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg import Connection

    from eventstore.subscription.handling import Handling
    from eventstore.subscription.subscription import Subscription

_log = structlog.get_logger(__name__)

_AT_ONCE: Final = 100
"""Events of one parked stream before the others have their turn again."""


class Redelivery:
    """Delivers the parked events of some partitions of a subscription when they are due.

    An event that succeeds is deleted from those parked, and the next of its stream comes up. When
    none is left, the stream flows again.
    """

    def __init__(
        self,
        connection: Connection[Any],
        subscription: Subscription,
        handling: Handling,
        stopping: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._subscription = subscription
        self._handling = handling
        self._stopping = stopping

    def run(self, mine: Sequence[int]) -> None:
        """Delivers what is due.

        Args:
            mine: Partitions whose locks this session holds.

        Raises:
            UndeclaredError: See `Subscription.unknown`.
            SubscriptionError: The handler has ended the transaction.
        """
        subscription = self._subscription
        due = self._connection.execute(
            statement.DUE,
            (
                subscription.owner,
                subscription.name,
                subscription.partitions,
                list(mine),
                subscription.retry.wait_max_s,
            ),
        ).fetchall()
        for (stream,) in due:
            for _ in range(_AT_ONCE):
                if self._stopping() or not self._first(stream):
                    break

    def retry_known(self, mine: Sequence[int]) -> None:
        """Has events tried again that were parked as unknown, and that this program knows.

        Args:
            mine: Partitions whose locks this session has got just now.
        """
        subscription = self._subscription
        scope = (subscription.owner, subscription.name)
        asked = (*scope, UndeclaredError.code, subscription.partitions, list(mine))
        found = self._connection.execute(statement.UNKNOWN, asked).fetchall()
        known = 0
        for stream, position in found:
            event = self._event(position)
            if event is not None and self._handling.knows(event):
                self._connection.execute(statement.RETRY, (*scope, stream))
                known += 1
        if known:
            _log.info(
                "events that were unknown are tried again",
                subscription=subscription.name,
                streams=known,
            )

    def _first(self, stream: str) -> bool:
        """Delivers the first parked event of a stream; returns whether the next may follow."""
        place = (self._subscription.owner, self._subscription.name, stream)
        failures: list[tuple[int, Failure]] = []
        with self._connection.transaction():
            self._lock(stream)
            row = self._connection.execute(statement.FIRST_PARKED, place).fetchone()
            if row is None:
                return False
            position, live, attempts = row
            failure = self._deliver(place, position, live=live, attempt=attempts + 1)
            if failure is not None:
                failures.append((position, failure))
                raise psycopg.Rollback
        for position, failure in failures:
            self._failed(stream, position, failure)
        if not failures:
            self._handling.committed()
        return not failures

    def _deliver(
        self, place: tuple[str, str, str], position: int, *, live: bool, attempt: int
    ) -> Failure | None:
        event = self._event(position)
        if event is None:
            return Failure(
                "eventstore.errors.SubscriptionError", "HW-E032", attempt, permanent=True
            )
        answer = self._handling.call(event, live=live, attempt=attempt)
        if isinstance(answer, Failure):
            return answer
        self._connection.execute(statement.DELIVERED, (*place, position))
        self._connection.execute(statement.PROMOTE, place)
        return self._handling.act(answer, attempt)

    def _failed(self, stream: str, position: int, failure: Failure) -> None:
        subscription = self._subscription
        wait_s = failure.wait_s(subscription.retry)
        with self._connection.transaction():
            self._lock(stream)
            self._connection.execute(
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
        report(subscription, failure, wait_s, first=False, stream=stream, global_position=position)

    def _lock(self, stream: str) -> None:
        subscription = self._subscription
        self._connection.execute(
            statement.LOCK_STREAM,
            {"tenant": subscription.owner, "name": subscription.name, "stream": stream},
        )

    def _event(self, position: int) -> StoredEvent | None:
        cursor = self._connection.cursor(binary=True)
        payloads_as_bytes(cursor)
        cursor.execute(statement.EVENT, (self._subscription.owner, position))
        row = cursor.fetchone()
        return None if row is None else StoredEvent._make(row)
