"""Pace and progress of a replay: how much of the time it takes, and how far it is."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from projections.errors import ReplayError, ReplayStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

TOLD_EVERY_S: Final = 0.5
_WORK_MIN_S: Final = 0.01
_DELIVERED_WEIGHT: Final = 20
"""A record that is delivered takes about so many times as long as one that is looked at."""


class Pace:
    """Keeps work to a share of the time.

    Args:
        share: Of the time that passes, 1 for all of it.
        stopped: Set when the work is to end.
    """

    def __init__(self, share: float = 1.0, stopped: threading.Event | None = None) -> None:
        if not 0 < share <= 1:
            raise ReplayError("a share of the time lies between 0 and 1", detail=str(share))
        self._share = share
        self._stopped = threading.Event() if stopped is None else stopped
        self._since = time.monotonic()

    def rest(self) -> None:
        """Waits as long as the work since the last rest asks for.

        Raises:
            ReplayStoppedError: It was told to stop.
        """
        worked_s = time.monotonic() - self._since
        rest_s = worked_s * (1 - self._share) / self._share
        if rest_s > 0 and worked_s < _WORK_MIN_S:
            rest_s = 0.0  # comes with what follows
        else:
            self._since += worked_s
        if self._stopped.wait(rest_s) if rest_s else self._stopped.is_set():
            raise ReplayStoppedError("the replay was stopped", hint="it goes on where it was")
        self._since += rest_s


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
