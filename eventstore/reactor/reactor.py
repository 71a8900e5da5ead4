"""Reactor: which effects follow from which events, and how they are repeated and limited."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from eventstore.deciding.context import listed
from eventstore.errors import SubscriptionError
from eventstore.model.callables import check_function, check_result
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventstore.reactor.effect import Effect
    from eventstore.serialization.recorded import RecordedEvent
    from eventstore.subscription.failure import HandlerFailure

React: TypeAlias = "Callable[[Any], Effect | Iterable[Effect] | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reactor:
    """Effects on the outside, and commands, that follow from events.

    Attributes:
        name: Its identity within the tenant, and the beginning of each key.
        react: Is given a `RecordedEvent` and returns its effects: one, several or none. It must do
            nothing itself, and return the same for the same event.
        query: Which events.
        start: Where it begins when it runs for the first time. By default at the end of the log:
            what happened before has no effects.
        partitions: Into how many parts the streams are split; so many processes can share the work.
        batch_size: Events with effects in one transaction. After a crash the effects of so many are
            repeated, with the same keys.
        retry: What happens when an effect fails.
        breaker: When the dependency counts as away; None: never. A reactor has one dependency.
        rate_per_s: Effects a second of all its processes together; None: without a limit.
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
        if self.batch_size < 1 or (self.rate_per_s is not None and self.rate_per_s <= 0):
            raise SubscriptionError(
                f"reactor {self.name} has a batch of 1 event or more, and a rate above 0"
            )
        if self.breaker is not None and self.breaker.failures_max > self.retry.attempts_max:
            raise SubscriptionError(
                f"reactor {self.name} would park events before its breaker opens",
                detail=f"{self.retry.attempts_max} attempts, breaker after"
                f" {self.breaker.failures_max} failures",
                hint="failures_max of the breaker is attempts_max of the retries at most",
            )

    def effects(self, recorded: RecordedEvent) -> tuple[Effect, ...]:
        """Returns the effects of an event; makes none.

        Raises:
            SubscriptionError: `react` returned what is no effect.
            WrongKindError: It returned something to be awaited.
            Exception: What it raised.
        """
        returned = self.react(recorded)
        check_result(f"react of reactor {self.name}", returned)
        return tuple(checked(self.name, effect) for effect in listed(returned))
