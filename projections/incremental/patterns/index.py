"""Finds the next rows for a step of a pattern by look-up, not by a scan.

The comparison decides which index the rows that fit a step have:

- `=`: row numbers by value, several columns as one;
- `<>`: for each row the next one with another value;
- `<` `<=` `>` `>=`: a tree of least and of greatest values, in which one walk up and down finds the
  next row.

All `=` comparisons are applied first, the others to the remaining rows. If several are left, they
alternate: each returns the first row number from which it may hold, until all agree. That is exact,
but takes an unknown number of iterations; `WorkBudget` limits it.

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
"""Types whose values have a total order, except NaN."""


class WorkBudget:
    """The limit of the work for one episode of a group.

    Args:
        most: Most look-ups and rows.
        refusal: Error to raise beyond that.
    """

    def __init__(self, most: int, refusal: ProjectionError) -> None:
        self._most = most
        self._refusal = refusal
        self.spent = 0

    def spend(self, count: int = 1) -> None:
        """Adds to the work done."""
        self.spent += count
        if self.spent > self._most:
            raise self._refusal


class Comparison(NamedTuple):
    """A comparison of rows with a value that is known at look-up.

    Attributes:
        compared: `=`, `<>`, `<`, `<=`, `>` or `>=`.
        column: The rows' own values, by row number.
    """

    compared: str
    column: Sequence[Any]


class RowIndex:
    """Row numbers, in order, with look-up by comparisons.

    Args:
        places: The row numbers.
        comparisons: The comparisons.
        budget: The limit of the work.
    """

    def __init__(
        self, places: Sequence[int], comparisons: Sequence[Comparison], budget: WorkBudget
    ) -> None:
        self._effort = budget
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
            key: _IndexedRows(numbers, rest)
            for key, numbers in _grouped(kept, [comparisons[n].column for n in same]).items()
        }
        self._every = self._groups.get(())

    def first(self, start: int, end: int, values: Sequence[Any]) -> int | None:
        """Returns the first row number in a range, its end excluded; see `take`."""
        numbers = self.take(start, end, 1, values)
        return numbers[0] if numbers else None

    def take(self, start: int, end: int, count: int, values: Sequence[Any]) -> Sequence[int]:
        """Returns the first row numbers in a range, or none if there are fewer than wanted.

        Args:
            start: First row number.
            end: Row number after the last one.
            count: Number of rows wanted.
            values: The value for each comparison.

        Raises:
            ProjectionError: The limit of the work is exceeded.
        """
        self._effort.spend()
        among = self._indexed(values) if self._compared else self._every
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

    def _indexed(self, values: Sequence[Any]) -> _IndexedRows | None:
        """Returns the rows that meet the equalities, if any."""
        for compared, value in zip(self._compared, values, strict=True):
            if not _may_hold(compared, value):
                return None
        if not self._same:
            return self._every
        key = tuple(values[n] for n in self._same)
        return self._groups.get(key) if _has_hash(key) else None


class _Finder(Protocol):
    """Finds the next of some rows for which one comparison holds."""

    def next(self, number: int, stop: int, value: Any, budget: WorkBudget) -> int:
        """Returns the first such number from the given one on; if it is not below `stop`, any."""
        ...


class _IndexedRows:
    """Rows that are distinguished by comparisons other than `=`."""

    def __init__(self, places: list[int], comparisons: Sequence[Comparison]) -> None:
        self.places = places
        self._comparisons = comparisons
        self._made: list[_Finder] | None = None

    def next(self, number: int, stop: int, values: Sequence[Any], budget: WorkBudget) -> int:
        """Returns the first row for which all comparisons hold; see `_Finder.next`."""
        finders, agreed = self._made or self._make(), 0
        if len(finders) == 1 and number < stop:
            budget.spend()
            return finders[0].next(number, stop, values[0], budget)
        while number < stop and agreed < len(finders):
            for finder, value in zip(finders, values, strict=True):
                budget.spend()
                candidate = finder.next(number, stop, value, budget)
                agreed = agreed + 1 if candidate == number else 1
                number = candidate
                if number >= stop or agreed == len(finders):
                    break
        return number

    def _make(self) -> list[_Finder]:
        """Builds the indexes on first use: most groups never need them."""
        self._made = [
            _finder(each.compared, [each.column[place] for place in self.places])
            for each in self._comparisons
        ]
        return self._made


class _UnequalFinder:
    """Finds values that differ from a given one."""

    def __init__(self, column: Sequence[Any]) -> None:
        self._column = column
        self._after = [len(column)] * len(column)
        for number in range(len(column) - 2, -1, -1):
            same = column[number] == column[number + 1]
            self._after[number] = self._after[number + 1] if same else number + 1

    def next(self, number: int, stop: int, value: Any, budget: WorkBudget) -> int:  # noqa: ARG002
        """See `_Finder.next`."""
        return number if self._column[number] != value else self._after[number]


class _OrderedFinder:
    """Finds values below or above one: a binary tree whose nodes have the best of their leaves."""

    def __init__(self, compared: str, column: Sequence[Any]) -> None:
        self._holds, best = COMPARED[compared], _BEST[compared]
        self._leaves = leaves = 1 << (len(column) - 1).bit_length()
        # padding holds where the last value does, and comes after it
        self._tree = tree = [*[column[0]] * leaves, *column, *[column[-1]] * (leaves - len(column))]
        for node in range(leaves - 1, 0, -1):
            tree[node] = best(tree[2 * node], tree[2 * node + 1])

    def next(self, number: int, stop: int, value: Any, budget: WorkBudget) -> int:  # noqa: ARG002
        """See `_Finder.next`."""
        tree, holds, leaves = self._tree, self._holds, self._leaves
        node = number + leaves
        while not holds(tree[node], value):
            while node & 1:  # rows further right are below a node higher up
                node >>= 1
            if not node:
                return stop
            node += 1
        while node < leaves:
            node <<= 1
            if not holds(tree[node], value):
                node += 1
        return node - leaves


class _ScanningFinder:
    """Finds values by trying one after the other: lists, maps and the like."""

    def __init__(self, compared: str, column: Sequence[Any]) -> None:
        self._holds, self._column = COMPARED[compared], column

    def next(self, number: int, stop: int, value: Any, budget: WorkBudget) -> int:
        """See `_Finder.next`."""
        while number < stop and not self._holds(self._column[number], value):
            budget.spend()
            number += 1
        return number


def _finder(compared: str, column: Sequence[Any]) -> _Finder:
    if compared == "<>":
        return _UnequalFinder(column)
    if compared in _BEST and all(isinstance(value, _ORDERED) for value in column):
        return _OrderedFinder(compared, column)
    return _ScanningFinder(compared, column)


def _may_hold(compared: str, value: Any) -> bool:
    """Returns whether a comparison can hold for a value at all."""
    return value is not None and (compared == "<>" or not _nan(value))


def _nan(value: Any) -> bool:
    return isinstance(value, float) and value != value  # noqa: PLR0124  # only NaN differs from itself


def _hashable(comparison: Comparison, places: Sequence[int]) -> bool:
    """Returns whether rows can be distinguished by a hash of the compared value."""
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
