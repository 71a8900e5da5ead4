"""Beside: the lookups, counters and leaderboards that rows come to, compared with the cache's.

A million rows fit in memory: counters are kept by name, and of the part that a row has in a lookup
or on a leaderboard only a hash of the name, in the row's place, with the score.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from projections.cache_options import ROWS
from projections.cache_row import COUNTER, LEADERBOARD, LOOKUP, CacheForm
from projections.errors import UnholdableValueError
from projections.view_report import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from projections.cache_row import Link
    from projections.plan import ViewPlan

MISSING: Final = "missing"
EXTRA: Final = "extra"
DIFFERENT: Final = "different"

WORDS: Final = {LOOKUP: "lookup", COUNTER: "counter", LEADERBOARD: "leaderboard"}
"""What each kind is called, in reports and in the names of its keys."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One lookup, counter or leaderboard that the cache has.

    Attributes:
        kind: Which of them.
        name: As applications name it.
        members: Keys of the rows that it names, with their scores: 0 in a lookup. May be read once,
            and may show a member twice.
        counts: What a counter says: rows and sum, as they are written; None of what it lacks.
        foreign: Whether something else lies under its name.
    """

    kind: str
    name: str
    members: Iterable[tuple[str, float]] = ()
    counts: tuple[str | None, str | None] = (None, None)
    foreign: bool = False


@dataclass(slots=True)
class Differences:
    """What a comparison found.

    Attributes:
        missing: Rows that are not where they belong, and counters that are not there.
        extra: Rows that are where they do not belong, and counters that should not be there.
        different: Counters and scores with another number.
        examples: A few of each kind, in words.
        lacking: Keys of a few of the missing rows; for `Beside.show_missing`.
    """

    missing: int = 0
    extra: int = 0
    different: int = 0
    examples: list[str] = field(default_factory=list)
    lacking: set[str] = field(default_factory=set)
    _shown: dict[str, int] = field(default_factory=dict)

    def note(self, what: str, kind: str, name: str, said: str) -> None:
        """Counts one of them, and shows it if it is among the first of its kind."""
        if what == MISSING:
            self.missing += 1
        elif what == EXTRA:
            self.extra += 1
        else:
            self.different += 1
        self.show(kind, name, said)

    def show(self, kind: str, name: str, said: str) -> None:
        """Shows one of them if it is among the first of its kind."""
        self._shown[kind] = self._shown.get(kind, 0) + 1
        if self._shown[kind] <= EXAMPLES:
            self.examples.append(f"{WORDS[kind]} {name} ({said})")


class Beside:
    """What the rows of one view come to beside them.

    Rows are added first; then all is compared, once. A column that only the view still has is not
    known here, and rows without a key cannot be told apart: what depends on them is not compared.

    Args:
        plan: The view.
    """

    def __init__(self, plan: ViewPlan) -> None:
        self._form = CacheForm(plan)
        self._members: list[_Members] = []
        self._counters: list[Link] = []
        self._counts: dict[str, tuple[int, int | None]] = {}
        self._unknown: list[Link] = []
        for link in self._form.declared:
            if plan.absent & {*link.pattern.columns, link.column}:
                self._unknown.append(link)
            elif link.kind == COUNTER:
                self._counters.append(link)
            elif plan.append_only:
                self._unknown.append(link)
            else:
                self._members.append(_Members(link))

    def add(self, fields: Mapping[str, Any]) -> None:
        """Adds a row in its document form; its place is the number of those before it."""
        for one in self._members:
            one.add(self._part(one.link, fields))
        for link in self._counters:
            part = self._part(link, fields)
            if part is not None:
                name, amount = part
                rows, total = self._counts.get(name, (0, 0))
                summed = None if link.column == ROWS else (total or 0) + int(amount)
                self._counts[name] = rows + 1, summed

    def compare(self, places: Mapping[str, int], entries: Iterable[Entry]) -> Differences:
        """Compares with all that the cache has.

        Args:
            places: Of the rows, by their keys.
            entries: What the cache has, each entry once.
        """
        found = Differences()
        for entry in entries:
            if self._unsure(entry):
                continue
            if entry.foreign:
                found.note(EXTRA, entry.kind, entry.name, "of another type")
            elif entry.kind == COUNTER:
                self._compare_counter(entry, found)
            else:
                self._compare_members(entry, places, found)
        for name in self._counts:
            found.note(MISSING, COUNTER, name, MISSING)
        for one in self._members:
            found.missing += one.missing
            if one.missing:
                lacking = (key for key, place in places.items() if one.lacks(place))
                found.lacking.update(key for key, _ in zip(lacking, range(EXAMPLES), strict=False))
        return found

    def show_missing(
        self, found: Differences, place: int, key: str, fields: Mapping[str, Any]
    ) -> None:
        """Shows after a comparison where a row is missing."""
        for one in self._members:
            part = self._part(one.link, fields) if one.lacks(place) else None
            if part is not None:
                found.show(one.link.kind, part[0], _of_row(key, MISSING))

    def _part(self, link: Link, fields: Mapping[str, Any]) -> tuple[str, str] | None:
        try:
            return self._form.part(link, fields)
        except (UnholdableValueError, ValueError, ArithmeticError):
            return None  # the row waits in quarantine, and is told as missing

    def _unsure(self, entry: Entry) -> bool:
        return any(
            link.kind == entry.kind and link.pattern.fits(entry.name) for link in self._unknown
        )

    def _compare_counter(self, entry: Entry, found: Differences) -> None:
        counts = self._counts.pop(entry.name, None)
        if counts is None:
            found.note(EXTRA, COUNTER, entry.name, EXTRA)
        elif entry.counts != tuple(None if count is None else str(count) for count in counts):
            found.note(DIFFERENT, COUNTER, entry.name, DIFFERENT)

    def _compare_members(self, entry: Entry, places: Mapping[str, int], found: Differences) -> None:
        mark, extra = _mark(entry.name), set()
        candidates = [one for one in self._members if one.link.kind == entry.kind]
        for key, score in entry.members:
            place = places.get(key)
            home = next((one for one in candidates if one.has(place, mark)), None)
            if place is None or home is None:
                if key not in extra:
                    extra.add(key)
                    found.note(EXTRA, entry.kind, entry.name, _of_row(key, EXTRA))
            elif home.meet(place) and home.score(place) != score:
                found.note(DIFFERENT, entry.kind, entry.name, _of_row(key, DIFFERENT))


class _Members:
    """The part of each row in one lookup, or on one leaderboard, in the row's place."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.missing = 0
        self._marks = array("q")  # of the names; 0 of a row that has no part
        self._scores = array("d") if link.kind == LEADERBOARD else None
        self._unmet = bytearray()

    def add(self, part: tuple[str, str] | None) -> None:
        name, score = part or (None, "")
        self._marks.append(0 if name is None else _mark(name))
        if self._scores is not None:
            self._scores.append(float(score or 0))
        self._unmet.append(name is not None)
        self.missing += name is not None

    def has(self, place: int | None, mark: int) -> bool:
        return place is not None and self._marks[place] == mark

    def lacks(self, place: int) -> bool:
        return bool(self._unmet[place])

    def score(self, place: int) -> float:
        return 0.0 if self._scores is None else self._scores[place]

    def meet(self, place: int) -> bool:
        """Notes that the cache has a row; False if that was known."""
        first = self._unmet[place]
        self._unmet[place] = 0
        self.missing -= first
        return bool(first)


def _mark(name: str) -> int:
    return hash(name) or 1  # 64 bits, which hold within this process


def _of_row(key: str, what: str) -> str:
    return f"row {key} {what}"
