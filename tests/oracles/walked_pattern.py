"""Matches of a pattern as going from each row to all behind it finds them: slow and plain."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from projections.definition.operators.windows import micros
from projections.incremental.patterns.any_order import MatchedRows
from projections.incremental.patterns.index import COMPARED
from projections.incremental.patterns.search import GroupRows, Match

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from projections.definition.operators.pattern import Beside, Pattern, Step


class Event(NamedTuple):
    """A row: its time, which steps it fits, and what is compared of it."""

    at: int
    fits: Sequence[bool]
    row: Mapping[str, Any]


def episode(pattern: Pattern, given_rows: Sequence[Event]) -> GroupRows:
    fits = [[event.fits[number] for event in given_rows] for number in range(len(pattern.steps))]
    columns = {name: [event.row[name] for event in given_rows] for name in pattern.compared}
    return GroupRows([event.at for event in given_rows], fits, columns)


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
        return holds(beside.compared, one, _reckoned(beside, two))

    def _advance(self) -> None:
        self._count, self._forbidden = 0, []
        self._next += 1
        while self.waits and self._steps[self._next].absent:
            self._forbidden.append(self._next)
            self._next += 1


def holds(compared: str, one: Any, two: Any) -> bool:
    """Whether a comparison holds of two values."""
    if one is None or two is None:
        return False
    if one != one or two != two:  # noqa: PLR0124  # NaN, which Python does not compare with decimals
        return compared == "<>"
    return COMPARED[compared](one, two)


def _reckoned(beside: Beside, value: Any) -> Any:
    """What a row is compared with: of floating-point numbers as they are, else without rounding."""
    if value is None or not beside.reckons:
        return value
    if isinstance(value, float):
        return value * float(beside.factor) + float(beside.offset)
    return Fraction(value) * Fraction(beside.factor) + Fraction(beside.offset)


def skips(steps: Sequence[Step], *, any_order: bool = False) -> list[str]:
    """All that may be skipped after a match."""
    said = ["past last row", "to next row"]
    if any_order:
        return said
    for number, step in enumerate(steps):
        if not step.absent and number:
            said.append(f"to first {step.name}")
        if not step.absent and (number or step.times > 1):
            said.append(f"to last {step.name}")
    return said


def resumed(pattern: Pattern, match: Match) -> int:
    """Where the next match may begin."""
    places = [place for _, place in match.taken]
    if pattern.skip == "past last row":
        return max(places) + 1
    if pattern.skip == "to next row":
        return min(places) + 1
    _, end, step = pattern.skip.split()
    own = [place for name, place in match.taken if name == step]
    return min(own) if end == "first" else max(own)


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
        place = place + 1 if match is None else resumed(pattern, match)
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
    taken = MatchedRows([step.times for step in pattern.steps])
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
