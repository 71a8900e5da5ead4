"""Rows for steps that may occur in any order.

A row may fit several steps, and need not be assigned to one at once: it is taken if all rows taken
before and this one can still be assigned to steps that they fit, each to one. An early choice
therefore never prevents a later match, and the match ends as early as possible. (Sets of rows that
can be assigned are a transversal matroid, and taking each that fits is its greedy algorithm:
Edmonds and Fulkerson, 1965. Rows are moved to another step along an augmenting path, as in Kuhn's
algorithm.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class MatchedRows:
    """The rows taken for some steps.

    Args:
        times: Number of rows that each step takes.

    Attributes:
        tried: Number of steps that were tried for a row: the cost so far.
    """

    def __init__(self, times: Sequence[int]) -> None:
        self._times = times
        self._wanted = sum(times)
        self._of: list[list[int]] = [[] for _ in times]
        self._fits: dict[int, Sequence[bool]] = {}
        self.tried = 0

    @property
    def full(self) -> bool:
        """Returns whether no step waits for a row."""
        return len(self._fits) == self._wanted

    @property
    def given(self) -> list[tuple[int, int]]:
        """Returns row number and step of each taken row, in order."""
        return sorted((place, step) for step, rows in enumerate(self._of) for place in rows)

    def takes(self, place: int, fits: Sequence[bool]) -> bool:
        """Takes a row if a step is available for it.

        Args:
            place: Its row number.
            fits: For each step, whether the row fits it.
        """
        self._fits[place] = fits
        if self._give(place, set()):
            return True
        del self._fits[place]
        return False

    def _give(self, place: int, tried: set[int]) -> bool:
        self.tried += 1
        for step, fits in enumerate(self._fits[place]):
            if not fits or step in tried:
                continue
            tried.add(step)
            rows = self._of[step]
            if len(rows) < self._times[step]:
                rows.append(place)
                return True
            for other in rows:
                if self._give(other, tried):
                    rows[rows.index(other)] = place
                    return True
        return False
