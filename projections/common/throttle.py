"""Throttle: limits work to a share of the time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from projections.errors import ProjectionError

_PAUSE_MAX_S: Final = 30.0
"""Longest pause: connections to stores do not stay open idle for much longer."""

_WORK_MIN_S: Final = 0.01
"""Pauses shorter than this are added to the next one."""


class Throttle:
    """Pauses after each step according to the share of the time.

    Args:
        share: Greatest share of the time to work, above 0 and up to 1.
        stop: Ends all pauses, and the work with them.
        error: Class of the error for a share out of range.
    """

    def __init__(
        self,
        share: float = 1.0,
        stop: threading.Event | None = None,
        *,
        error: type[ProjectionError] = ProjectionError,
    ) -> None:
        if not 0 < share <= 1:
            raise error("a share of time must be above 0 and at most 1", detail=f"{share:g}")
        self._share = share
        self._stop = stop or threading.Event()
        self._since = time.monotonic()

    @property
    def stopped(self) -> bool:
        """Returns whether to stop."""
        return self._stop.is_set()

    @property
    def limited(self) -> bool:
        """Returns whether there are pauses."""
        return self._share < 1

    def step(self) -> None:
        """Ends a step, with a pause if the share requires one."""
        worked_s = time.monotonic() - self._since
        pause_s = min(_PAUSE_MAX_S, worked_s * (1 / self._share - 1))
        if pause_s > 0 and worked_s < _WORK_MIN_S:
            return
        if pause_s > 0:
            self._stop.wait(pause_s)
        self._since = time.monotonic()

    def restart(self) -> None:
        """Begins a step: earlier time does not count as work."""
        self._since = time.monotonic()

    def rest(self, seconds: float) -> None:
        """Waits for something else; this does not count as work."""
        began = time.monotonic()
        self._stop.wait(seconds)
        self._since += time.monotonic() - began


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a task works, as it is passed to the process where the task runs.

    Attributes:
        share: Greatest share of its time that the task takes.
        stop: Ends a task of this process; None for one of another process.
    """

    share: float = 1.0
    stop: threading.Event | None = None

    def throttle(self) -> Throttle:
        """Returns the throttle of a task that begins now."""
        return Throttle(self.share, self.stop)


FULL_PACE: Final = Pace()
