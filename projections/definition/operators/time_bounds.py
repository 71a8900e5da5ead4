"""How far a changed row reaches in time: which rows of its input a view need not read for it.

Windows whose ends rows move, and matches of patterns, are looked for along the time of a group.
What is decided of the time before a row does not depend on it, so a group need not be read from
its beginning when a row comes; only from where the first row of the view begins that may change.

A window whose ends no row moves is made from the rows that lie between them, and no others.
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
"""Further than a place has ever moved its clocks, to another side of the date line even."""

MATCH_START = "match_start"
MATCH_END = "match_end"


@dataclass(frozen=True, slots=True)
class Extent:
    """What a view says of its rows' place in time; all of one group are made along its time.

    Attributes:
        by: Columns of the groups, called alike in the view and in what it reads; none where all
            rows are one group.
        time: The column of what it reads that has a row's time.
        start: The view's column that says when a row of it begins: those are made in that order.
        end: The view's column that says until when a row of it decides where the next may begin.
        before_us: How long before a changed row a row of the view may begin and change with it.
        read_us: How long before the beginning of a row of the view its rows may lie.
    """

    by: tuple[str, ...]
    time: str
    start: str
    end: str
    before_us: int = 0
    read_us: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Between which times the rows lie from which a row of a view is made.

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
    """Returns the span of windows whose ends no row moves; None of others."""
    if isinstance(window, Tumbling | Hopping):
        return Span(window.time, START, timedelta(0), duration(window.width))
    if isinstance(window, Calendar):
        after = window.longest + _CLOCKS_CHANGE
        return Span(window.time, START, _CLOCKS_CHANGE, after)
    return None


def of_window(window: Window, by: tuple[str, ...]) -> Extent | None:
    """Returns the extent of windows whose ends rows move; of others each is a group by itself."""
    if isinstance(window, Session):
        return Extent(by, window.time, START, END)
    if isinstance(window, Sliding):
        return Extent(by, window.time, END, END, read_us=micros(window.width))
    return None


def of_pattern(query: PatternQuery) -> Extent:
    """Returns the extent of matches.

    A match may change with a row that comes as long after its first one as `within` says. Where the
    next may begin depends on the row that is skipped to, which is none after its last.
    """
    apart = query.pattern.skip == TO_NEXT_ROW
    end = MATCH_START if apart else MATCH_END
    within_us = micros(query.pattern.within)
    return Extent(query.by, query.time, MATCH_START, end, before_us=within_us)
