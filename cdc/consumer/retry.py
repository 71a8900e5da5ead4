"""RetryPolicy: how often and when a change is retried; Failure: what is kept of an error."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from cdc.consumer.errors import ConsumerSpecError
from cdc.errors import CdcError

ATTEMPTS_MAX: Final = 5
WAIT_INITIAL_S: Final = 0.2
WAIT_MAX_S: Final = 30.0
"""A fault elsewhere that lasts longer is for somebody to look at."""

_TYPE_LENGTH_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ConsumerRetryPolicy:
    """How a handler that fails is retried. Only the change's own key waits for it.

    Attributes:
        attempts_max: Calls of the handler before the key is parked until an operator decides.
        wait_initial_s: Wait after the first failure, in seconds.
        wait_max_s: No wait is longer.
        factor: Each wait is so many times the one before.
        jitter: Part of each wait that is random, so that many do not come back at once.
        permanent: Errors that no repetition heals: the key is parked at once.
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
            raise ConsumerSpecError(
                "a retry policy needs at least 1 attempt, no negative wait and a jitter from 0 to 1"
            )

    def wait_s(self, failure: ChangeFailure) -> float | None:
        """Returns how long to wait after a failure, in seconds; None: no more attempts."""
        if failure.permanent or failure.attempts >= self.attempts_max:
            return None
        wait = self.wait_initial_s
        for _ in range(failure.attempts - 1):
            wait = min(wait * self.factor, self.wait_max_s)
        return min(wait, self.wait_max_s) * (1 - self.jitter * self._random.random())


@dataclass(frozen=True, slots=True)
class ChangeFailure:
    """What is kept of an error: never its text, which may have values of rows in it.

    Attributes:
        error_type: Name of its class.
        error_code: Its stable code, HW-C… of this package or Postgres' SQLSTATE; None without one.
        attempts: How often the handler was called; 0 if the record could not be decoded.
        permanent: No repetition heals it.
    """

    error_type: str
    error_code: str | None
    attempts: int
    permanent: bool

    @classmethod
    def of(
        cls, error: BaseException, attempts: int, permanent: tuple[type, ...] = ()
    ) -> ChangeFailure:
        """Returns what is kept of an error after so many attempts."""
        code = getattr(error, "code", None) if isinstance(error, CdcError) else None
        code = code or getattr(error, "sqlstate", None)
        lasting = isinstance(error, permanent) or (
            isinstance(error, CdcError) and not error.retriable
        )
        kind = type(error)
        name = f"{kind.__module__}.{kind.__qualname__}"[:_TYPE_LENGTH_MAX]
        return cls(name, code if isinstance(code, str) else None, attempts, lasting)
