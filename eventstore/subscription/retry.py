"""RetryPolicy: how often and when an event is retried; Failure: the stored form of an error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from eventstore.errors import EventStoreError, SubscriptionError
from eventstore.subscription.trace import kind_of, location_of
from foundation.retry import RetrySchedule

ATTEMPTS_MAX: Final = 20
"""About eleven minutes with the waits below: longer than the restart of a dependency."""

WAIT_INITIAL_S: Final = 0.2
WAIT_MAX_S: Final = 60.0
"""Also the longest time until a stream is retried after its dependency has recovered."""


@dataclass(frozen=True, slots=True)
class RetryPolicy(RetrySchedule):
    """How a failed event is retried; see `RetrySchedule`. Only the event's stream waits.

    By default 20 calls, with waits of 0.2, 0.4, 0.8, … 51 seconds, then of a minute: about eleven
    minutes in total.
    """

    attempts_max: int = ATTEMPTS_MAX
    wait_initial_s: float = WAIT_INITIAL_S
    wait_max_s: float = WAIT_MAX_S
    refused = SubscriptionError


@dataclass(frozen=True, slots=True)
class Failure:
    """The stored form of a handler's error: never its text, which may contain values of rows.

    Attributes:
        error_type: Name of its class.
        error_code: Its stable code: HW-E… of this package, or Postgres' SQLSTATE.
        attempts: Number of calls of the handler.
        permanent: Whether a retry cannot succeed.
        error_location: `file:line` of the handler's own code; None if unknown.
        error: The error itself, for this process only.
        outage: Whether a dependency is unavailable. Such a failure does not count as an attempt and
            is always retried.
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
        """Returns the failure for an error after this number of attempts."""
        code = getattr(error, "sqlstate", None)
        permanent = isinstance(error, policy.permanent)
        if isinstance(error, EventStoreError):
            code = error.code
            permanent = permanent or not error.retriable
        return cls(kind_of(error), code, attempts, permanent, location_of(error), error)

    def wait_s(self, policy: RetryPolicy) -> float | None:
        """Returns the seconds until the next attempt; None if there is none."""
        if self.outage:
            return policy.pause_s(max(1, self.attempts))
        return None if self.permanent else policy.wait_s(self.attempts)

    def during_outage(self) -> Failure:
        """Returns the same failure, which does not count as an attempt."""
        return replace(self, attempts=self.attempts - 1, permanent=False, outage=True)
