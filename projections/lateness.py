"""Lateness: which rows came too late for their windows, judged by the rows themselves.

Where nothing is said of it, nothing comes too late: a row that arrives after the end of its window
corrects it. With `Late` a row that arrives too long after that end is left out of the window, and
may be counted there, or kept in a view of its own.

A row says when it was, and when it arrived: when whoever recorded it did so, such as a column
`recorded_at` with a default of `now()`, or the time of a commit. It is late for a window if it
arrived at the window's end and `after` that, or later. This is a watermark by the clock of whoever
records. One that follows the times of the rows themselves is held back by a partition in which
nothing happens, and driven forward by a device whose clock is wrong; this one is not.

Nor is it a state in memory: whether a row is late depends on nothing but itself and its window. So
a view is the same whether it followed the rows as they came, was rebuilt, or is asked for as a
query over all of them. A row that is not known to have arrived at any time is never late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from projections.errors import DeclarationError
from projections.event_window import END, START, Calendar, Hopping, Tumbling, duration, micros
from projections.measure import Measures, quoted

if TYPE_CHECKING:
    from projections.event_window import Window, WindowedRows

LATE_BY: Final = "late_by_s"
ADDED: Final = (START, END, LATE_BY)
"""Columns that a view of late rows has beside those of the rows."""

_LATE: Final = "_late"


@dataclass(frozen=True, slots=True)
class Late:
    """Which rows come too late for a window, and whether they are counted there.

    Attributes:
        arrived: The column that says when a row arrived; of a row where it is NULL, nobody knows,
            and it is not late.
        after: How long after its end a window waits: what arrives exactly then is late.
        count: What the number of late rows of a window is called, if it is wanted. A window that
            has no other rows is then there as well.
    """

    arrived: str
    after: str = "0 seconds"
    count: str | None = None

    def __post_init__(self) -> None:
        duration(self.after, least=timedelta(0))

    @property
    def names(self) -> tuple[str, ...]:
        """What its columns of a view are called."""
        return () if self.count is None else (self.count,)

    def select(self, rows: WindowedRows, by: tuple[str, ...], measures: Measures) -> str:
        """Returns the query of windows that late rows are left out of.

        Args:
            rows: Rows with their windows; see `rows_of`.
            by: Columns that rows of a window have in common.
            measures: What is said of each window.

        Raises:
            DeclarationError: It cannot be said of such windows.
        """
        marked = self._marked(rows)
        if self.count is None:
            in_time = f"SELECT * FROM ({marked.query}) WHERE NOT {_LATE}"  # noqa: S608  # declared
            return replace(marked, query=in_time).grouped(by, measures.of_groups(rows.width_s))
        listed = measures.of_groups(rows.width_s, f"NOT {_LATE}")
        counted = f"count_if({_LATE}) AS {quoted(self.count)}"
        return marked.grouped(by, f"{listed}, {counted}" if listed else counted)

    def late_rows(self, rows: WindowedRows) -> str:
        """Returns the query of late rows, each with a window that it is late for.

        Args:
            rows: Rows with their windows; see `rows_of`.
        """
        marked = self._marked(rows)
        late_by = f"({_micros_of(quoted(self.arrived))} - {_micros_of(rows.end)}) / 1000000D"
        return (
            f"SELECT * EXCEPT ({rows.group}, {_LATE}), {rows.bounds}, {late_by} AS {LATE_BY}"  # noqa: S608
            f" FROM ({marked.query}) WHERE {_LATE}"
        )

    def _marked(self, rows: WindowedRows) -> WindowedRows:
        """The rows with a column that says whether each is late for its window."""
        closed = f"{rows.end} + INTERVAL {micros(self.after)} MICROSECONDS"
        late = f"coalesce({quoted(self.arrived)} >= {closed}, false) AS {_LATE}"
        return replace(rows, query=f"SELECT *, {late} FROM ({rows.query})")  # noqa: S608  # declared


def rows_of(window: Window, table: str, condition: str) -> WindowedRows:
    """Returns rows with the windows that they may be late for.

    Args:
        window: The windows.
        table: The view whose rows they are.
        condition: Of Spark SQL, on the rows that count.

    Raises:
        DeclarationError: The rows decide when such a window ends: of a session, each moves it; a
            window that slides ends with one.
    """
    if not isinstance(window, Tumbling | Hopping | Calendar):
        raise DeclarationError(
            "no row is late for a window whose end moves with the rows",
            detail=type(window).__name__,
            hint="late= goes with Tumbling(...), Hopping(...) and Calendar(...)",
        )
    return window.rows(table, condition)


def _micros_of(time: str) -> str:
    # of a time without a zone, which counts as UTC, the function would not take it
    return f"unix_micros(CAST({time} AS TIMESTAMP))"
