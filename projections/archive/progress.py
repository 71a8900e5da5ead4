"""Progress of a replay: how far it is, and what ends it when it is told to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from projections.errors import ReplayStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from projections.common.throttle import Throttle

TOLD_EVERY_S: Final = 0.5
_DELIVERED_WEIGHT: Final = 20
"""A record that is delivered takes about so many times as long as one that is looked at."""


def rest(throttle: Throttle) -> None:
    """Ends a step of a replay.

    Raises:
        ReplayStoppedError: It was told to stop.
    """
    throttle.step()
    if throttle.stopped:
        raise stopped()


def stopped() -> ReplayStoppedError:
    """Returns the error of a replay that was told to stop."""
    return ReplayStoppedError("the replay was stopped", hint="it goes on where it was")


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far a replay is.

    Attributes:
        looked_at: Rows of the archive that were looked at, of `rows`.
        rows: All that there are, of other topics too.
        delivered: Records that were delivered, of `to_deliver`.
        to_deliver: All that are to be; as many as are known so far.
        written: Rows and deletes that the stores took.
        per_s: Changes of the archive that are done with, for each second since it began.
        seconds_left: Estimated; None before anything can be said.
        lap: Of what came while the view was filled, which lap; 0 of the replay before.
    """

    looked_at: int = 0
    rows: int = 0
    delivered: int = 0
    to_deliver: int = 0
    written: int = 0
    per_s: float = 0.0
    seconds_left: float | None = None
    lap: int = 0


class Meter:
    """Counts, and tells now and then.

    Args:
        tell: Is told.
    """

    def __init__(self, tell: Callable[[ReplayProgress], None]) -> None:
        self._tell = tell
        self._began = self._told = time.monotonic()
        self._had = 0
        self.rows = self.looked_at = self.to_deliver = self.delivered = self.written = 0

    def skip(self, records: int) -> None:
        """Counts records that an earlier run has delivered."""
        self.delivered += records
        self._had += records * _DELIVERED_WEIGHT

    def tell(self, *, now: bool = False) -> None:
        """Tells how far it is, if it has not been told for a while."""
        at = time.monotonic()
        if not now and at - self._told < TOLD_EVERY_S:
            return
        self._told = at
        done = self.looked_at + self.delivered * _DELIVERED_WEIGHT
        every = self.rows + self.to_deliver * _DELIVERED_WEIGHT
        worked_s = max(at - self._began, 1e-6)
        own = done - self._had
        self._tell(
            ReplayProgress(
                self.looked_at,
                self.rows,
                self.delivered,
                self.to_deliver,
                self.written,
                self.rows * own / every / worked_s if every else 0.0,
                worked_s * (every - done) / own if own else None,
            )
        )
