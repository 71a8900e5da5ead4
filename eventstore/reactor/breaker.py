"""Breaker: a circuit breaker that stops calls to an unavailable dependency and probes it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from eventstore.errors import DependencyAwayError, SubscriptionError
from foundation.retry import at_least_zero, error_classes

if TYPE_CHECKING:
    from collections.abc import Callable

AWAY: Final = (DependencyAwayError, ConnectionError, TimeoutError)
"""Default errors that mean that a dependency is unavailable."""


class BreakerState(StrEnum):
    """The state of a breaker, which decides about the next call.

    Attributes:
        CLOSED: Calls are made.
        OPEN: Calls wait.
        HALF_OPEN: One call is made as a probe; its outcome closes the breaker or opens it again.
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a dependency counts as unavailable, and when it is probed.

    Attributes:
        failures_max: Number of consecutive failures that opens the breaker.
        open_s: Seconds until the first probe.
        open_max_s: The wait doubles after each failed probe, up to this many seconds.
        away: Errors that mean that the dependency is unavailable. Any other error counts as an
            answer of the dependency, and as a failure of the event.
    """

    failures_max: int = 5
    open_s: float = 5.0
    open_max_s: float = 60.0
    away: tuple[type[BaseException], ...] = AWAY

    def __post_init__(self) -> None:
        numbers = all(map(at_least_zero, (self.failures_max, self.open_s, self.open_max_s)))
        classes = bool(self.away) and error_classes(self.away)
        if not (
            numbers and classes and self.failures_max >= 1 and 0 < self.open_s <= self.open_max_s
        ):
            raise SubscriptionError(
                "a breaker opens after 1 failure or more, for 0 < open_s <= open_max_s seconds,"
                " by at least one class of errors"
            )


class Breaker:
    """The breaker of one process.

    Args:
        policy: When it opens.
        clock: Monotonic clock, in seconds.

    Attributes:
        error: The last error that kept the breaker open; None while it is closed.
    """

    def __init__(self, policy: BreakerPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self.error: BaseException | None = None
        self._policy = policy
        self._clock = clock
        self._failures = 0
        self._probes = 0
        self._open_until: float | None = None

    @property
    def state(self) -> BreakerState:
        """The current state."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self.wait_s() > 0 else BreakerState.HALF_OPEN

    def wait_s(self) -> float:
        """Returns the seconds until a call may be made; 0 if it may be made at once."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def succeeded(self) -> None:
        """Records an answer of the dependency."""
        self.error, self._open_until = None, None
        self._failures = self._probes = 0

    def failed(self, error: BaseException) -> bool:
        """Records a failed call; returns whether it counts as an attempt of its event.

        A failure that opens the breaker, or that ends a probe, does not count.
        """
        if not isinstance(error, self._policy.away):
            self.succeeded()
            return True
        self._failures += 1
        if self._open_until is None and self._failures < self._policy.failures_max:
            return True
        wait_s = self._policy.open_s
        for _ in range(self._probes):
            wait_s = min(2 * wait_s, self._policy.open_max_s)
        self._open_until = self._clock() + wait_s
        self._probes += 1
        self.error = error
        return False
