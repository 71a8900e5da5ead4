"""EffectRate: limits the number of effects per second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class EffectRate:
    """Spaces effects evenly. The members of a reactor share the rate.

    The rate of a member is proportional to its share of the partitions.

    Args:
        per_s: Effects per second of the whole reactor.
        clock: Monotonic clock, in seconds.

    Attributes:
        share: Share of the rate that this process has, from 0 to 1.
    """

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.share = 1.0
        self._per_s = per_s
        self._clock = clock
        self._free_at = clock()

    def wait_s(self) -> float:
        """Returns the seconds until the next effect may be performed; 0 if now."""
        return max(0.0, self._free_at - self._clock())

    def took(self) -> None:
        """Records an attempted effect."""
        own = self._per_s * self.share
        if own > 0:
            self._free_at = max(self._free_at, self._clock()) + 1 / own
