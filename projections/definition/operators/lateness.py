"""Lateness: which rows are too late for their windows, decided from the rows themselves.

By default no row is too late: a row that arrives after the end of its window corrects it. With
`Late`, a row that arrives too long after that end is excluded from the window, and can be counted
there or listed in a separate view. In sessions and sliding windows each row moves the ends; there a
row is late by its own time, and is excluded before windows are formed.

A row has its own time and an arrival time, such as a column `recorded_at` with a default of
`now()`, or the time of a commit. It is late for a window if it arrived `after` or more past the
window's end. This is a watermark by the clock of the recording system. A watermark by the rows' own
times would be held back by an idle partition and driven forward by a device with a wrong clock;
this one is not.

Lateness keeps no state in memory: it depends only on the row and its window. A view is therefore
the same whether it followed the rows as they came, was rebuilt, or is computed by one query over
all of them. A row without an arrival time is never late.

A row whose own time is long after its arrival has a wrong clock. If `ahead` is set, it is in no
window, like a row without a time; otherwise its window would exist too early. `untimed_rows` lists
all such rows with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from projections.definition.operators.measures import Measures, quoted
from projections.definition.operators.windows import (
    END,
    START,
    Calendar,
    Hopping,
    Tumbling,
    both,
    duration,
    micros,
    timed,
)
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from projections.definition.operators.windows import Window, WindowedRows

LATE_BY: Final = "late_by_s"
REASON: Final = "reason"

_LATE: Final = "_late"
_END: Final = "its window's end"
_OWN: Final = "its own time"


class Untimed(StrEnum):
    """Why a row has no usable time.

    `ABSURD` times are outside the supported calendar, or placeholders such as `9999-12-31`.
    """

    MISSING = "missing"
    ABSURD = "absurd"
    AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class Late:
    """Which rows are too late for a window, and whether they are counted there.

    Attributes:
        arrived: The column with a row's arrival time; a row where it is NULL is not late.
        after: How long a window waits after its end, or after the own time of a row of a session or
            sliding window; a row that arrives exactly then is late.
        count: Column name of the number of late rows of a window; None for no such column. A window
            without other rows then exists as well.
        ahead: How far a row's own time may be after its arrival; a row further ahead has a wrong
            clock and is in no window. None for no limit.
    """

    arrived: str
    after: str = "0 seconds"
    count: str | None = None
    ahead: str | None = None

    def __post_init__(self) -> None:
        for length in filter(None, (self.after, self.ahead)):
            duration(length, least=timedelta(0))

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of its columns in a view."""
        return () if self.count is None else (self.count,)

    def limit(self, window: Window) -> str:
        """Describes, for people, until when late rows change a window."""
        return f"{self.after} after {_END if fixed(window) else _OWN}"

    def select(
        self, window: Window, table: str, by: tuple[str, ...], measures: Measures, condition: str
    ) -> str:
        """Returns the query of windows without late rows.

        Args:
            window: The windows.
            table: The view whose rows are grouped.
            by: Columns of the groups.
            measures: Measures of each window.
            condition: Spark SQL condition on the rows that count.

        Raises:
            DeclarationError: These windows do not support late rows, or not one of the measures.
        """
        rows = self._rows(window, table, condition)
        if rows is None:
            if self.count is not None:
                raise DeclarationError(
                    "late rows cannot be counted in a window whose end depends on its rows",
                    detail=f"{self.count} of {type(window).__name__}",
                    hint="count the rows of a view.late(...) instead",
                )
            in_time = f"NOT {self._late(quoted(window.time))}"
            return window.select(table, by, measures, both(self._kept(window, condition), in_time))
        if self.count is None:
            in_time = f"SELECT * FROM ({rows.query}) WHERE NOT {_LATE}"  # noqa: S608  # declared
            return replace(rows, query=in_time).grouped(by, measures.of_groups(rows.width_s))
        listed = measures.of_groups(rows.width_s, f"NOT {_LATE}")
        counted = f"count_if({_LATE}) AS {quoted(self.count)}"
        return rows.grouped(by, f"{listed}, {counted}" if listed else counted)

    def late_rows(self, window: Window, table: str, condition: str) -> str:
        """Returns the query of late rows, each with a window it is late for if windows are fixed.

        Args:
            window: The windows.
            table: The view of the rows.
            condition: Spark SQL condition on the rows that count.
        """
        rows, own = self._rows(window, table, condition), quoted(window.time)
        if rows is None:
            wanted = both(timed(window), both(self._kept(window, condition), self._late(own)))
            return f"SELECT *, {self._late_by(own)} FROM {table} WHERE {wanted}"  # noqa: S608
        return (
            f"SELECT * EXCEPT ({rows.group}, {_LATE}), {rows.bounds}, {self._late_by(rows.end)}"  # noqa: S608
            f" FROM ({rows.query}) WHERE {_LATE}"
        )

    def is_ahead(self, window: Window) -> str:
        """Returns the condition that a row's own time is too far after its arrival; else empty."""
        if self.ahead is None:
            return ""
        latest = f"{quoted(window.time)} - INTERVAL {micros(self.ahead)} MICROSECONDS"
        return f"coalesce({latest} > {quoted(self.arrived)}, false)"

    def _kept(self, window: Window, condition: str) -> str:
        ahead = self.is_ahead(window)
        return both(condition, f"NOT {ahead}") if ahead else condition

    def _rows(self, window: Window, table: str, condition: str) -> WindowedRows | None:
        """Returns rows with windows and whether each is late; None if rows move the ends."""
        if not isinstance(window, Tumbling | Hopping | Calendar):
            return None
        rows = window.rows(table, self._kept(window, condition))
        query = f"SELECT *, {self._late(rows.end)} AS {_LATE} FROM ({rows.query})"  # noqa: S608
        return replace(rows, query=query)

    def _late(self, since: str) -> str:
        closed = f"{since} + INTERVAL {micros(self.after)} MICROSECONDS"
        return f"coalesce({quoted(self.arrived)} >= {closed}, false)"

    def _late_by(self, since: str) -> str:
        by = f"{_micros_of(quoted(self.arrived))} - {_micros_of(since)}"
        return f"({by}) / 1000000D AS {LATE_BY}"


def untimed_rows(window: Window, table: str, condition: str, late: Late | None) -> str:
    """Returns the query of rows without a usable time, each with the reason.

    Args:
        window: The windows.
        table: The view of the rows.
        condition: Spark SQL condition on the rows that count.
        late: Decides which rows are ahead; None for none.
    """
    fits, ahead = timed(window), "" if late is None else late.is_ahead(window)
    usable = both(fits, f"NOT {ahead}" if ahead else "")
    wanted = both(f"NOT coalesce({usable}, false)", condition)
    return (
        f"SELECT *, CASE WHEN {quoted(window.time)} IS NULL THEN '{Untimed.MISSING}'"  # noqa: S608
        f" WHEN NOT ({fits}) THEN '{Untimed.ABSURD}' ELSE '{Untimed.AHEAD}' END AS {REASON}"
        f" FROM {table} WHERE {wanted}"
    )


def fixed(window: Window) -> bool:
    """Returns whether the bounds of such windows are independent of the rows."""
    return isinstance(window, Tumbling | Hopping | Calendar)


def added(window: Window) -> tuple[str, ...]:
    """Returns the columns that a view of late rows adds to those of the rows."""
    return (START, END, LATE_BY) if fixed(window) else (LATE_BY,)


def _micros_of(time: str) -> str:
    # the function refuses a time without a zone, which counts as UTC
    return f"unix_micros(CAST({time} AS TIMESTAMP))"
