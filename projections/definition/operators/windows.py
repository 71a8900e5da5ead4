"""Windows: rows grouped by their own time, whenever they come.

A window is no state that is kept in memory and closed. It is a row of a view like any other, made
from all rows of a table that fall into it. So nothing comes too late: whatever is inserted, updated
or deleted corrects the windows that it was in and is in, and those alone are computed again.

Times are instants; a column without a time zone counts as UTC. A row is in no window if it has no
time, or one that stands for none, such as `9999-12-31`: before year 2 or after 9998, or so near to
these that its window would end beyond them. So every window can be written in every store. Windows
hold their beginning and not their end, but for those that slide with every row, which end with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from projections.definition.operators.measures import Measures, quoted
from projections.errors import DeclarationError

START: Final = "window_start"
END: Final = "window_end"
HOPS_MAX: Final = 100
"""Windows that one row may be in: each is computed again when the row changes."""

_PART: Final = re.compile(r"(\d+)\s*(second|minute|hour|day|week)s?")
_UNITS: Final = {
    "day": "1 DAY",
    "week": "7 DAYS",
    "month": "1 MONTH",
    "quarter": "3 MONTHS",
    "year": "1 YEAR",
}
_DAYS_MAX: Final = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}
_MICROSECOND: Final = timedelta(microseconds=1)
_YEAR: Final = timedelta(days=365)
_LONGEST: Final = 1_000 * _YEAR
# a year from where years end that can be written: whatever is shorter fits between
_FIRST: Final = datetime(2, 1, 1)  # noqa: DTZ001  # of UTC, and written so below
_LAST: Final = datetime(9999, 1, 1)  # noqa: DTZ001


@dataclass(frozen=True, slots=True)
class WindowedRows:
    """Rows with the windows that they are in, whose ends no other row moves; in Spark SQL.

    Attributes:
        query: Returns each row once for each of its windows.
        group: Its column that identifies a window.
        start: Expression of the start of a row's window.
        end: Expression of its end.
        width_s: Seconds of each window; None if they differ.
    """

    query: str
    group: str
    start: str
    end: str
    width_s: float | None = None

    @property
    def bounds(self) -> str:
        """What a SELECT lists of the windows themselves."""
        return f"{self.start} AS {START}, {self.end} AS {END}"

    def grouped(self, by: tuple[str, ...], listed: str) -> str:
        """Returns the query of the windows.

        Args:
            by: Columns that rows of a window have in common.
            listed: Measures of each window.
        """
        return _grouped(self.query, by, self.bounds, listed, (*by, self.group))


class Window(Protocol):
    """A way to group rows by a time that they have."""

    @property
    def time(self) -> str:
        """The column that has the time."""
        ...

    @property
    def reach(self) -> timedelta:
        """How far from a row's time its windows may begin or end."""
        ...

    def select(self, table: str, by: tuple[str, ...], measures: Measures, condition: str) -> str:
        """Returns the query of the windows of a table.

        Args:
            table: The view whose rows are grouped.
            by: Columns that rows of a window have in common.
            measures: Measures of each window.
            condition: Of Spark SQL, on the rows that count.

        Raises:
            DeclarationError: It cannot be said of such windows.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows side by side, all of one width: each row is in one.

    Attributes:
        time: The column that has a row's time.
        width: How long each is: `"1 minute"`, `"2 hours 30 minutes"`.
        offset: By how much they begin later than at multiples of the width since 1970 (UTC).
    """

    time: str
    width: str
    offset: str = "0 seconds"

    def __post_init__(self) -> None:
        duration(self.width)
        duration(self.offset, least=timedelta(0))

    @property
    def reach(self) -> timedelta:
        """See `Window.reach`."""
        return duration(self.width)

    def select(self, table: str, by: tuple[str, ...], measures: Measures, condition: str) -> str:
        """See `Window.select`."""
        return self._hopping.select(table, by, measures, condition)

    def rows(self, table: str, condition: str) -> WindowedRows:
        """Returns the rows of a table that a condition is true of, with their windows."""
        return self._hopping.rows(table, condition)

    @property
    def _hopping(self) -> Hopping:
        return Hopping(self.time, self.width, self.width, self.offset)


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one width, of which one begins every so often.

    They overlap, and a row is in several, or there are gaps between them, and a row may be in none.

    Attributes:
        time: The column that has a row's time.
        width: How long each is.
        every: How long after one the next begins.
        offset: By how much they begin later than at multiples of `every` since 1970 (UTC).
    """

    time: str
    width: str
    every: str
    offset: str = "0 seconds"

    def __post_init__(self) -> None:
        width, every = duration(self.width), duration(self.every)
        duration(self.offset, least=timedelta(0))
        if width / every > HOPS_MAX:
            raise DeclarationError(
                f"a row would be in {width / every:.0f} windows",
                detail=f"{self.width} wide, every {self.every}; the limit is {HOPS_MAX}",
                hint="use Sliding(...), which has one window for each row",
            )

    @property
    def reach(self) -> timedelta:
        """See `Window.reach`."""
        return duration(self.width)

    def select(self, table: str, by: tuple[str, ...], measures: Measures, condition: str) -> str:
        """See `Window.select`."""
        rows = self.rows(table, condition)
        return rows.grouped(by, measures.of_groups(rows.width_s))

    def rows(self, table: str, condition: str) -> WindowedRows:
        """Returns the rows of a table that a condition is true of, with their windows."""
        width, every, offset = map(micros, (self.width, self.every, self.offset))
        if every > width:
            return self._apart(f"{table} {_where(self, condition)}", width, every, offset)
        # Spark's windows begin less than one length later; such as begin later yet are the same
        begins = offset % every
        lengths = ", ".join(f"'{each} microseconds'" for each in (width, every, begins))
        window = f"window({quoted(self.time)}, {lengths}) AS _window"
        return WindowedRows(
            _with(window, f"{table} {_where(self, condition)}"),
            "_window",
            "_window.start",
            "_window.end",
            duration(self.width).total_seconds(),
        )

    def _apart(self, rows: str, width: int, every: int, offset: int) -> WindowedRows:
        """Windows with gaps between them, which Spark's own have not; lengths in microseconds."""
        at = f"unix_micros(CAST({quoted(self.time)} AS TIMESTAMP))"
        since = f"pmod({at} - {offset}, {every})"
        inside = f"SELECT * FROM {rows} AND {since} < {width}"  # noqa: S608  # of a declaration
        return WindowedRows(
            _with(f"timestamp_micros({at} - {since}) AS _begins", f"({inside})"),
            "_begins",
            "_begins",
            f"_begins + INTERVAL {width} MICROSECONDS",
            duration(self.width).total_seconds(),
        )


