"""Progress of a replay, and the exception that ends it when the caller stops it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from projections.errors import ReplayStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from projections.common.throttle import Throttle

REPORT_EVERY_S: Final = 0.5
_DELIVERED_WEIGHT: Final = 20
"""Cost of delivering a record, relative to inspecting one."""


def rest(throttle: Throttle) -> None:
    """Ends a step of a replay.

    Raises:
        ReplayStoppedError: The caller stopped it.
    """
    throttle.step()
    if throttle.stopped:
        raise stopped()


def stopped() -> ReplayStoppedError:
    """Returns the error of a stopped replay."""
    return ReplayStoppedError("the replay was stopped", hint="it continues where it stopped")


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of a replay, or of a numbered catch-up round after it.

    Attributes:
        looked_at: Rows of the archive that were inspected, of `rows`.
        rows: All rows of the archive, of other topics too.
        delivered: Records that were delivered, of `to_deliver`.
        to_deliver: Records to deliver, as far as known.
        written: Rows and deletes that the stores accepted.
        per_s: Finished changes of the archive per second since it began.
        seconds_left: Estimate; None before there is one.
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
    """Counts records, and reports at intervals.

    Args:
        on_progress: Receives the reports.
    """

    def __init__(self, on_progress: Callable[[ReplayProgress], None]) -> None:
        self._on_progress = on_progress
        self._began = self._reported_at = time.monotonic()
        self._had = 0
        self.rows = self.looked_at = self.to_deliver = self.delivered = self.written = 0

    def skip(self, records: int) -> None:
        """Counts records that an earlier run delivered."""
        self.delivered += records
        self._had += records * _DELIVERED_WEIGHT

    def report(self, *, now: bool = False) -> None:
        """Reports the progress, unless it did so shortly before."""
        at = time.monotonic()
        if not now and at - self._reported_at < REPORT_EVERY_S:
            return
        self._reported_at = at
        done = self.looked_at + self.delivered * _DELIVERED_WEIGHT
        every = self.rows + self.to_deliver * _DELIVERED_WEIGHT
        worked_s = max(at - self._began, 1e-6)
        own = done - self._had
        self._on_progress(
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
