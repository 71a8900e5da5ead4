"""Windows: rows grouped by their own time, whenever they arrive.

A window is not state that is held in memory and closed. It is a row of a view like any other,
computed from all rows of a table that fall into it. No row is therefore too late: an insert, update
or delete corrects the windows that the row was in and is in, and only those are recomputed.

Times are instants; a column without a time zone counts as UTC. A row is in no window if it has no
time, or a placeholder such as `9999-12-31`: a time before year 2, after 9998, or so close to these
that its window would end beyond them. Every window can therefore be written to every store. A
window includes its beginning and excludes its end, except for sliding windows, which end with a row
and include it.
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
"""Most windows that one row may be in: each is recomputed when the row changes."""

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
# a year inside the supported range: every shorter window fits
_FIRST: Final = datetime(2, 1, 1)  # noqa: DTZ001  # of UTC, and written so below
_LAST: Final = datetime(9999, 1, 1)  # noqa: DTZ001


@dataclass(frozen=True, slots=True)
class WindowedRows:
    """Rows with their windows, whose ends no row moves; in Spark SQL.

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
        """Returns the expressions of a window's bounds."""
        return f"{self.start} AS {START}, {self.end} AS {END}"

    def grouped(self, by: tuple[str, ...], listed: str) -> str:
        """Returns the query of the windows.

        Args:
            by: Columns of the groups.
            listed: Measures of each window.
        """
        return _grouped(self.query, by, self.bounds, listed, (*by, self.group))


class Window(Protocol):
    """A way to group rows by one of their times."""

    @property
    def time(self) -> str:
        """Returns the name of the column with a row's time."""
        ...

    @property
    def reach(self) -> timedelta:
        """Returns how far from a row's time its windows may begin or end."""
        ...

    def select(self, table: str, by: tuple[str, ...], measures: Measures, condition: str) -> str:
        """Returns the query that groups a table into windows.

        Args:
            table: The view whose rows are grouped.
            by: Columns of the groups.
            measures: Measures of each window.
            condition: Spark SQL condition on the rows that count.

        Raises:
            DeclarationError: These windows do not support one of the measures.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Adjacent windows of one width: each row is in exactly one.

    Attributes:
        time: Column with the time of a row.
        width: Width of a window: `"1 minute"`, `"2 hours 30 minutes"`.
        offset: Shift of the start from multiples of the width since 1970 (UTC).
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
        """Returns the rows that meet a condition, with their windows."""
        return self._hopping.rows(table, condition)

    @property
    def _hopping(self) -> Hopping:
        return Hopping(self.time, self.width, self.width, self.offset)


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one width that start at a fixed interval.

    They overlap, so a row is in several, or leave gaps, so a row may be in none.

    Attributes:
        time: Column with the time of a row.
        width: Width of a window.
        every: Time between the starts of two windows.
        offset: Shift of the start from multiples of `every` since 1970 (UTC).
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
        """Returns the rows that meet a condition, with their windows."""
        width, every, offset = map(micros, (self.width, self.every, self.offset))
        if every > width:
            return self._apart(f"{table} {_where(self, condition)}", width, every, offset)
        # Spark's offset must be shorter than the interval; a longer one has an equal shorter one
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
        """Returns windows with gaps between them, which Spark lacks; lengths in microseconds."""
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
    """Days, weeks, months, quarters or years of the calendar in a time zone.

    Attributes:
        time: Column with the time of a row.
        unit: `day`, `week` (from Monday), `month`, `quarter` or `year`.
        zone: Time zone: `Europe/Stockholm`; a day there can have 23 or 25 hours.
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
        """Returns the longest duration of a window, by a calendar without clock changes."""
        return timedelta(days=_DAYS_MAX[self.unit])

    def select(self, table: str, by: tuple[str, ...], measures: Measures, condition: str) -> str:
        """See `Window.select`."""
        return self.rows(table, condition).grouped(by, measures.of_groups())

    def rows(self, table: str, condition: str) -> WindowedRows:
        """Returns the rows that meet a condition, with their windows."""
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
    """Rows of one group without a gap between them; a session ends one gap after its last row.

    Attributes:
        time: Column with the time of a row.
        gap: Length of the gap that separates sessions; a row exactly that much later still belongs.
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
        bounds = f"min({time}) AS {START}, max({time}) + {gap} AS {END}"
        return _grouped(numbered, by, bounds, measures.of_groups(), (*by, "_session"))


@dataclass(frozen=True, slots=True)
class Sliding:
    """For each time at which a group has a row, a window that ends there.

    Without groups, all rows form one group.

    Attributes:
        time: Column with the time of a row.
        width: Width of the window; it includes its end and excludes its beginning.
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
        columns = f"{time} - INTERVAL {width} MICROSECONDS AS {START}, {time} AS {END}, {listed}"
        rows = f"{table} {_where(self, condition)}"
        if by:
            return f"SELECT DISTINCT {_names(by)}, {columns} FROM {rows} {self._frame(_names(by))}"  # noqa: S608
        # a window's rows are in the stretch of one width in which it ends, and in the one before;
        # each row is put into two stretches, so that Spark need not gather all rows in one task
        stretch = f"unix_micros(CAST({time} AS TIMESTAMP)) DIV {width} AS _own"
        twice = _with("explode(array(_own, _own + 1)) AS _stretch", f"({_with(stretch, rows)})")
        columns += f", _own = _stretch AS _ends FROM ({twice}) {self._frame('_stretch')}"
        return f"SELECT DISTINCT * EXCEPT (_ends) FROM (SELECT {columns}) WHERE _ends"  # noqa: S608

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
    rows: str, by: tuple[str, ...], bounds: str, listed: str, groups: tuple[str, ...]
) -> str:
    columns = ", ".join([*map(quoted, by), bounds, listed])
    return f"SELECT {columns} FROM ({rows}) GROUP BY {_names(groups)}"  # noqa: S608  # as above


