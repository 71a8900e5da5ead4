"""ConsumerRetryPolicy: how a change is retried; ChangeFailure: the stored facts of an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc.consumer.errors import ConsumerSpecError
from cdc.errors import CdcError
from foundation.retry import RetrySchedule

ATTEMPTS_MAX: Final = 5
WAIT_INITIAL_S: Final = 0.2
WAIT_MAX_S: Final = 30.0
"""An error that lasts longer needs an operator."""

_TYPE_LENGTH_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ConsumerRetryPolicy(RetrySchedule):
    """How a handler that fails is retried; see `RetrySchedule`. Only the change's key waits."""

    attempts_max: int = ATTEMPTS_MAX
    wait_initial_s: float = WAIT_INITIAL_S
    wait_max_s: float = WAIT_MAX_S
    refused = ConsumerSpecError


@dataclass(frozen=True, slots=True)
class ChangeFailure:
    """The stored facts of an error: never its text, which may contain values.

    Attributes:
        error_type: Name of its class.
        error_code: Its stable code, HW-C… of this package or Postgres' SQLSTATE; None without one.
        attempts: How often the handler was called; 0 if the record could not be decoded.
        permanent: Whether retries cannot succeed.
    """

    error_type: str
    error_code: str | None
    attempts: int
    permanent: bool

    @classmethod
    def of(
        cls, error: BaseException, attempts: int, permanent: tuple[type, ...] = ()
    ) -> ChangeFailure:
        """Returns the facts of an error after a number of attempts."""
        code = getattr(error, "code", None) if isinstance(error, CdcError) else None
        code = code or getattr(error, "sqlstate", None)
        lasting = isinstance(error, permanent) or (
            isinstance(error, CdcError) and not error.retriable
        )
        kind = type(error)
        name = f"{kind.__module__}.{kind.__qualname__}"[:_TYPE_LENGTH_MAX]
        return cls(name, code if isinstance(code, str) else None, attempts, lasting)

    def wait_s(self, policy: RetrySchedule) -> float | None:
        """Returns how long to wait before the next attempt, in seconds; None if there is none."""
        return None if self.permanent else policy.wait_s(self.attempts)
