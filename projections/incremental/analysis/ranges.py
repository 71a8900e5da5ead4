"""Stretches: a few ranges of whole numbers that contain all of some values, and perhaps NULL.

Times are microseconds. One range around scattered values would also span the gaps between them: one
row that is a year late would cause a year to be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

GAPS_MAX: Final = 16
"""A gap separates ranges if it is at least the whole divided by this; smaller ones save little."""

Range = tuple[int | None, int | None]

STRETCHES_MAX: Final = 8
"""Most ranges: each adds a condition for every row and every file."""


@dataclass(frozen=True, slots=True)
class ValueRanges:
    """Ranges of values, and whether NULL is among the values.

    Attributes:
        ranges: First and last value of each, None where unbounded; in order and disjoint.
        nulls: Whether NULL is among the values.
    """

    ranges: tuple[Range, ...]
    nulls: bool = False

    @property
    def bounded(self) -> bool:
        """Returns whether some value is outside."""
        return (None, None) not in self.ranges

    def moved(self, least: int | None, most: int | None) -> ValueRanges:
        """Returns the ranges of values at some distance from these; NULL has no distance.

        Args:
            least: Least distance; None if unknown.
            most: Greatest distance.
        """
        moved = ((_sum(first, least), _sum(last, most)) for first, last in self.ranges)
        return ValueRanges(_few(moved))

    def __or__(self, other: ValueRanges) -> ValueRanges:
        return ValueRanges(_few((*self.ranges, *other.ranges)), self.nulls or other.nulls)


def around(values: Iterable[int], *, nulls: bool = False) -> ValueRanges:
    """Returns the ranges of some values.

    Args:
        values: The values, in any order.
        nulls: Whether NULL is among them.
    """
    return ValueRanges(_few((value, value) for value in values), nulls)


def _sum(value: int | None, more: int | None) -> int | None:
    return None if value is None or more is None else value + more


def _few(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Merges ranges across the smallest gaps."""
    apart: list[Range] = []
    for first, last in sorted(set(ranges), key=_first):
        if first is not None and last is not None and first > last:
            continue  # no values
        before = apart[-1] if apart else None
        if before is None or not _meet(before, (first, last)):
            apart.append((first, last))
        else:
            apart[-1] = before[0], _later(before[1], last)
    gaps = [(_gap(one, two), place) for place, (one, two) in enumerate(pairwise(apart), 1)]
    wide = sorted((gap for gap in gaps if gap[0] * GAPS_MAX >= _width(apart)), reverse=True)
    kept = sorted(place for _, place in wide[: STRETCHES_MAX - 1])
    edges = [0, *kept, len(apart)] if apart else []
    return tuple((apart[one][0], apart[two - 1][1]) for one, two in pairwise(edges))


def _width(apart: list[Range]) -> int:
    """Returns the distance between the first finite end and the last."""
    ends = [end for each in apart for end in each if end is not None]
    return max(ends, default=0) - min(ends, default=0)


def _first(each: Range) -> tuple[bool, int]:
    return (False, 0) if each[0] is None else (True, each[0])


def _meet(one: Range, two: Range) -> bool:
    return one[1] is None or two[0] is None or two[0] <= one[1] + 1


def _later(one: int | None, two: int | None) -> int | None:
    return None if one is None or two is None else max(one, two)


def _gap(one: Range, two: Range) -> int:
    if one[1] is None or two[0] is None:
        raise ValueError("a range without an end overlaps the next one")
    return two[0] - one[1]
