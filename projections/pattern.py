"""Patterns: rows of one group that follow each other in time, as a view with a row for each match.

A pattern says what comes first, what after it, and within which time. It is looked for in the rows
of a group in the order of their own time, not of their arrival; so a match is a row like any other,
that appears when the last of its rows comes, late ones included, and goes when one of them does.

Which rows a match has (what complex event processing calls selection): from each row that fits the
first step, each further step takes the first row that fits it, and what lies between is passed over
(`strict`: nothing lies between). So a row begins one match at most. Of an absent step no row may be
there between its neighbours, or, if it is the last, until the time is up; where a row fits the step
that is waited for as well, it is taken for that.

Steps may be there in any order: a match begins with a row that fits any of them, and takes each row
that one still waits for; see `projections.any_order`.

Rows of one time are in the order of what steps they fit and of their values.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from projections.any_order import Rows
from projections.errors import DeclarationError
from projections.event_window import duration, micros

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_BESIDE: Final = re.compile(r"\s*(\w+)\s*(=|<>|<=|>=|<|>)\s*(\w+)\.(\w+)\s*")
_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TIMES_MAX: Final = 1_000


class Beside(NamedTuple):
    """A condition on a row and on one that was matched before.

    Attributes:
        column: Of the row.
        compared: How they are compared; NULL is neither equal nor anything else.
        step: The step that took the other row; its last, if it took several.
        other: Column of that row.
    """

    column: str
    compared: str
    step: str
    other: str

    def holds(self, row: Mapping[str, Any], matched: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tells whether it is so."""
        one, two = row[self.column], matched[self.step][self.other]
        return one is not None and two is not None and _COMPARED[self.compared](one, two)


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a pattern.

    Attributes:
        name: What it is called.
        where: A condition of Spark SQL on a row.
        times: How many rows it takes, one after the other.
        absent: Whether there must be no such row.
        beside: Conditions on a row and one that an earlier step took, its last if it took several:
            `country <> home.country`. NULL is neither equal nor anything else.
    """

    name: str
    where: str
    times: int = 1
    absent: bool = False
    beside: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise DeclarationError(
                f"{self.name!r} cannot be the name of a step", hint="a, b2, declined"
            )
        if not 1 <= self.times <= TIMES_MAX or (self.absent and self.times > 1):
            raise DeclarationError(
                f"step {self.name} cannot be there {self.times} times",
                detail="it is absent" if self.absent else f"1 to {TIMES_MAX}",
            )
        for text in self.beside:
            if not _BESIDE.fullmatch(text):
                raise DeclarationError(
                    f"step {self.name} has no such comparison with an earlier step",
                    detail=text,
                    hint="a column, = <> < <= > or >=, a column of a step: amount > first.amount",
                )

    @property
    def conditions(self) -> tuple[Beside, ...]:
        """What `beside` says."""
        found = map(_BESIDE.fullmatch, self.beside)
        return tuple(Beside(*each.groups()) for each in found if each is not None)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What is looked for.

    Attributes:
        steps: Its parts, in order.
        within: From the first row of a match to its last, and to the end of what is absent.
        strict: Whether nothing else of the group lies between rows of a match.
        overlapping: Whether the next match may begin with the next row, and not only behind the
            last of this one.
        any_order: Whether the steps may be there in any order.
    """

    steps: Sequence[Step]
    within: str
    strict: bool = False
    overlapping: bool = False
    any_order: bool = False

    def __post_init__(self) -> None:
        duration(self.within)
        _require_matchable(self.steps, strict=self.strict)
        if self.any_order:
            _require_apart(self.steps)

    @property
    def compared(self) -> tuple[str, ...]:
        """Columns that steps compare with those of other rows."""
        pairs = [(each.column, each.other) for step in self.steps for each in step.conditions]
        return tuple(dict.fromkeys(name for pair in pairs for name in pair))


class Event(NamedTuple):
    """A row of a group.

    Attributes:
        at: Its time, microseconds.
        fits: Of each step, whether the row alone fits it.
        row: Those of its columns that are compared.
    """

    at: int
    fits: Sequence[bool]
    row: Mapping[str, Any]


class Match(NamedTuple):
    """What was found.

    Attributes:
        taken: Step and place of each row, in order.
        due: Until when nothing absent may come, microseconds; None if the last step is not absent.
            What comes until then takes the match back.
    """

    taken: tuple[tuple[str, int], ...]
    due: int | None


