"""RetryPolicy: how often and when an event is retried; Failure: what is kept of an error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from eventstore.errors import EventStoreError, SubscriptionError
from eventstore.subscription.trace import kind_of, location_of
from foundation.retry import RetrySchedule

ATTEMPTS_MAX: Final = 20
"""With the waits below, about eleven minutes: a dependency that is restarted is back by then."""

WAIT_INITIAL_S: Final = 0.2
WAIT_MAX_S: Final = 60.0
"""So long after a dependency is back, the last stream that waited for it is handled again."""


@dataclass(frozen=True, slots=True)
class RetryPolicy(RetrySchedule):
    """How a handler that fails is retried; see `RetrySchedule`. Only the event's stream waits.

    By default 20 calls, with waits of 0.2, 0.4, 0.8, … 51 seconds, then of a minute: about eleven
    minutes in all.
    """

    attempts_max: int = ATTEMPTS_MAX
    wait_initial_s: float = WAIT_INITIAL_S
    wait_max_s: float = WAIT_MAX_S
    refused = SubscriptionError


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of a handler's error: never its text, which may have values of rows in it.

    Attributes:
        error_type: Name of its class.
        error_code: Its stable code: HW-E… of this package, or Postgres' SQLSTATE.
        attempts: How often the handler was called.
        permanent: No retry resolves it.
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
