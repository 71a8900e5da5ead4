"""Compares the lookups, counters and leaderboards that rows require with the cache's.

A first difference is only a suspicion: rows may change while both are read.

A million rows fit in memory: counters are stored by name; for the entry of a row in a lookup or
leaderboard, only a hash of the name and the score, by row number.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from projections.definition.cache_options import ROWS
from projections.errors import UnholdableValueError
from projections.stores.valkey.row import COUNTER, LEADERBOARD, LOOKUP, CacheForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from projections.planning.view_plan import ViewPlan
    from projections.stores.valkey.row import DeclaredIndex

MISSING: Final = "missing"
EXTRA: Final = "extra"
DIFFERENT: Final = "different"
FOREIGN: Final = "of another type"

WORDS: Final = {LOOKUP: "lookup", COUNTER: "counter", LEADERBOARD: "leaderboard"}
"""Names of the kinds, in reports and in keys."""


@dataclass(frozen=True, slots=True)
class CachedIndex:
    """A lookup, counter or leaderboard in the cache.

    Attributes:
        kind: Lookup, counter or leaderboard.
        name: The name that applications use.
        members: Keys of its rows, with scores: 0 in a lookup. Can be read once, and may repeat a
            member.
        counts: The text values of a counter's rows and sum; None for a missing one.
        foreign: Whether the key has another type.
    """

    kind: str
    name: str
    members: Iterable[tuple[str, float]] = ()
    counts: tuple[str | None, str | None] = (None, None)
    foreign: bool = False


class Suspect(NamedTuple):
    """A structure that seems to differ.

    Attributes:
        kind: Lookup, counter or leaderboard.
        name: The name that applications use.
        key: The missing or surplus row; empty for a counter or a foreign key.
        what: The suspected difference.
    """

    kind: str
    name: str
    key: str
    what: str

    def __str__(self) -> str:
        difference = f"row {self.key} {self.what}" if self.key else self.what
        return f"{WORDS[self.kind]} {self.name} ({difference})"


class ExpectedIndexes:
    """The structures that the rows of one view require.

    All rows are added first; then everything is compared, once. Columns that only the view still
    has are unknown here, and rows without a key cannot be distinguished, so what depends on them is
    not compared.
    """

    def __init__(self, plan: ViewPlan) -> None:
        self._form = CacheForm(plan)
        self._members: list[_Members] = []
        self._counters: list[DeclaredIndex] = []
        self._counts: dict[str, tuple[int, int | None]] = {}
        self._unknown: list[DeclaredIndex] = []
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
        """Adds a row as a document; rows are numbered in this order."""
        for one in self._members:
            one.add(self._part(one.link, fields))
        for name, amount in self.counted(fields):
            self._counts[name] = added(self._counts.get(name), amount)

    def compare(
        self, row_numbers: Mapping[str, int], entries: Iterable[CachedIndex]
    ) -> Iterator[Suspect | None]:
        """Compares with all entries of the cache; yields differences, and None periodically.

        Args:
            row_numbers: The row numbers, by key.
            entries: All entries of the cache, each once.
        """
        for entry in entries:
            yield None
            if self._unsure(entry):
                continue
            if entry.foreign:
                yield Suspect(entry.kind, entry.name, "", FOREIGN)
            elif entry.kind == COUNTER:
                counts = self._counts.pop(entry.name, None)
                if counts is None:
                    yield Suspect(COUNTER, entry.name, "", EXTRA)
                elif entry.counts != texts(counts):
                    yield Suspect(COUNTER, entry.name, "", DIFFERENT)
            else:
                yield from self._members_of(entry, row_numbers)
        for name in self._counts:
            yield Suspect(COUNTER, name, "", MISSING)

    def lacking(self, row_numbers: Mapping[str, int]) -> Iterator[str]:
        """Yields, after a comparison, the keys of rows with missing entries."""
        members = [one for one in self._members if one.missing]
        for key, place in row_numbers.items() if members else ():
            if any(one.lacks(place) for one in members):
                yield key

    def lacked(self, place: int, key: str, fields: Mapping[str, Any]) -> Iterator[Suspect]:
        """Yields where a row is missing.

        Args:
            place: Number of the row.
            key: Key of the row.
            fields: Its present values.
        """
        for one in self._members:
            part = self._part(one.link, fields) if one.lacks(place) else None
            if part is not None:
                yield Suspect(one.link.kind, part[0], key, MISSING)

    def parts(self, fields: Mapping[str, Any]) -> dict[tuple[str, str], float]:
        """Yields the lookups and leaderboards of a row, with its scores."""
        parts = {}
        for one in self._members:
            part = self._part(one.link, fields)
            if part is not None:
                parts[one.link.kind, part[0]] = float(part[1] or 0)
        return parts

    def counted(self, fields: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
        """Yields the counters of a row, and what it adds; None for a count of rows."""
        for link in self._counters:
            part = self._part(link, fields)
            if part is not None:
                yield part[0], None if link.column == ROWS else int(part[1])

    def declared(self, suspect: Suspect) -> bool:
        """Returns whether a structure of that name is declared."""
        fitting = (link for link in self._form.declared if link.kind == suspect.kind)
        return any(link.pattern.fits(suspect.name) for link in fitting)

    def _part(self, link: DeclaredIndex, fields: Mapping[str, Any]) -> tuple[str, str] | None:
        try:
            return self._form.part(link, fields)
        except (UnholdableValueError, ValueError, ArithmeticError):
            return None  # the row is quarantined, and reported as missing

    def _unsure(self, entry: CachedIndex) -> bool:
        return any(
            link.kind == entry.kind and link.pattern.fits(entry.name) for link in self._unknown
        )

    def _members_of(self, entry: CachedIndex, row_numbers: Mapping[str, int]) -> Iterator[Suspect]:
        mark, extra = _mark(entry.name), set()
        candidates = [one for one in self._members if one.link.kind == entry.kind]
        for key, score in entry.members:
            place = row_numbers.get(key)
            home = next((one for one in candidates if one.has(place, mark)), None)
            if place is None or home is None:
                if key not in extra:
                    extra.add(key)
                    yield Suspect(entry.kind, entry.name, key, EXTRA)
            elif home.meet(place) and home.score(place) != score:
                yield Suspect(entry.kind, entry.name, key, DIFFERENT)


def added(counts: tuple[int, int | None] | None, amount: int | None) -> tuple[int, int | None]:
    """Returns a counter with one more row."""
    rows, total = counts or (0, None)
    return rows + 1, None if amount is None else (total or 0) + amount


def texts(counts: tuple[int, int | None]) -> tuple[str | None, str | None]:
    """Returns a counter as the cache stores it."""
    rows, total = counts
    return str(rows), None if total is None else str(total)


class _Members:
    """The entry of each row in one lookup or leaderboard, at the index of the row's number."""

    def __init__(self, link: DeclaredIndex) -> None:
        self.link = link
        self.missing = 0
        self._marks = array("q")  # hash of the name; 0 for a row without an entry
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
        """Records that the cache has a row; returns whether it is the first time."""
        first = self._unmet[place]
        self._unmet[place] = 0
        self.missing -= first
        return bool(first)


def _mark(name: str) -> int:
    return hash(name) or 1  # 64 bits, stable within this process
