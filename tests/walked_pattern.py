"""Matches of a pattern as going from each row to all behind it finds them: slow and plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from projections.any_order import Rows
from projections.event_window import micros
from projections.pattern_index import COMPARED
from projections.pattern_search import Episode, Match

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from projections.pattern import Beside, Pattern, Step


class Event(NamedTuple):
    """A row: its time, which steps it fits, and what is compared of it."""

    at: int
    fits: Sequence[bool]
    row: Mapping[str, Any]


def episode(pattern: Pattern, given_rows: Sequence[Event]) -> Episode:
    fits = [[event.fits[number] for event in given_rows] for number in range(len(pattern.steps))]
    columns = {name: [event.row[name] for event in given_rows] for name in pattern.compared}
    return Episode([event.at for event in given_rows], fits, columns)


class Walk:
    """A match that is being made by going from row to row."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._next = self._count = 0
        self._matched: dict[str, Mapping[str, Any]] = {}
        self._forbidden: list[int] = []
        self.taken: list[tuple[str, int]] = []

    @property
    def waits(self) -> bool:
        return self._next < len(self._steps)

    def takes(self, event: Event, place: int) -> bool:
        if not self.waits or not self._fits(self._next, event):
            return False
        step = self._steps[self._next]
        self.taken.append((step.name, place))
        self._matched[step.name] = event.row
        self._count += 1
        if self._count == step.times:
            self._advance()
        return True

    def refuses(self, event: Event) -> bool:
        return any(self._fits(number, event) for number in self._forbidden)

    def _fits(self, number: int, event: Event) -> bool:
        conditions = self._steps[number].conditions
        return event.fits[number] and all(self._holds(each, event.row) for each in conditions)

    def _holds(self, beside: Beside, row: Mapping[str, Any]) -> bool:
        one, two = row[beside.column], self._matched[beside.step][beside.other]
        return one is not None and two is not None and COMPARED[beside.compared](one, two)

    def _advance(self) -> None:
        self._count, self._forbidden = 0, []
        self._next += 1
        while self.waits and self._steps[self._next].absent:
            self._forbidden.append(self._next)
            self._next += 1


def walked(pattern: Pattern, given_rows: Sequence[Event]) -> list[Match]:
    """Matches found by going from each row to all that are within its time: what is looked up is
    to be the same.
    """
    found: list[Match] = []
    place = 0
    while place < len(given_rows):
        walk = _walked_unordered if pattern.any_order else _walked_ordered
        match = walk(pattern, given_rows, place, given_rows[place].at + micros(pattern.within))
        if match is not None:
            found.append(match)
        place = place + 1 if match is None or pattern.overlapping else match.taken[-1][1] + 1
    return found


def _walked_ordered(
    pattern: Pattern, given_rows: Sequence[Event], start: int, end: int
) -> Match | None:
    walk = Walk(pattern.steps)
    if not walk.takes(given_rows[start], start):
        return None
    for place in range(start + 1, len(given_rows)):
        event = given_rows[place]
        if event.at > end:
            break
        if walk.takes(event, place):
            continue
        if walk.refuses(event) or (pattern.strict and walk.waits):
            return None
    if walk.waits:
        return None
    return Match(tuple(walk.taken), end if pattern.steps[-1].absent else None)


def _walked_unordered(
    pattern: Pattern, given_rows: Sequence[Event], start: int, end: int
) -> Match | None:
    taken = Rows([step.times for step in pattern.steps])
    for place in range(start, len(given_rows)):
        event = given_rows[place]
        if event.at > end:
            return None
        if not taken.takes(place, event.fits):
            if place == start or pattern.strict:
                return None
        elif taken.full:
            names = [step.name for step in pattern.steps]
            return Match(tuple((names[step], place) for place, step in taken.given), None)
    return None
