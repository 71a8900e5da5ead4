"""Handling: calls the handler for one event, and tells its failures from the database's."""

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
"""Deadlocks and serialization failures in a row, after which the handler is to blame."""


def decoder(codec: Codec | None) -> Callable[[StoredEvent], Any]:
    """Returns what makes an event of the log one of the handler's.

    Args:
        codec: Decodes it, at once, so that what cannot be decoded never reaches the handler. None:
            the handler takes events as the log holds them.
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
        contended: Deadlocks and serialization failures in a row; reset by a commit.
        limit: Is given the outcome of each effect.
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
        """Calls the handler; returns the effects that it asks for, or how it failed.

        Raises:
            UndeclaredError: No one knows the event's type or version, and the policy is to halt.
            SubscriptionError: The handler has ended the transaction.
            Exception: The transaction is to be repeated: the connection broke, or it lost against
                another.
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
        """Has effects done that were not done by an earlier attempt of this process.

        Those within the transaction come last, and are done by each attempt.

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
        except Exception:  # noqa: BLE001  # that is another failure, for a handler's policy
            return True
        return True

    def committed(self) -> None:
        """Says that the transaction is through, so that nothing of it is repeated."""
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
        """A handler may swallow a database error, but the transaction does not."""
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
