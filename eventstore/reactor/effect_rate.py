"""EffectRate: so many effects a second at most."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class EffectRate:
    """Spaces effects evenly. All members of a reactor together have the whole rate.

    Each has the part of it that is its share of the partitions.

    Args:
        per_s: Effects a second of the whole reactor.
        clock: Returns seconds that only grow.

    Attributes:
        share: The part of it that this process has, from 0 to 1.
    """

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.share = 1.0
        self._per_s = per_s
        self._clock = clock
        self._free_at = clock()

    def wait_s(self) -> float:
        """Returns the seconds until the next effect may be made; 0 if at once."""
        return max(0.0, self._free_at - self._clock())

    def took(self) -> None:
        """Notes that an effect was tried."""
        own = self._per_s * self.share
        if own > 0:
            self._free_at = max(self._free_at, self._clock()) + 1 / own