def _with(column: str, of: str) -> str:
    return f"SELECT *, {column} FROM {of}"  # noqa: S608  # of a declaration


def timed(window: Window) -> str:
    """Returns the Spark SQL condition that a row has a time supported by such windows."""
    return usable(quoted(window.time), max(window.reach - _YEAR, timedelta(0)))


def usable(time: str, beyond: timedelta = timedelta(0)) -> str:
    """Returns the Spark SQL condition that a time is not NULL and in the supported range.

    Args:
        time: The expression of the time.
        beyond: How far times computed from it may exceed it.
    """
    first, last = _FIRST + beyond, _LAST - beyond
    return f"{time} >= TIMESTAMP '{first} UTC' AND {time} < TIMESTAMP '{last} UTC'"


def both(one: str, other: str) -> str:
    """Joins two Spark SQL conditions by AND; either may be empty."""
    return f"({one}) AND ({other})" if one and other else one or other


def _where(window: Window, condition: str) -> str:
    return f"WHERE {both(timed(window), condition)}"


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, columns))


def _require_groups(subject: str, by: tuple[str, ...]) -> None:
    if not by:
        raise DeclarationError(
            f"{subject} needs groups; without them all rows would be one",
            hint='by=["customer_id"]',
        )


def require_zone(name: str) -> None:
    """Refuses an unknown time zone.

    Raises:
        DeclarationError: No time zone has that name.
    """
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise DeclarationError(
            "unknown time zone", detail=name, hint="such as Europe/Stockholm"
        ) from None


def micros(text: str) -> int:
    """Parses a duration into microseconds; see `duration`."""
    return duration(text, least=timedelta(0)) // _MICROSECOND


def duration(text: str, least: timedelta = _MICROSECOND) -> timedelta:
    """Parses a duration such as `1 minute` or `2 hours 30 minutes`.

    Raises:
        DeclarationError: The text is not a duration, or it is too short.
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
