"""Records where a replay continues after an interruption, and its progress for other processes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from projections.archive.task import ReplayState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from projections.archive.progress import ReplayProgress

WRITE_EVERY_S: Final = 2.0
"""Shortest time between two records of figures, seconds: each is a row written in the source."""

_FIGURES: Final = "figures"
_STATE: Final = frozenset(ReplayState.__struct_fields__)


class Figures(NamedTuple):
    """The progress of a replay, or of a numbered catch-up round after it.

    Attributes:
        done: Records that were inspected and records that were delivered.
        total: All records to inspect and to deliver, as far as known: while the archive is
            inspected, the number to deliver is unknown.
        share: `done` as a part of `total`; None while that is unknown.
        seconds_left: Estimate; None while there is none.
    """

    done: int
    total: int
    share: float | None
    seconds_left: float | None
    lap: int = 0


class ProgressWriter:
    """Records the progress of one replay, or of a numbered catch-up round.

    Args:
        stored: The earlier record; None for a replay that begins.
        write: Stores the record.
        on_progress: Also receives the progress.
    """

    def __init__(
        self,
        stored: Mapping[str, Any] | None,
        write: Callable[[Mapping[str, Any]], None],
        on_progress: Callable[[ReplayProgress], None],
        lap: int = 0,
    ) -> None:
        self._state = {name: each for name, each in (stored or {}).items() if name in _STATE}
        self._figures: dict[str, Any] = {}
        self._write = write
        self._on_progress = on_progress
        self._lap = lap
        self._written = time.monotonic()

    @property
    def resumes(self) -> ReplayState | None:
        """Where it continues; None if it begins."""
        return state_of(self._state)

    def note(self, state: ReplayState) -> None:
        """Records where it would continue if it ended at this point."""
        self._state = msgspec.to_builtins(state)
        self._written = time.monotonic()
        self._write({**self._state, **self._figures})

    def report(self, now: ReplayProgress) -> None:
        """Records the progress, unless it did so shortly before."""
        known = now.looked_at >= now.rows > 0
        done, total = now.looked_at + now.delivered, now.rows + now.to_deliver
        share = round(min(1.0, done / total), 3) if known else None
        seconds_left = round(max(0.0, now.seconds_left), 1) if known and now.seconds_left else None
        self._figures = {_FIGURES: [done, total, share, seconds_left, self._lap]}
        self._on_progress(replace(now, lap=self._lap))
        if time.monotonic() > self._written + WRITE_EVERY_S:
            self._written = time.monotonic()
            self._write({**self._state, **self._figures})


def state_of(stored: Mapping[str, Any] | None) -> ReplayState | None:
    """Returns where a replay continues; None if it has not written anything."""
    state = {name: each for name, each in (stored or {}).items() if name in _STATE}
    return ReplayState.from_json(msgspec.json.encode(state)) if state else None


def figures_of(stored: Mapping[str, Any] | None) -> Figures | None:
    """Returns the last recorded figures of a replay; None without any."""
    figures = (stored or {}).get(_FIGURES)
    return None if figures is None else Figures(*figures)
