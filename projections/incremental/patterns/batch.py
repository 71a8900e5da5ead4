"""The search for patterns in many groups at once, in columns.

Rows of many episodes arrive, and matches leave, as Arrow columns. Only times and compared columns
become Python values; the other columns of a match are copied by row number. An episode without
enough rows for a required step is skipped: most are of that kind.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from projections.incremental.patterns.index import WorkBudget
from projections.incremental.patterns.search import GroupRows, matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.definition.operators.pattern import Pattern
    from projections.errors import ProjectionError
    from projections.incremental.patterns.search import Match

AT = "at"
MISSES = "misses"
COMPARED = "compared"
LISTED = "listed"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an episode.

    Attributes:
        rows_max: Most rows.
        many: The message for more rows.
        lookups_max: Most look-ups; see `WorkBudget`.
        dear: The message for more look-ups.
    """

    rows_max: int
    many: ProjectionError
    lookups_max: int
    dear: ProjectionError


@dataclass(slots=True)
class _Matches:
    """The matches so far, in columns.

    Attributes:
        ends: Total number of matches up to the end of each episode.
        numbers: Number of each match among those of its episode that begin at the same time.
        due: Time until which no absent row may occur, for each match.
        taken_ends: Total number of taken rows up to the end of each match.
        steps: Step name of each taken row.
        places: Row number of each taken row among all rows.
    """

    ends: list[int] = field(default_factory=lambda: [0])
    numbers: list[int] = field(default_factory=list)
    due: list[int | None] = field(default_factory=list)
    taken_ends: list[int] = field(default_factory=lambda: [0])
    steps: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def add(self, match: Match, number: int, first: int) -> None:
        """Adds a match of an episode whose rows begin at a row number."""
        self.numbers.append(number)
        self.due.append(match.due)
        for step, place in match.taken:
            self.steps.append(step)
            self.places.append(first + place)
        self.taken_ends.append(len(self.places))

    def column(self, listed: pa.StructArray) -> pa.ListArray:
        """Returns the matches of each episode, with the columns that a match lists."""
        parts = listed.take(pa.array(self.places, pa.int64())).flatten()
        names = ["step", *(each.name for each in listed.type)]
        rows = pa.StructArray.from_arrays([pa.array(self.steps, pa.string()), *parts], names)
        matched = pa.StructArray.from_arrays(
            [
                pa.array(self.numbers, pa.int32()),
                pa.array(self.due, pa.int64()),
                pa.ListArray.from_arrays(pa.array(self.taken_ends, pa.int32()), rows),
            ],
            ["number", "due", "rows"],
        )
        return pa.ListArray.from_arrays(pa.array(self.ends, pa.int32()), matched)


def find_matches(pattern: Pattern, episodes: pa.ListArray, limits: Limits) -> pa.ListArray:
    """Finds the matches of each episode.

    Args:
        pattern: The pattern.
        episodes: For each episode, its rows in order: structs of `at`, the time in microseconds,
            `misses`, for each step whether the row does not fit it, `compared`, if there are any,
            the columns of `Pattern.compared`, and `listed`, the columns that a match lists.
        limits: The limits of each episode.

    Returns:
        For each episode, its matches in the order of their beginning: structs of `number`, among
        those that begin at the same time, `due`, and `rows`: for each row its `step` and the listed
        columns.

    Raises:
        ProjectionError: An episode exceeds a limit.
    """
    rows = episodes.flatten()
    ends = episodes.offsets.to_numpy().astype(np.int64)
    ends -= ends[0]
    if len(rows) and int(np.diff(ends).max()) > limits.rows_max:
        raise limits.many
    seen, kept = _Matches(), _Columns(pattern, rows)
    possible = kept.possible(ends)
    for number, (first, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        if possible[number]:
            numbers: Counter[int] = Counter()
            budget = WorkBudget(limits.lookups_max, limits.dear)
            for match in matches(pattern, kept.episode(first, end), budget):
                begins = kept.at[first + match.taken[0][1]]
                numbers[begins] += 1
                seen.add(match, numbers[begins], first)
        seen.ends.append(len(seen.numbers))
    return seen.column(rows.field(LISTED))


class _Columns:
    """The rows of all episodes, prepared for the search."""

    def __init__(self, pattern: Pattern, rows: pa.StructArray) -> None:
        self._steps = pattern.steps
        self.at: list[int] = rows.field(AT).to_numpy().tolist()
        self._fit = [
            ~misses.to_numpy(zero_copy_only=False) for misses in rows.field(MISSES).flatten()
        ]
        self._fits: list[list[bool]] = [fit.tolist() for fit in self._fit]
        names = pattern.compared
        columns = rows.field(COMPARED).flatten() if names else []
        self._compared: dict[str, list[Any]] = {
            name: column.to_pylist() for name, column in zip(names, columns, strict=True)
        }

    def possible(self, ends: np.ndarray[Any, Any]) -> Sequence[bool]:
        """Returns whether every required step of each episode has enough rows."""
        enough = np.ones(len(ends) - 1, np.bool_)
        for step, fit in zip(self._steps, self._fit, strict=True):
            if not step.absent:
                before = np.concatenate([[0], np.cumsum(fit)])
                enough &= before[ends[1:]] - before[ends[:-1]] >= step.times
        result: list[bool] = enough.tolist()
        return result

    def episode(self, first: int, end: int) -> GroupRows:
        """Returns the rows of a range of row numbers."""
        return GroupRows(
            self.at[first:end],
            [fits[first:end] for fits in self._fits],
            {name: column[first:end] for name, column in self._compared.items()},
        )
