"""The search for patterns in the rows of a group.

`projections.definition.operators.pattern` defines the meaning of a pattern. The search looks up
each row of a match (`projections.incremental.patterns.index`), and the first row that an absent
step forbids; rows in between cost nothing. The work for a group grows with the number of rows that
fit the first step, times the rows of a match, times the logarithm of the group, and not with the
number of rows within a pattern's time.

`WorkBudget` bounds the remaining cases: several comparisons of one step without any `=`, and rows
that fit steps in any order in many ways.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from projections.definition.operators.windows import micros
from projections.incremental.patterns.any_order import MatchedRows
from projections.incremental.patterns.index import Comparison, RowIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from projections.definition.operators.pattern import Pattern, Step
    from projections.incremental.patterns.index import WorkBudget


class GroupRows(NamedTuple):
    """Rows of a group in the order of their time: all, or an episode that no match exceeds.

    Attributes:
        at: Time of each row, microseconds.
        fits: For each step of the pattern, whether each row alone fits it.
        columns: The compared values of each row, by the column's name.
    """

    at: Sequence[int]
    fits: Sequence[Sequence[bool]]
    columns: Mapping[str, Sequence[Any]]


class Match(NamedTuple):
    """A match.

    Attributes:
        taken: Step and row number of each row, in order.
        due: Time until which no absent row may occur, microseconds; None if the last step is not
            absent. A row that occurs by then revokes the match.
    """

    taken: tuple[tuple[str, int], ...]
    due: int | None


def matches(pattern: Pattern, episode: GroupRows, budget: WorkBudget) -> Iterator[Match]:
    """Finds all matches in the rows of a group, in the order in which they begin.

    Args:
        pattern: The pattern.
        episode: The rows.
        budget: The limit of the work.

    Raises:
        ProjectionError: The limit of the work is exceeded.
    """
    search: _Search = (
        _AnyOrder(pattern, episode, budget)
        if pattern.any_order
        else _InOrder(pattern, episode, budget)
    )
    at, width, free = episode.at, micros(pattern.within), 0
    row, behind = pattern.resumes  # after the beginning of this match: no row begins two
    for start in search.starts:
        if start < free:
            continue
        last = at[start] + width
        match = search.beginning(start, bisect_right(at, last, start), last)
        if match is not None:
            yield match
            free = match.taken[row][1] + behind


class _Search(Protocol):
    """Finds the match that begins with a row."""

    @property
    def starts(self) -> Sequence[int]:
        """Yields the row numbers at which a match may begin, in order."""
        ...

    def beginning(self, start: int, end: int, last: int) -> Match | None:
        """Returns the match that begins at a row number.

        Args:
            start: The first row number.
            end: The first row number after the time limit.
            last: Time by which it must occur.
        """
        ...


class _Stage:
    """A step with the rows that fit it, and the rows that must not occur before it is complete."""

    def __init__(self, step: Step, number: int, episode: GroupRows, budget: WorkBudget) -> None:
        fits = episode.fits[number]
        self.step = step
        self.fitting = [place for place, fit in enumerate(fits) if fit]
        columns, conditions = episode.columns, step.conditions
        self._places = RowIndex(
            self.fitting,
            [Comparison(each.compared, columns[each.column]) for each in conditions],
            budget,
        )
        self._others = [(columns[each.other], each) for each in conditions]
        self.absent: list[_Stage] = []

    def take(self, start: int, end: int, count: int, lasts: Mapping[str, int]) -> Sequence[int]:
        """Returns the first rows for the step, or none if there are fewer than wanted.

        Args:
            start: First row number.
            end: Row number after the last one.
            count: Number of rows wanted.
            lasts: The last row of each earlier step.
        """
        others = self._others
        values = [each.against(column[lasts[each.step]]) for column, each in others]
        return self._places.take(start, end, count, values)

    def forbidden(self, start: int, rows: Sequence[int], lasts: Mapping[str, int]) -> bool:
        """Returns whether an absent row, other than the step's own, occurs before its last row."""
        end = rows[-1]
        for absent in self.absent:
            place = start
            while numbers := absent.take(place, end, 1, lasts):
                if rows[bisect_left(rows, numbers[0])] != numbers[0]:
                    return True
                place = numbers[0] + 1
        return False


