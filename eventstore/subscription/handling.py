"""Handling: calls the handler for one event, and separates its failures from the database's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg.pq import TransactionStatus

from eventstore.errors import ContentionError, SubscriptionError, UndeclaredError
from eventstore.model.unknown import UnknownPolicy
from eventstore.postgres.errors import CONTENTION
from eventstore.serialization.recorded import RecordedEvent
from eventstore.subscription.delivery import Delivery
from eventstore.subscription.limit import DeliveryLimit
from eventstore.subscription.retry import Failure
from eventstore.subscription.session import AsyncSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.model.event import StoredEvent
    from eventstore.serialization.codec import Codec
    from eventstore.subscription.delivery import HeldEffect
    from eventstore.subscription.session import RunnerSession
    from eventstore.subscription.subscription import Subscription

CONTENTION_MAX: Final = 10
"""Consecutive deadlocks and serialization failures after which the handler has failed."""


def decoder(codec: Codec | None) -> Callable[[StoredEvent], Any]:
    """Returns the function that converts a stored event into the handler's argument.

    Args:
        codec: Decodes the event before the call, so that an event that cannot be decoded never
            reaches the handler. None: the handler takes events as the log stores them.
    """
    if codec is None:
        return lambda stored: stored

    def recorded(stored: StoredEvent) -> RecordedEvent:
        event = RecordedEvent(codec, stored)
        event.event  # noqa: B018  # decodes it, or raises
        return event

    return recorded


class Handling:
    """Calls a subscription's handler within a transaction.

    Attributes:
        contended: Consecutive deadlocks and serialization failures; reset by a commit.
        limit: Records the outcome of each effect.
    """

    def __init__(
        self,
        session: RunnerSession,
        subscription: Subscription,
        codec: Codec | None,
        limit: DeliveryLimit | None = None,
    ) -> None:
        self.contended = 0
        self.limit = limit or DeliveryLimit()
        self._session = session
        self._subscription = subscription
        self._decode = decoder(codec)
        self._done: set[str] = set()

    async def call(
        self, stored: StoredEvent, *, live: bool, attempt: int
    ) -> list[HeldEffect] | Failure:
        """Calls the handler; returns the effects that it requests, or its failure.

        Raises:
            UndeclaredError: The event's type or version is unknown, and the policy is to halt.
            SubscriptionError: The handler ended the transaction.
            Exception: The transaction must be repeated: the connection broke, or there was a
                deadlock or a serialization failure.
        """
        subscription = self._subscription
        delivery = Delivery(
            self._session.connection,
            subscription.name,
            stored.tenant,
            live,
            attempt,
            f"{subscription.name}:{stored.event_id}",
            isinstance(self._session, AsyncSession),
        )
        try:
            event = await self._session.compute(self._decode, stored)
        except UndeclaredError as error:
            if subscription.unknown is UnknownPolicy.HALT:
                raise
            return Failure.of(error, attempt, subscription.retry)
        except Exception as error:  # noqa: BLE001  # the classes that decode are the user's
            return self._failure(error, attempt)
        try:
            what = f"the handler of subscription {subscription.name}"
            await self._session.call(what, subscription.handler, event, delivery)
        except Exception as error:  # noqa: BLE001  # whatever it is, only this stream waits
            return self._failure(error, attempt)
        return self._failed_silently(attempt) or delivery.held

    async def act(self, effects: list[HeldEffect], attempt: int) -> Failure | None:
        """Performs the effects that no earlier attempt of this process has performed.

        Effects within the transaction come last, and are performed by each attempt.

        Raises:
            Exception: See `call`.
        """
        what = f"an effect of subscription {self._subscription.name}"
        for effect in sorted(effects, key=lambda effect: effect.within):
            if effect.key in self._done:
                continue
            try:
                await self._session.call(what, effect.act, effect.key)
            except Exception as error:  # noqa: BLE001  # see above
                failure = self._failure(error, attempt)
                counts = effect.within or self.limit.failed(error)
                return failure if counts else failure.during_outage()
            if not effect.within:
                self._done.add(effect.key)
                self.limit.succeeded()
        return self._failed_silently(attempt) if effects else None

    async def knows(self, stored: StoredEvent) -> bool:
        """Returns whether this program has a class for an event."""
        try:
            await self._session.compute(self._decode, stored)
        except UndeclaredError:
            return False
        except Exception:  # noqa: BLE001  # other failures are left to the retry policy
            return True
        return True

    def committed(self) -> None:
        """Records that the transaction has committed, so that it is not repeated."""
        self.contended = 0
        self._done.clear()

    def _failure(self, error: Exception, attempt: int) -> Failure:
        if self._session.lost:
            raise error
        if isinstance(error, (*CONTENTION, ContentionError)) and self.contended < CONTENTION_MAX:
            raise error
        self._check_open()
        return Failure.of(error, attempt, self._subscription.retry)

    def _failed_silently(self, attempt: int) -> Failure | None:
        """Returns a failure if the handler swallowed an error that aborted the transaction."""
        self._check_open()
        if self._session.status is TransactionStatus.INERROR:
            return Failure(
                "psycopg.errors.InFailedSqlTransaction", "25P02", attempt, permanent=False
            )
        return None

    def _check_open(self) -> None:
        if self._session.status is TransactionStatus.IDLE:
            raise SubscriptionError(
                f"the handler of subscription {self._subscription.name} ended the transaction",
                hint="leave COMMIT and ROLLBACK to the runner; with connection.transaction(): …"
                " makes a savepoint",
            )
