"""Breaker: stops calls to a dependency that is away, and tries with one call whether it is back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from eventstore.errors import DependencyAwayError, SubscriptionError

if TYPE_CHECKING:
    from collections.abc import Callable

AWAY: Final = (DependencyAwayError, ConnectionError, TimeoutError)
"""Errors that say that a dependency is away, where a policy names no others."""


class BreakerState(StrEnum):
    """What a breaker does with the next call.

    Attributes:
        CLOSED: It is made.
        OPEN: It waits.
        HALF_OPEN: One is made, as a probe; its outcome closes the breaker or opens it again.
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a dependency counts as away, and when it is retried.

    Attributes:
        failures_max: So many failures without a success between them open the breaker.
        open_s: Seconds until the first probe.
        open_max_s: After each failed probe the wait doubles, up to this many seconds.
        away: Errors that say that the dependency is away. Any other error is the event's own: the
            dependency has answered.
    """

    failures_max: int = 5
    open_s: float = 5.0
    open_max_s: float = 60.0
    away: tuple[type[BaseException], ...] = AWAY

    def __post_init__(self) -> None:
        if self.failures_max < 1 or not 0 < self.open_s <= self.open_max_s or not self.away:
            raise SubscriptionError(
                "a breaker opens after 1 failure or more, for 0 < open_s <= open_max_s seconds,"
                " by at least one class of errors"
            )


class Breaker:
    """The breaker of one process.

    Args:
        policy: When it opens.
        clock: Returns seconds that only grow.

    Attributes:
        error: What said last that the dependency is away; None while it is closed.
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
        """What it does with the next call."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self.wait_s() > 0 else BreakerState.HALF_OPEN

    def wait_s(self) -> float:
        """Returns the seconds until a call may be made; 0 if it may be made at once."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def succeeded(self) -> None:
        """Notes that the dependency has answered."""
        self.error, self._open_until = None, None
        self._failures = self._probes = 0

    def failed(self, error: BaseException) -> bool:
        """Notes a failed call; returns whether it counts as an attempt of its event.

        It does not if it opened the breaker, or was a probe.
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
