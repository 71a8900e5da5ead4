"""Reactor: which effects follow from which events, and how they are retried and limited."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from eventstore.deciding.context import listed
from eventstore.errors import SubscriptionError
from eventstore.model.callables import check_function, check_kind, check_result
from eventstore.model.query import EVERYTHING, Query
from eventstore.reactor.breaker import BreakerPolicy
from eventstore.reactor.effect import checked
from eventstore.subscription.retry import RetryPolicy
from eventstore.subscription.subscription import (
    PARKED_STREAMS_MAX,
    Start,
    check_partitions,
    check_subscription,
)
from foundation.retry import at_least_zero

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventstore.reactor.effect import Effect
    from eventstore.serialization.recorded import RecordedEvent
    from eventstore.subscription.failure import HandlerFailure

React: TypeAlias = "Callable[[Any], Effect | Iterable[Effect] | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reactor:
    """Performs external effects and commands that follow from events.

    Attributes:
        name: Its identity within the tenant, and the prefix of each idempotency key.
        react: Takes a `RecordedEvent` and returns its effects: one, several or none. It must have
            no effects of its own, and return the same effects for the same event.
        query: Events that the reactor reads.
        start: Where the first run begins. By default the end of the log, so that earlier events
            have no effects.
        partitions: Number of partitions of the streams, and so of processes that share the work.
        batch_size: Events with effects per transaction. A crash repeats the effects of up to this
            many events, with the same keys.
        retry: How failed effects are retried.
        breaker: When the dependency counts as unavailable; None: never. A reactor has one
            dependency.
        rate_per_s: Maximum effects per second of all its processes together; None: no limit.
        parked_streams_max: See `Subscription`.
        on_failure: See `Subscription`.
    """

    name: str
    react: React
    query: Query = EVERYTHING
    start: Start | int = Start.END
    partitions: int = 1
    batch_size: int = 1
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    breaker: BreakerPolicy | None = field(default_factory=BreakerPolicy)
    rate_per_s: float | None = None
    parked_streams_max: int = PARKED_STREAMS_MAX
    on_failure: Callable[[HandlerFailure], object] | None = None

    def __post_init__(self) -> None:
        check_subscription(self.name)
        check_function(f"react of reactor {self.name}", self.react)
        check_partitions(self.partitions)
        rate = 1 if self.rate_per_s is None else self.rate_per_s
        if (
            type(self.batch_size) is not int
            or self.batch_size < 1
            or not at_least_zero(rate)
            or not rate
        ):
            raise SubscriptionError(
                f"reactor {self.name} has a batch of 1 event or more, and a rate above 0"
            )
        check_kind(f"retry of reactor {self.name}", self.retry, RetryPolicy, "RetryPolicy(...)")
        if self.breaker is not None:
            check_kind(
                f"breaker of reactor {self.name}", self.breaker, BreakerPolicy, "BreakerPolicy(...)"
            )
        if self.breaker is not None and self.breaker.failures_max > self.retry.attempts_max:
            raise SubscriptionError(
                f"reactor {self.name} would park events before its breaker opens",
                detail=f"{self.retry.attempts_max} attempts, breaker after"
                f" {self.breaker.failures_max} failures",
                hint="failures_max of the breaker is attempts_max of the retries at most",
            )

    def effects(self, recorded: RecordedEvent) -> tuple[Effect, ...]:
        """Returns the effects of an event without performing them.

        Raises:
            SubscriptionError: `react` returned an object that is not an effect.
            WrongKindError: `react` returned an awaitable.
            Exception: Raised by `react`.
        """
        returned = self.react(recorded)
        check_result(f"react of reactor {self.name}", returned)
        return tuple(checked(self.name, effect) for effect in listed(returned))
