"""RetrySchedule: how often, and after which waits, a handler that failed is called again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from foundation.errors import PlatformError


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """Attempts and waits; each package declares its defaults and its error in a subclass.

    Attributes:
        attempts_max: Calls of the handler before what failed is parked until an operator decides.
        wait_initial_s: Wait after the first failure, in seconds.
        wait_max_s: No wait is longer.
        factor: Each wait is so many times the one before.
        jitter: Part of each wait that is random, so that many do not come back at once.
        permanent: Errors that no retry can resolve: what failed is parked at once.
        refused: Class of the error that refuses impossible attributes.
    """

    attempts_max: int
    wait_initial_s: float
    wait_max_s: float
    factor: float = 2.0
    jitter: float = 0.2
    permanent: tuple[type[Exception], ...] = ()
    _random: random.Random = field(
        default_factory=random.Random, repr=False, compare=False, hash=False
    )
    refused: ClassVar[type[PlatformError]]

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.wait_initial_s < 0 or not 0 <= self.jitter <= 1:
            raise self.refused(
                "a retry policy needs at least 1 attempt, no negative wait and a jitter from 0 to 1"
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
        return min(wait, self.wait_max_s) * (1 - self.jitter * self._random.random())
