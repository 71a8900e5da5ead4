"""Time bounds of a change: the input rows that a recomputation can skip.

Windows whose ends rows move, and matches of patterns, are computed along the time of a group.
Rows before a changed row do not depend on it, so a recomputation starts at the first row of the
view that can change, not at the beginning of the group.

A window with fixed ends is computed only from the rows between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from projections.definition.operators.pattern import TO_NEXT_ROW
from projections.definition.operators.windows import (
    END,
    START,
    Calendar,
    Hopping,
    Session,
    Sliding,
    Tumbling,
    duration,
    micros,
)

if TYPE_CHECKING:
    from projections.definition.operators.pattern import PatternQuery
    from projections.definition.operators.windows import Window

_CLOCKS_CHANGE: Final = timedelta(days=2)
"""More than any place has ever moved its clocks, even across the date line."""

MATCH_START = "match_start"
MATCH_END = "match_end"


@dataclass(frozen=True, slots=True)
class Extent:
    """The position of a view's rows in time; the rows of a group are computed in its order.

    Attributes:
        by: Columns of the groups, with the same names in the view and its input; none if all rows
            are one group.
        time: Column of the input with the time of a row.
        start: Column of the view with the start of a row; rows are computed in that order.
        end: Column of the view with the time until which a row affects where the next may begin.
        before_us: How long before a changed input row a row of the view may begin and change with
            it, microseconds.
        read_us: How long before the start of a row of the view its input rows may be, microseconds.
    """

    by: tuple[str, ...]
    time: str
    start: str
    end: str
    before_us: int = 0
    read_us: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """The times between which the input rows of a row of the view are.

    Attributes:
        time: The column of the input with a row's time.
        start: The view's key column with the start of its row.
        before: How long before the start the first input row may be.
        after: How long after the start the last input row may be, exclusive.
    """

    time: str
    start: str
    before: timedelta
    after: timedelta


def span_of(window: Window) -> Span | None:
    """Returns the span of windows with fixed ends; None for others."""
    if isinstance(window, Tumbling | Hopping):
        return Span(window.time, START, timedelta(0), duration(window.width))
    if isinstance(window, Calendar):
        after = window.longest + _CLOCKS_CHANGE
        return Span(window.time, START, _CLOCKS_CHANGE, after)
    return None


def of_window(window: Window, by: tuple[str, ...]) -> Extent | None:
    """Returns the extent of windows whose ends rows move; None for others."""
    if isinstance(window, Session):
        return Extent(by, window.time, START, END)
    if isinstance(window, Sliding):
        return Extent(by, window.time, END, END, read_us=micros(window.width))
    return None


def of_pattern(query: PatternQuery) -> Extent:
    """Returns the extent of matches.

    A match can change with a row up to `within` after its first row. Where the next may begin
    depends on the row that the pattern skips to, which is at the latest its last.
    """
    apart = query.pattern.skip == TO_NEXT_ROW
    end = MATCH_START if apart else MATCH_END
    within_us = micros(query.pattern.within)
    return Extent(query.by, query.time, MATCH_START, end, before_us=within_us)