def matches(pattern: Pattern, events: Sequence[Event]) -> list[Match]:
    """Finds all matches in the rows of a group.

    Args:
        pattern: What is looked for.
        events: The rows, in order of their time.
    """
    parts = [_Part(step, step.conditions) for step in pattern.steps]
    width = micros(pattern.within)
    found: list[Match] = []
    place = 0
    while place < len(events):
        end = events[place].at + width
        match = (
            _in_any_order(pattern, events, place, end)
            if pattern.any_order
            else _from(pattern, parts, events, place, end)
        )
        if match is not None:
            found.append(match)
        place = place + 1 if match is None or pattern.overlapping else match.taken[-1][1] + 1
    return found


class _Part(NamedTuple):
    step: Step
    conditions: tuple[Beside, ...]


def _from(
    pattern: Pattern, parts: Sequence[_Part], events: Sequence[Event], start: int, end: int
) -> Match | None:
    """The match that begins with a row and ends in time, if one does."""
    run = _Run(parts)
    if not run.takes(events[start], start):
        return None
    for place in range(start + 1, len(events)):
        event = events[place]
        if run.complete or event.at > end:
            break
        if run.takes(event, place):
            continue
        if run.refuses(event) or (pattern.strict and run.waits):
            return None
    if run.waits:
        return None
    return Match(tuple(run.taken), end if parts[-1].step.absent else None)


def _in_any_order(pattern: Pattern, events: Sequence[Event], start: int, end: int) -> Match | None:
    """The match that begins with a row that fits any step, and ends in time, if one does."""
    rows = Rows([step.times for step in pattern.steps])
    for place in range(start, len(events)):
        event = events[place]
        if event.at > end:
            return None
        if not rows.takes(place, event.fits):
            if place == start or pattern.strict:
                return None
        elif rows.full:
            names = [step.name for step in pattern.steps]
            return Match(tuple((names[step], place) for place, step in rows.given), None)
    return None


class _Run:
    """A match that is being made."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self._next = self._count = 0
        self._matched: dict[str, Mapping[str, Any]] = {}
        self._forbidden: list[int] = []
        self.taken: list[tuple[str, int]] = []

    @property
    def waits(self) -> bool:
        """Whether a row is still to come."""
        return self._next < len(self._parts)

    @property
    def complete(self) -> bool:
        """Whether nothing that comes makes a difference."""
        return not self.waits and not self._forbidden

    def takes(self, event: Event, place: int) -> bool:
        """Takes a row, if it is the one that is waited for."""
        if not self.waits or not self._fits(self._next, event):
            return False
        step = self._parts[self._next].step
        self.taken.append((step.name, place))
        self._matched[step.name] = event.row
        self._count += 1
        if self._count == step.times:
            self._advance()
        return True

    def refuses(self, event: Event) -> bool:
        """Tells whether a row is one that must not be there."""
        return any(self._fits(number, event) for number in self._forbidden)

    def _fits(self, number: int, event: Event) -> bool:
        return event.fits[number] and all(
            each.holds(event.row, self._matched) for each in self._parts[number].conditions
        )

    def _advance(self) -> None:
        self._count, self._forbidden = 0, []
        self._next += 1
        while self.waits and self._parts[self._next].step.absent:
            self._forbidden.append(self._next)
            self._next += 1


def _require_matchable(steps: Sequence[Step], *, strict: bool) -> None:
    names = [step.name for step in steps]
    if not steps or steps[0].absent:
        raise DeclarationError(
            "a pattern begins with a row that is there", detail=", ".join(names) or "no step"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DeclarationError(f"two steps of a pattern are called {twice[0]}")
    if strict and any(step.absent for step in steps[1:-1]):
        raise DeclarationError(
            "between rows that follow each other directly nothing can be absent",
            hint="leave strict out, or the step",
        )
    for number, step in enumerate(steps):
        before = {each.name for each in steps[:number] if not each.absent}
        for condition in step.conditions:
            if condition.step not in before:
                raise DeclarationError(
                    f"step {step.name} is compared with {condition.step}, before it has a row",
                    hint=f"steps that have one by then: {', '.join(sorted(before)) or 'none'}",
                )


def _require_apart(steps: Sequence[Step]) -> None:
    """Refuses steps that mean something in an order only."""
    for step in steps:
        if step.absent or step.beside:
            raise DeclarationError(
                f"step {step.name} has no place among steps in any order",
                detail="it is absent" if step.absent else "it is compared with an earlier step",
                hint="leave any_order out, or the step's absent or beside",
            )


@dataclass(frozen=True, slots=True)
class PatternQuery:
    """A pattern and where it is looked for: what makes a view.

    Attributes:
        pattern: What is looked for.
        by: Columns that rows of a match have in common.
        time: The column that has a row's time.
        keep: Columns that a match shows of its rows.
        where: A condition of Spark SQL on the rows that count; empty for all.
    """

    pattern: Pattern
    by: tuple[str, ...]
    time: str
    keep: tuple[str, ...]
    where: str = ""
