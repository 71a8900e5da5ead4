"""Detects a capture that is reported as running but does not move, and restarts it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from cdc.upkeep.errors import CaptureStalledError
from cdc.upkeep.flow import READING_MAX_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.upkeep.flow import CaptureSample

RESTARTS_MAX: Final = 5
"""Consecutive restarts without effect after which it gives up: about ten minutes."""

PAUSE_FIRST_S: Final = 20.0
PAUSE_MAX_S: Final = 300.0
_log = structlog.get_logger(__name__)


class StallWatch:
    """Remembers when a capture last moved.

    Args:
        name: The connector, for logs and errors.
        look: Samples the capture; the argument states whether to sample Kafka, too.
        restart: Restarts the connector with its tasks, regardless of the state that they report.
        limit_s: Time without movement after which it is stalled.
        clock: A monotonic clock, seconds.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[bool], CaptureSample],
        restart: Callable[[], None],
        *,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._look = look
        self._restart = restart
        self._limit_s = limit_s
        self._clock = clock
        self._last: CaptureSample | None = None
        self._moved_at = self._arrived_at = clock()
        self._due_at = 0.0
        self._pause_s = PAUSE_FIRST_S
        self.restarts = 0

    @property
    def stalled_s(self) -> float:
        """Returns how long nothing has moved, seconds; 0 while that is not yet a stall."""
        still_s = self._clock() - self._moved_at
        return still_s if still_s >= self._limit_s else 0.0

    def look(self) -> CaptureSample:
        """Samples once; restarts a stalled capture unless the last restart was too recent.

        Raises:
            CaptureStalledError: It does not move, and restarts have not helped.
        """
        # Postgres suffices while the capture moves; Kafka is sampled only in doubt
        doubt = self._clock() - self._moved_at > self._limit_s / 2
        sample = self._look(doubt)
        self._note(sample)
        if self.stalled_s and self._clock() >= self._due_at:
            self._act(sample)
        return sample

    def _note(self, sample: CaptureSample) -> None:
        before, self._last = self._last, sample
        now = self._clock()
        if before is None or sample.halted or sample.moved_since(before):
            if self.restarts:
                _log.info("capture moves again", connector=self._name, restarts=self.restarts)
            self._moved_at = self._arrived_at = now
            self._pause_s, self._due_at, self.restarts = PAUSE_FIRST_S, 0.0, 0
        elif _failed(sample) or (
            now - self._arrived_at < READING_MAX_S and sample.reads_since(before, self._limit_s)
        ):
            self._moved_at = now

    def _act(self, sample: CaptureSample) -> None:
        still_s = round(self.stalled_s)
        if self.restarts >= RESTARTS_MAX:
            raise CaptureStalledError(
                f"capture by {self._name} is stalled: no progress for {still_s} s",
                detail=sample.facts(),
                hint="see headwater logs connect; headwater down and headwater up restart it",
            )
        _log.warning("capture is stalled", connector=self._name, for_s=still_s, seen=sample.facts())
        self._restart()
        self.restarts += 1
        self._due_at = self._clock() + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)


def _failed(sample: CaptureSample) -> bool:
    """Returns whether another component is responsible: a failed or missing connector."""
    if sample.worker is None:
        return sample.answers
    return bool(sample.worker.failed)
