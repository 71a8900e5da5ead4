"""Noting: how far a replay is, beside what it goes on with, for whoever looks while it runs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from projections.archive.task import ReplayState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from projections.archive.progress import ReplayProgress

NOTED_EVERY_S: Final = 2.0
"""How often figures are noted at most: each is a row written in the source."""

_FIGURES: Final = "figures"
_STATE: Final = frozenset(ReplayState.__struct_fields__)


class Figures(NamedTuple):
    """How far a replay is.

    Attributes:
        done: Records that were looked at and records that were delivered.
        total: All that there are of both, as far as is known: while the archive is looked through,
            no one knows how many are to be delivered.
        share: What part of them that is; None while that is not known.
        seconds_left: Estimated; None while nothing can be said.
        lap: Of what came while the view was filled, which lap; 0 of the replay before.
    """

    done: int
    total: int
    share: float | None
    seconds_left: float | None
    lap: int = 0


class ProgressWriter:
    """Writes down, for one replay, where it goes on and how far it is.

    Args:
        noted: What was noted of it before; None of one that begins.
        write: Writes it down.
        tell: Is told how far it is, too.
        lap: Which lap it is; 0 of the replay before them.
    """

    def __init__(
        self,
        noted: Mapping[str, Any] | None,
        write: Callable[[Mapping[str, Any]], None],
        tell: Callable[[ReplayProgress], None],
        lap: int = 0,
    ) -> None:
        self._state = {name: each for name, each in (noted or {}).items() if name in _STATE}
        self._figures: dict[str, Any] = {}
        self._write = write
        self._tell = tell
        self._lap = lap
        self._written = time.monotonic()

    @property
    def resumes(self) -> ReplayState | None:
        """Where it goes on; None if it begins."""
        return state_of(self._state)

    def note(self, state: ReplayState) -> None:
        """Notes where it would go on if it ended now."""
        self._state = msgspec.to_builtins(state)
        self._written = time.monotonic()
        self._write({**self._state, **self._figures})

    def told(self, now: ReplayProgress) -> None:
        """Notes how far it is, if that was not noted for a while."""
        known = now.looked_at >= now.rows > 0
        done, total = now.looked_at + now.delivered, now.rows + now.to_deliver
        share = round(min(1.0, done / total), 3) if known else None
        left = round(max(0.0, now.seconds_left), 1) if known and now.seconds_left else None
        self._figures = {_FIGURES: [done, total, share, left, self._lap]}
        self._tell(replace(now, lap=self._lap))
        if time.monotonic() > self._written + NOTED_EVERY_S:
            self._written = time.monotonic()
            self._write({**self._state, **self._figures})


def state_of(noted: Mapping[str, Any] | None) -> ReplayState | None:
    """Returns where a replay goes on; None if it had not come to write anything."""
    found = {name: each for name, each in (noted or {}).items() if name in _STATE}
    return msgspec.convert(found, ReplayState) if found else None


def figures_of(noted: Mapping[str, Any] | None) -> Figures | None:
    """Returns how far a replay was when that was noted last; None if it was not."""
    found = (noted or {}).get(_FIGURES)
    return None if found is None else Figures(*found)
