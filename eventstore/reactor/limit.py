"""EffectLimit: pauses a reactor while its dependency is unavailable, and limits its rate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from eventstore.reactor.breaker import Breaker, BreakerState
from eventstore.reactor.effect_rate import EffectRate
from eventstore.subscription.limit import DeliveryLimit
from eventstore.subscription.trace import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.reactor.reactor import Reactor
    from eventstore.subscription.session import RunnerSession
    from eventstore.subscription.subscription import Subscription

_log = structlog.get_logger(__name__)

_DECLARE: Final = (
    "UPDATE eventstore.subscriptions SET reactor = true, breaker_opened_at = NULL,"
    " breaker_error = NULL"
    " WHERE tenant = %s AND name = %s AND partition = 0"
    " AND (NOT reactor OR breaker_opened_at IS NOT NULL)"
)
_OPENED: Final = (
    "UPDATE eventstore.subscriptions"
    " SET breaker_opened_at = coalesce(breaker_opened_at, clock_timestamp()), breaker_error = %s"
    " WHERE tenant = %s AND name = %s AND partition = 0"
)
_CLOSED: Final = (
    "UPDATE eventstore.subscriptions SET breaker_opened_at = NULL, breaker_error = NULL"
    " WHERE tenant = %s AND name = %s AND partition = 0"
)


class EffectLimit(DeliveryLimit):
    """The limit of one runner of a reactor.

    Args:
        reactor: The reactor that it runs.
        clock: Monotonic clock, in seconds.
    """

    once = True

    def __init__(self, reactor: Reactor, clock: Callable[[], float] = time.monotonic) -> None:
        self._reactor = reactor
        self._breaker = None if reactor.breaker is None else Breaker(reactor.breaker, clock)
        self._rate = None if reactor.rate_per_s is None else EffectRate(reactor.rate_per_s, clock)
        self._scope = ("", "")
        self._shown: str | None = None

    async def joined(self, session: RunnerSession, subscription: Subscription) -> None:
        """Records in the database that the subscription is a reactor."""
        self._scope = (subscription.owner, subscription.name)
        self._shown = None
        await session.change(_DECLARE, self._scope)

    async def held_s(self, session: RunnerSession) -> float:
        """See `DeliveryLimit.held_s`; records in the database whether the breaker is open."""
        await self._show(session)
        return self.wait_s()

    def wait_s(self) -> float:
        """Returns the seconds until the next effect may be performed; 0 if now."""
        waits = [one.wait_s() for one in (self._breaker, self._rate) if one is not None]
        return max(waits, default=0.0)

    def held_now(self) -> bool:
        """See `DeliveryLimit.held_now`."""
        return self.wait_s() > 0

    @property
    def closed(self) -> bool:
        """Whether effects may be performed without probing the dependency first."""
        return self._breaker is None or self._breaker.state is BreakerState.CLOSED

    def full(self, events: int) -> bool:
        """See `DeliveryLimit.full`."""
        if self.held_now():
            return True
        single = self._rate is not None or not self.closed
        return events >= (1 if single else self._reactor.batch_size)

    def claimed(self, share: float) -> None:
        """See `DeliveryLimit.claimed`."""
        if self._rate is not None:
            self._rate.share = share

    def succeeded(self) -> None:
        """See `DeliveryLimit.succeeded`."""
        if self._rate is not None:
            self._rate.took()
        if self._breaker is not None:
            self._breaker.succeeded()

    def failed(self, error: BaseException) -> bool:
        """See `DeliveryLimit.failed`."""
        if self._rate is not None:
            self._rate.took()
        return self._breaker is None or self._breaker.failed(error)

    async def _show(self, session: RunnerSession) -> None:
        error = None if self._breaker is None else self._breaker.error
        shown = None if error is None else kind_of(error)
        if shown == self._shown:
            return
        if shown is None:
            await session.change(_CLOSED, self._scope)
            _log.info("the breaker is closed again", reactor=self._reactor.name)
        else:
            await session.change(_OPENED, (shown, *self._scope))
            _log.error(
                "the breaker is open, the reactor waits for its dependency",
                reactor=self._reactor.name,
                error_type=shown,
            )
        self._shown = shown
