"""RetryPolicy: how often and when an event is retried; Failure: what is kept of an error."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Final

from eventstore.errors import EventStoreError, SubscriptionError
from eventstore.subscription.trace import kind_of, location_of

ATTEMPTS_MAX: Final = 20
"""With the waits below, about eleven minutes: a dependency that is restarted is back by then."""

WAIT_INITIAL_S: Final = 0.2
WAIT_MAX_S: Final = 60.0
"""So long after a dependency is back, the last stream that waited for it is handled again."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a handler that fails is retried. Only the event's own stream waits for it.

    By default 20 calls, with waits of 0.2, 0.4, 0.8, … 51 seconds, then of a minute: about eleven
    minutes in all.

    Attributes:
        attempts_max: Calls of the handler before the event stays parked until someone decides.
        wait_initial_s: Wait after the first failure, in seconds.
        wait_max_s: No wait is longer.
        factor: Each wait is so many times the one before.
        jitter: Part of each wait that is random, so that many do not come back at once.
        permanent: Errors that no repetition heals: the event is parked at once.
    """

    attempts_max: int = ATTEMPTS_MAX
    wait_initial_s: float = WAIT_INITIAL_S
    wait_max_s: float = WAIT_MAX_S
    factor: float = 2.0
    jitter: float = 0.2
    permanent: tuple[type[Exception], ...] = ()
    _random: random.Random = field(
        default_factory=random.Random, repr=False, compare=False, hash=False
    )

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.wait_initial_s < 0 or not 0 <= self.jitter <= 1:
            raise SubscriptionError(
                "a retry policy has 1 attempt or more, no negative wait and a jitter of 0 to 1"
            )

    def wait_s(self, attempts: int) -> float | None:
        """Returns how long to wait after so many failures, in seconds; None: no more attempts."""
        if attempts >= self.attempts_max:
            return None
        return self.pause_s(attempts)

    def pause_s(self, attempts: int) -> float:
        """Returns the wait after so many failures whether or not there is another attempt."""
        wait = self.wait_initial_s
        for _ in range(attempts - 1):
            wait = min(wait * self.factor, self.wait_max_s)
        wait = min(wait, self.wait_max_s)
        return wait * (1 - self.jitter * self._random.random())


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of a handler's error: never its text, which may have values of rows in it.

    Attributes:
        error_type: Name of its class.
        error_code: Its stable code: HW-E… of this package, or Postgres' SQLSTATE.
        attempts: How often the handler was called.
        permanent: No repetition heals it.
        error_location: `file:line` of the handler's own code; None if unknown.
        error: The error itself, for this process only.
        outage: A dependency is away, so that this was no attempt; it is retried in any case.
    """

    error_type: str
    error_code: str | None
    attempts: int
    permanent: bool
    error_location: str | None = None
    error: BaseException | None = field(default=None, repr=False, compare=False)
    outage: bool = False

    @classmethod
    def of(cls, error: BaseException, attempts: int, policy: RetryPolicy) -> Failure:
        """Returns what is kept of an error after so many attempts."""
        code = getattr(error, "sqlstate", None)
        permanent = isinstance(error, policy.permanent)
        if isinstance(error, EventStoreError):
            code = error.code
            permanent = permanent or not error.retriable
        return cls(kind_of(error), code, attempts, permanent, location_of(error), error)

    def wait_s(self, policy: RetryPolicy) -> float | None:
        """Returns how long to wait before the next attempt, in seconds; None if there is none."""
        if self.outage:
            return policy.pause_s(max(1, self.attempts))
        return None if self.permanent else policy.wait_s(self.attempts)

    def during_outage(self) -> Failure:
        """Returns this failure as one that counts as no attempt."""
        return replace(self, attempts=self.attempts - 1, permanent=False, outage=True)