class _InOrder:
    """Finds matches whose steps follow each other."""

    def __init__(self, pattern: Pattern, episode: GroupRows, budget: WorkBudget) -> None:
        self._strict, self._effort = pattern.strict, budget
        self._stages: list[_Stage] = []
        self._after: list[_Stage] = []  # the last step is absent: no row may occur after the others
        for number, step in enumerate(pattern.steps):
            stage = _Stage(step, number, episode, budget)
            if step.absent:
                self._after.append(stage)
            else:
                stage.absent, self._after = self._after, []
                self._stages.append(stage)

    @property
    def starts(self) -> Sequence[int]:
        return self._stages[0].fitting

    def beginning(self, start: int, end: int, last: int) -> Match | None:
        steps: list[tuple[str, Sequence[int]]] = []
        lasts: dict[str, int] = {}
        place = start
        for stage in self._stages:
            name, times = stage.step.name, stage.step.times
            stop = min(end, place + times) if self._strict else end
            rows = stage.take(place, stop, times, lasts)
            if not rows or stage.forbidden(place, rows, lasts):
                return None
            steps.append((name, rows))
            lasts[name] = rows[-1]
            place = rows[-1] + 1
        if any(stage.take(place, end, 1, lasts) for stage in self._after):
            return None
        taken = tuple((name, row) for name, rows in steps for row in rows)
        self._effort.spend(len(taken))
        return Match(taken, last if self._after else None)


class _AnyOrder:
    """Finds matches whose steps occur in any order.

    A row that cannot be taken now cannot be taken later: rows that fit the same steps need not be
    considered.
    """

    def __init__(self, pattern: Pattern, episode: GroupRows, budget: WorkBudget) -> None:
        self._strict, self._effort = pattern.strict, budget
        self._names = [step.name for step in pattern.steps]
        self._times = [step.times for step in pattern.steps]
        self._fits = list(zip(*episode.fits, strict=True))
        self._fitting = [[n for n, fit in enumerate(fits) if fit] for fits in episode.fits]
        self._alike: dict[tuple[bool, ...], list[int]] = {}
        for place, fits in enumerate(self._fits):
            if any(fits):
                self._alike.setdefault(fits, []).append(place)

    @property
    def starts(self) -> Sequence[int]:
        return sorted(place for places in self._alike.values() for place in places)

    def beginning(self, start: int, end: int, last: int) -> Match | None:  # noqa: ARG002
        total, rows = sum(self._times), MatchedRows(self._times)
        self._effort.spend()
        if self._strict:
            end = min(end, start + total)
        if end - start < total or not self._enough(start, end):
            return None
        taken = self._each(rows, start, end) if self._strict else self._useful(rows, start, end)
        if not taken:
            return None
        return Match(tuple((self._names[step], place) for place, step in rows.given), None)

    def _enough(self, start: int, end: int) -> bool:
        """Returns whether enough rows fit each step, regardless of the other steps."""
        for places, times in zip(self._fitting, self._times, strict=True):
            number = bisect_left(places, start) + times
            if number > len(places) or places[number - 1] >= end:
                return False
        return True

    def _each(self, rows: MatchedRows, start: int, end: int) -> bool:
        return all(self._takes(rows, place, self._fits[place]) for place in range(start, end))

    def _useful(self, rows: MatchedRows, start: int, end: int) -> bool:
        """Takes rows until all steps are complete."""
        waiting = []
        for fits, places in self._alike.items():
            number = bisect_left(places, start)
            if number < len(places):
                waiting.append((places[number], number, fits))
        heapify(waiting)
        while waiting and waiting[0][0] < end:
            place, number, fits = waiting[0]
            useful, places = self._takes(rows, place, fits), self._alike[fits]
            if useful and rows.full:
                return True
            if useful and number + 1 < len(places):
                heapreplace(waiting, (places[number + 1], number + 1, fits))
            else:
                heappop(waiting)
        return False

    def _takes(self, rows: MatchedRows, place: int, fits: Sequence[bool]) -> bool:
        before = rows.tried
        useful = rows.takes(place, fits)
        self._effort.spend(rows.tried - before)
        return useful
