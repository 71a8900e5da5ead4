"""Finds the next rows for a step of a pattern by look-up, not by a scan.

The comparison decides which index the rows that fit a step have:

- `=`: row numbers by value, several columns as one;
- `<>`: for each row the next one with another value;
- `<` `<=` `>` `>=`: a tree of least and of greatest values, in which the next row is found by going
  up and down once.

All `=` comparisons are applied first, the others to the remaining rows. If more than one is left,
they alternate: each returns the first row number from which it may hold, until all agree. That is
exact, but takes an unknown number of iterations; `Effort` bounds it.

A comparison of two values is Python's; NULL satisfies none, and NaN only `<>`.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from projections.errors import ProjectionError

COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_BEST: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<": min,
    "<=": min,
    ">": max,
    ">=": max,
}
_ORDERED: Final = (int, float, Decimal, str, bytes, date)
"""Types whose values are in one order, NaN apart."""


class Effort:
    """What may be spent on the rows of one group that lie together.

    Args:
        most: Most look-ups and rows.
        refusal: Raised beyond that.
    """

    def __init__(self, most: int, refusal: ProjectionError) -> None:
        self._most = most
        self._refusal = refusal
        self.spent = 0

    def spend(self, count: int = 1) -> None:
        """Notes what was done."""
        self.spent += count
        if self.spent > self._most:
            raise self._refusal


class Comparison(NamedTuple):
    """A comparison of rows with a value that is known when they are looked for.

    Attributes:
        compared: `=`, `<>`, `<`, `<=`, `>` or `>=`.
        column: The rows' own values, by row number.
    """

    compared: str
    column: Sequence[Any]


class RowIndex:
    """Places of rows, in order, of which those are found that comparisons hold of.

    Args:
        places: The row numbers.
        comparisons: The comparisons.
        effort: The limit of the work.
    """

    def __init__(
        self, places: Sequence[int], comparisons: Sequence[Comparison], effort: Effort
    ) -> None:
        self._effort = effort
        self._compared = [each.compared for each in comparisons]
        kept = [
            place
            for place in places
            if all(_may_hold(each.compared, each.column[place]) for each in comparisons)
        ]
        same = [n for n, each in enumerate(comparisons) if _hashable(each, kept)]
        others = [n for n in range(len(comparisons)) if n not in same]
        self._same, self._others = same, others
        rest = [comparisons[n] for n in others]
        self._groups = {
            key: _Among(found, rest)
            for key, found in _grouped(kept, [comparisons[n].column for n in same]).items()
        }
        self._every = self._groups.get(())

    def first(self, start: int, end: int, values: Sequence[Any]) -> int | None:
        """The first place between two, the end excluded; see `take`."""
        found = self.take(start, end, 1, values)
        return found[0] if found else None

    def take(self, start: int, end: int, count: int, values: Sequence[Any]) -> Sequence[int]:
        """Returns the first places between two, or none if there are fewer than wanted.

        Args:
            start: First row number.
            end: Row number after the last one.
            count: How many.
            values: The value for each comparison.

        Raises:
            ProjectionError: More was spent than may be.
        """
        self._effort.spend()
        among = self._among(values) if self._compared else self._every
        if among is None:
            return ()
        places = among.places
        number = bisect_left(places, start)
        last = number + count
        if last > len(places) or places[last - 1] >= end:
            return ()
        if not self._others:
            return places[number:last]
        stop = bisect_left(places, end)
        given, taken = [values[n] for n in self._others], []
        for _ in range(count):
            number = among.next(number, stop, given, self._effort)
            if number >= stop:
                return ()
            taken.append(places[number])
            number += 1
        return taken

    def _among(self, values: Sequence[Any]) -> _Among | None:
        """The rows that are equal where they have to be, if there are any that fit at all."""
        for compared, value in zip(self._compared, values, strict=True):
            if not _may_hold(compared, value):
                return None
        if not self._same:
            return self._every
        key = tuple(values[n] for n in self._same)
        return self._groups.get(key) if _has_hash(key) else None


class _Finder(Protocol):
    """Finds the next row of some, by its number among them, that one comparison holds of."""

    def next(self, number: int, stop: int, value: Any, effort: Effort) -> int:
        """Returns the first such number from the given one on; none before the stop: any behind."""
        ...


class _Among:
    """Rows that are told apart by comparisons other than `=`."""

    def __init__(self, places: list[int], comparisons: Sequence[Comparison]) -> None:
        self.places = places
        self._comparisons = comparisons
        self._made: list[_Finder] | None = None

    def next(self, number: int, stop: int, values: Sequence[Any], effort: Effort) -> int:
        """Returns the number of the first row that all comparisons hold of; see `_Finder.next`."""
        finders, agreed = self._made or self._make(), 0
        if len(finders) == 1 and number < stop:
            effort.spend()
            return finders[0].next(number, stop, values[0], effort)
        while number < stop and agreed < len(finders):
            for finder, value in zip(finders, values, strict=True):
                effort.spend()
                found = finder.next(number, stop, value, effort)
                agreed = agreed + 1 if found == number else 1
                number = found
                if number >= stop or agreed == len(finders):
                    break
        return number

    def _make(self) -> list[_Finder]:
        """Makes the indexes when they are first asked for: of most groups no one asks."""
        self._made = [
            _finder(each.compared, [each.column[place] for place in self.places])
            for each in self._comparisons
        ]
        return self._made


class _Different:
    """Finds values that differ from one."""

    def __init__(self, column: Sequence[Any]) -> None:
        self._column = column
        self._after = [len(column)] * len(column)
        for number in range(len(column) - 2, -1, -1):
            same = column[number] == column[number + 1]
            self._after[number] = self._after[number + 1] if same else number + 1

    def next(self, number: int, stop: int, value: Any, effort: Effort) -> int:  # noqa: ARG002
        """See `_Finder.next`."""
        return number if self._column[number] != value else self._after[number]


class _Beyond:
    """Finds values below or above one: a binary tree whose nodes have the best of their leaves."""

    def __init__(self, compared: str, column: Sequence[Any]) -> None:
        self._holds, best = COMPARED[compared], _BEST[compared]
        self._leaves = leaves = 1 << (len(column) - 1).bit_length()
        # what fills it up holds where the last one does, and comes after it
        self._tree = tree = [*[column[0]] * leaves, *column, *[column[-1]] * (leaves - len(column))]
        for node in range(leaves - 1, 0, -1):
            tree[node] = best(tree[2 * node], tree[2 * node + 1])

    def next(self, number: int, stop: int, value: Any, effort: Effort) -> int:  # noqa: ARG002
        """See `_Finder.next`."""
        tree, holds, leaves = self._tree, self._holds, self._leaves
        node = number + leaves
        while not holds(tree[node], value):
            while node & 1:  # what is right of it lies under a node further up
                node >>= 1
            if not node:
                return stop
            node += 1
        while node < leaves:
            node <<= 1
            if not holds(tree[node], value):
                node += 1
        return node - leaves


class _Walked:
    """Finds what holds by trying one after the other: lists, maps and the like."""

    def __init__(self, compared: str, column: Sequence[Any]) -> None:
        self._holds, self._column = COMPARED[compared], column

    def next(self, number: int, stop: int, value: Any, effort: Effort) -> int:
        """See `_Finder.next`."""
        while number < stop and not self._holds(self._column[number], value):
            effort.spend()
            number += 1
        return number


def _finder(compared: str, column: Sequence[Any]) -> _Finder:
    if compared == "<>":
        return _Different(column)
    if compared in _BEST and all(isinstance(value, _ORDERED) for value in column):
        return _Beyond(compared, column)
    return _Walked(compared, column)


def _may_hold(compared: str, value: Any) -> bool:
    """Whether a comparison can hold of a value at all."""
    return value is not None and (compared == "<>" or not _nan(value))


def _nan(value: Any) -> bool:
    return isinstance(value, float) and value != value  # noqa: PLR0124  # what NaN is


def _hashable(comparison: Comparison, places: Sequence[int]) -> bool:
    """Whether rows can be told apart by a hash of what is compared."""
    column = comparison.column
    return comparison.compared == "=" and all(_has_hash(column[place]) for place in places)


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _grouped(
    places: Sequence[int], columns: Sequence[Sequence[Any]]
) -> dict[tuple[Any, ...], list[int]]:
    if not columns:
        return {(): list(places)}
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place in places:
        groups.setdefault(tuple(column[place] for column in columns), []).append(place)
    return groups