@dataclass(frozen=True, slots=True)
class Calendar:
    """Days, weeks, months, quarters or years, as a calendar somewhere has them.

    Attributes:
        time: The column that has a row's time.
        unit: `day`, `week` (from Monday), `month`, `quarter` or `year`.
        zone: Where: `Europe/Stockholm`; a day may have 23 or 25 hours there.
    """

    time: str
    unit: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if self.unit not in _UNITS:
            raise DeclarationError(
                "the unit of a calendar window is invalid",
                detail=self.unit,
                hint=f'{", ".join(_UNITS)}; for hours: Tumbling(..., "1 hour")',
            )
        require_zone(self.zone)

    @property
    def reach(self) -> timedelta:
        """See `Window.reach`."""
        return _YEAR

    @property
    def longest(self) -> timedelta:
        """How long one is at most, by a calendar without changes of the clock."""
        return timedelta(days=_DAYS_MAX[self.unit])

    def select(self, table: str, by: tuple[str, ...], measures: Measures, condition: str) -> str:
        """See `Window.select`."""
        return self.rows(table, condition).grouped(by, measures.of_groups())

    def rows(self, table: str, condition: str) -> WindowedRows:
        """Returns the rows of a table that a condition is true of, with their windows."""
        local = f"from_utc_timestamp({quoted(self.time)}, '{self.zone}')"
        begins = f"date_trunc('{self.unit}', {local}) AS _begins"
        return WindowedRows(
            _with(begins, f"{table} {_where(self, condition)}"),
            "_begins",
            f"to_utc_timestamp(_begins, '{self.zone}')",
            f"to_utc_timestamp(_begins + INTERVAL {_UNITS[self.unit]}, '{self.zone}')",
        )


@dataclass(frozen=True, slots=True)
class Session:
    """Rows of one group that follow each other without a gap; it ends a gap after the last.

    Attributes:
        time: The column that has a row's time.
        gap: How long nothing comes between two sessions; what comes exactly then still belongs.
    """

    time: str
    gap: str

    def __post_init__(self) -> None:
        duration(self.gap)

    @property
    def reach(self) -> timedelta:
        """See `Window.reach`."""
        return duration(self.gap)

    def select(self, table: str, by: tuple[str, ...], measures: Measures, condition: str) -> str:
        """See `Window.select`."""
        _require_groups("a session", by)
        time, gap = quoted(self.time), f"INTERVAL {micros(self.gap)} MICROSECONDS"
        order = f"OVER (PARTITION BY {_names(by)} ORDER BY {time})"
        begins = f"CASE WHEN {time} <= lag({time}) {order} + {gap} THEN 0 ELSE 1 END"
        rows = _with(f"{begins} AS _begins", f"{table} {_where(self, condition)}")
        numbered = _with(f"sum(_begins) {order} AS _session", f"({rows})")
        shown = f"min({time}) AS {START}, max({time}) + {gap} AS {END}"
        return _grouped(numbered, by, shown, measures.of_groups(), (*by, "_session"))


