"""RetrySchedule: how often, and after which waits, a failed handler is called again."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from foundation.errors import PlatformError


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """Attempts and waits; each package declares its defaults and its error in a subclass.

    Attributes:
        attempts_max: Calls of the handler before its input is parked until an operator decides.
        wait_initial_s: Wait after the first failure, in seconds.
        wait_max_s: No wait is longer.
        factor: Ratio of each wait to the previous one.
        jitter: Random share of each wait, so that many retries do not coincide.
        permanent: Errors that no retry can resolve; the input is parked immediately.
        refused: Class of the error for invalid attributes.
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
        waits = (self.wait_initial_s, self.wait_max_s, self.factor)
        if not (
            all(map(at_least_zero, (self.attempts_max, *waits, self.jitter)))
            and self.attempts_max >= 1
            and self.jitter <= 1
        ):
            raise self.refused(
                "a retry policy needs at least 1 attempt, no negative wait and a jitter from 0 to 1"
            )
        if not error_classes(self.permanent):
            raise self.refused(
                "the permanent errors of a retry policy must be a tuple of error classes",
                detail=f"an object of {type(self.permanent).__qualname__}",
                hint="such as permanent=(ValueError,)",
            )

    def wait_s(self, attempts: int) -> float | None:
        """Returns the seconds to wait after this many failures; None: no more attempts."""
        if attempts >= self.attempts_max:
            return None
        return self.pause_s(attempts)

    def pause_s(self, attempts: int) -> float:
        """Returns the wait after this many failures, even if there is no further attempt."""
        wait = self.wait_initial_s
        for _ in range(attempts - 1):
            wait = min(wait * self.factor, self.wait_max_s)
        return min(wait, self.wait_max_s) * (1 - self.jitter * self._random.random())


def at_least_zero(number: object) -> bool:
    """Returns whether something is a number that is not negative; NaN is none."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    return not math.isnan(number) and number >= 0


def error_classes(given: object) -> bool:
    """Returns whether `isinstance` takes something as classes of errors: a class, or a tuple."""
    classes = given if isinstance(given, tuple) else (given,)
    return all(isinstance(each, type) and issubclass(each, BaseException) for each in classes)