@dataclass(frozen=True, slots=True)
class Sliding:
    """For each time at which a group has a row, the rows of the group in a window that ends there.

    Without groups, all rows form one group.

    Attributes:
        time: The column with a row's time.
        width: Width of the window; it includes its end, and not its beginning.
    """

    time: str
    width: str

    def __post_init__(self) -> None:
        duration(self.width)

    @property
    def reach(self) -> timedelta:
        """See `Window.reach`."""
        return duration(self.width)

    def select(self, table: str, by: tuple[str, ...], measures: Measures, condition: str) -> str:
        """See `Window.select`."""
        time, width = quoted(self.time), micros(self.width)
        listed = measures.of_frames(duration(self.width).total_seconds(), "_frame")
        shown = f"{time} - INTERVAL {width} MICROSECONDS AS {START}, {time} AS {END}, {listed}"
        rows = f"{table} {_where(self, condition)}"
        if by:
            return f"SELECT DISTINCT {_names(by)}, {shown} FROM {rows} {self._frame(_names(by))}"  # noqa: S608
        # what a window has lies in the stretch of a width in which it ends, and in the one before:
        # each row is put into two, so that Spark need not have all rows in one place
        stretch = f"unix_micros(CAST({time} AS TIMESTAMP)) DIV {width} AS _own"
        twice = _with("explode(array(_own, _own + 1)) AS _stretch", f"({_with(stretch, rows)})")
        shown += f", _own = _stretch AS _ends FROM ({twice}) {self._frame('_stretch')}"
        return f"SELECT DISTINCT * EXCEPT (_ends) FROM (SELECT {shown}) WHERE _ends"  # noqa: S608

    def _frame(self, groups: str) -> str:
        return (
            f"WINDOW _frame AS (PARTITION BY {groups} ORDER BY {quoted(self.time)}"
            f" RANGE BETWEEN INTERVAL {micros(self.width) - 1} MICROSECONDS PRECEDING"
            " AND CURRENT ROW)"
        )


def keys_of(window: Window, by: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the columns that identify a window."""
    return (*by, END if isinstance(window, Sliding) else START)


def _grouped(
    rows: str, by: tuple[str, ...], shown: str, listed: str, groups: tuple[str, ...]
) -> str:
    columns = ", ".join([*map(quoted, by), shown, listed])
    return f"SELECT {columns} FROM ({rows}) GROUP BY {_names(groups)}"  # noqa: S608  # as above


def _with(column: str, of: str) -> str:
    return f"SELECT *, {column} FROM {of}"  # noqa: S608  # of a declaration


def timed(window: Window) -> str:
    """Returns a condition of Spark SQL: a row has a time at which such windows can be."""
    return usable(quoted(window.time), max(window.reach - _YEAR, timedelta(0)))


def usable(time: str, beyond: timedelta = timedelta(0)) -> str:
    """Returns a condition of Spark SQL: the time is not NULL, and in a supported range.

    Args:
        time: The expression of the time.
        beyond: How far beyond a year the times computed from it may be.
    """
    first, last = _FIRST + beyond, _LAST - beyond
    return f"{time} >= TIMESTAMP '{first} UTC' AND {time} < TIMESTAMP '{last} UTC'"


def both(one: str, other: str) -> str:
    """Returns a condition of Spark SQL of which both are true; either may be empty."""
    return f"({one}) AND ({other})" if one and other else one or other


def _where(window: Window, condition: str) -> str:
    return f"WHERE {both(timed(window), condition)}"


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, columns))


def _require_groups(what: str, by: tuple[str, ...]) -> None:
    if not by:
        raise DeclarationError(
            f"{what} needs groups; without them all rows would be one",
            hint='by=["customer_id"]',
        )


def require_zone(name: str) -> None:
    """Refuses what is the name of no time zone.

    Raises:
        DeclarationError: There is none of that name.
    """
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise DeclarationError(
            "unknown time zone", detail=name, hint="such as Europe/Stockholm"
        ) from None


def micros(text: str) -> int:
    """Reads a duration, as microseconds; see `duration`."""
    return duration(text, least=timedelta(0)) // _MICROSECOND


def duration(text: str, least: timedelta = _MICROSECOND) -> timedelta:
    """Reads `1 minute`, or `2 hours 30 minutes`.

    Raises:
        DeclarationError: It is none, or too short.
    """
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise DeclarationError(
            "invalid duration",
            detail=text,
            hint="use numbers with second, minute, hour, day or week: 2 hours 30 minutes",
        )
    try:
        total = sum((timedelta(**{f"{unit}s": int(count)}) for count, unit in parts), timedelta(0))
    except OverflowError:
        total = timedelta.max
    if total > _LONGEST:
        raise DeclarationError("a duration exceeds a thousand years", detail=text)
    if total < least:
        raise DeclarationError("a duration must be positive", detail=text)
    return total
