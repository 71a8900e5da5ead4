"""Windows and matches are what plain Python makes of rows, however late they come, or change."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from projections.event_window import (
    Calendar,
    Hopping,
    Session,
    Sliding,
    Tumbling,
    keys_of,
)
from projections.lateness import Late, rows_of
from projections.measure import Measures, Percentile
from projections.pattern import Event, Pattern, PatternQuery, Step, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from projections.event_window import Window
    from projections.spark.derivation.analysis import Derivation

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

DDL = "id int, who string, amount int, at timestamp, came timestamp"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STOCKHOLM = ZoneInfo("Europe/Stockholm")
# about the night in which clocks go back: there the day has 25 hours
NIGHT = datetime(2026, 10, 24, 20, tzinfo=UTC)


class Row(NamedTuple):
    id: int
    who: str | None
    amount: int | None
    at: datetime | None
    came: datetime | None


class Bounds(NamedTuple):
    start: datetime
    end: datetime


WINDOWS: dict[str, Window] = {
    "tumbling": Tumbling("at", "1 hour", offset="10 minutes"),
    "hopping": Hopping("at", "1 hour", "25 minutes"),
    "day": Calendar("at", "day", "Europe/Stockholm"),
    "month": Calendar("at", "month", "Europe/Stockholm"),
    "session": Session("at", "30 minutes"),
    "sliding": Sliding("at", "1 hour"),
}
ALL = Measures(
    count="n",
    sums={"total": "amount"},
    averages={"mean": "amount"},
    least={"least": "amount"},
    greatest={"greatest": "amount"},
    distinct={"kinds": "amount"},
    percentiles={"median": Percentile("amount", 0.5)},
)
OF_FRAMES = Measures(count="n", rate="per_s", sums={"total": "amount"}, averages={"mean": "amount"})


def fixed(at: datetime, width: timedelta, every: timedelta, offset: timedelta) -> Iterator[Bounds]:
    start = EPOCH + offset + (at - EPOCH - offset) // every * every
    while start > at - width:
        yield Bounds(start, start + width)
        start -= every


def local(at: datetime, unit: str) -> Bounds:
    day = at.astimezone(STOCKHOLM).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if unit == "day":
        # along the wall's clock, whatever the hours
        return Bounds(day.astimezone(UTC), (day + timedelta(days=1)).astimezone(UTC))
    first = day.replace(day=1)
    following = (first + timedelta(days=32)).replace(day=1)
    return Bounds(first.astimezone(UTC), following.astimezone(UTC))


def sessions(rows: list[Row]) -> Iterator[tuple[Bounds, list[Row]]]:
    gap = timedelta(minutes=30)
    together: list[Row] = []
    for row in sorted(rows, key=lambda row: row.at or EPOCH):
        if together and row.at - together[-1].at > gap:  # type: ignore[operator]
            yield _session(together, gap), together
            together = []
        together.append(row)
    if together:
        yield _session(together, gap), together


def _session(rows: list[Row], gap: timedelta) -> Bounds:
    times = [row.at for row in rows if row.at is not None]
    return Bounds(times[0], times[-1] + gap)


def windows_of(kind: str, rows: list[Row]) -> Iterator[tuple[Bounds, list[Row]]]:
    """The windows of one group, and the rows that are in each."""
    if kind == "session":
        yield from sessions(rows)
        return
    if kind == "sliding":
        for end in {row.at for row in rows if row.at is not None}:
            start = end - timedelta(hours=1)
            yield Bounds(start, end), [row for row in rows if start < row.at <= end]  # type: ignore[operator]
        return
    found: dict[Bounds, list[Row]] = defaultdict(list)
    for row in rows:
        assert row.at is not None
        for bounds in {
            "tumbling": lambda at: fixed(at, _H, _H, timedelta(minutes=10)),
            "hopping": lambda at: fixed(at, _H, timedelta(minutes=25), timedelta(0)),
            "day": lambda at: [local(at, "day")],
            "month": lambda at: [local(at, "month")],
        }[kind](row.at):
            found[bounds].append(row)
    yield from found.items()


_H = timedelta(hours=1)


def windows(kind: str, rows: Iterable[Row]) -> dict[Any, dict[str, Any]]:
    """What plain Python makes of the rows."""
    return {key: measured(kind, inside) for key, inside in windowed(kind, rows)}


def windowed(kind: str, rows: Iterable[Row]) -> Iterator[tuple[Any, list[Row]]]:
    """The windows of all groups, and the rows that are in each."""
    groups: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if row.at is not None:
            groups[row.who].append(row)
    for who, own in groups.items():
        for bounds, inside in windows_of(kind, own):
            yield (who, *bounds), inside


def measured(kind: str, inside: list[Row]) -> dict[str, Any]:
    amounts = [row.amount for row in inside if row.amount is not None]
    said: dict[str, Any] = {"n": len(inside), "total": sum(amounts) if amounts else None}
    said["mean"] = pytest.approx(mean(amounts)) if amounts else None
    if kind == "sliding":
        said["per_s"] = pytest.approx(len(inside) / 3600)
    else:
        said["least"], said["greatest"] = min(amounts, default=None), max(amounts, default=None)
        said["kinds"], said["median"] = len(set(amounts)), _median(amounts)
    return said


def _median(amounts: list[int]) -> Any:
    ordered = sorted(amounts)
    if not ordered:
        return None
    middle = (len(ordered) - 1) / 2
    return pytest.approx((ordered[int(middle)] + ordered[-int(-middle // 1)]) / 2)


class World:
    """A table whose rows come in any order, change their time and group, and go."""

    def __init__(self, random: Random, minutes: int = 600) -> None:
        self._random, self._minutes = random, minutes
        # of their own: what else the rows have does not depend on when they come
        self._delays = Random(minutes)  # noqa: S311  # chance that is repeated
        self.rows: dict[int, Row] = {}
        for _ in range(12):
            self.put()

    def put(self) -> None:
        number = self._random.randint(1, 16)
        minutes = self._random.choice([None, *range(0, self._minutes, 15)])
        at = None if minutes is None else NIGHT + timedelta(minutes=minutes)
        who = self._random.choice([None, "p", "q"])
        amount = self._random.choice([None, 0, 1, 5, 9])
        delay = self._delays.choice([None, -30, 10, 30, 45, 60, 75, 80, 110, 125, 1500])
        came = None if delay is None else (at or NIGHT) + timedelta(minutes=delay)
        self.rows[number] = Row(number, who, amount, at, came)

    def change(self) -> list[Row]:
        """Returns rows as they were and as they are."""
        before = dict(self.rows)
        for _ in range(self._random.randint(1, 4)):
            if self.rows and self._random.random() < 0.3:
                del self.rows[self._random.choice(sorted(self.rows))]
            else:
                self.put()
        changed = [row for key, row in before.items() if self.rows.get(key) != row]
        return changed + [row for key, row in self.rows.items() if before.get(key) != row]


def declared(spark: SparkSession, text: str, keys: tuple[str, ...]) -> Derivation:
    from pyspark.sql.types import StructType

    from projections.spark.derivation.analysis import analyse
    from projections.spark.derivation.definition import definition_of_sql

    schema = StructType.fromDDL(DDL)
    return analyse(spark, definition_of_sql(spark, text), {"events": schema}, keys)


@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_that_are_kept_are_what_plain_python_makes_of_the_rows(
    spark: SparkSession, kind: str
) -> None:
    window, measures = WINDOWS[kind], OF_FRAMES if kind == "sliding" else ALL
    text = window.select("events", ("who",), measures, "")
    view = declared(spark, text, keys_of(window, ("who",)))
    kept = Kept(spark, view, World(Random(kind)))  # noqa: S311  # chance that is repeated
    for rows in kept.changed():
        assert windows(kind, rows) == by_window(kept)


def by_window(kept: Kept) -> dict[Any, dict[str, Any]]:
    """What a view says of each window."""
    return {
        (row["who"], _utc(row["window_start"]), _utc(row["window_end"])): {
            name: value
            for name, value in row.items()
            if name not in {"who", "window_start", "window_end"}
        }
        for row in kept.rows.values()
    }


AFTER = timedelta(minutes=20)
LATE = Late("came", after="20 minutes")
KINDS = ("tumbling", "hopping", "day")


def late(row: Row, end: datetime) -> bool:
    return row.came is not None and row.came >= end + AFTER


@pytest.mark.parametrize("count", [None, "late"], ids=["dropped", "counted"])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_leave_out_rows_that_came_late_whatever_else_changes(
    spark: SparkSession, kind: str, count: str | None
) -> None:
    window = WINDOWS[kind]
    text = replace(LATE, count=count).select(rows_of(window, "events", ""), ("who",), ALL)
    view = declared(spark, text, keys_of(window, ("who",)))
    kept = Kept(spark, view, World(Random(kind), minutes=180))  # noqa: S311  # as above
    numbers: set[tuple[bool, bool]] = set()
    for rows in kept.changed():
        expected = {}
        for key, inside in windowed(kind, rows):
            in_time = [row for row in inside if not late(row, key[2])]
            left_out = len(inside) - len(in_time)
            numbers.add((bool(in_time), bool(left_out)))
            if count is not None:
                expected[key] = measured(kind, in_time) | {count: left_out}
            elif in_time:
                expected[key] = measured(kind, in_time)
        assert expected == by_window(kept)

    assert {(True, False), (True, True), (False, True)} == numbers


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_came_late_are_kept_beside_with_the_windows_they_are_late_for(
    spark: SparkSession, kind: str
) -> None:
    text = LATE.late_rows(rows_of(WINDOWS[kind], "events", ""))
    view = declared(spark, text, ("id", "window_start"))
    kept, seen = Kept(spark, view, World(Random(kind), minutes=180)), 0  # noqa: S311  # as above
    for rows in kept.changed():
        expected = {
            (*row, start, end, (row.came - end).total_seconds())
            for (_, start, end), inside in windowed(kind, rows)
            for row in inside
            if row.came is not None and late(row, end)
        }
        assert expected == {
            tuple(_utc(each) if isinstance(each, datetime) else each for each in row.values())
            for row in kept.rows.values()
        }
        seen += len(expected)
    assert seen > 3


PATTERN = Pattern(
    [
        Step("first", "amount >= 1"),
        Step("none", "amount = 0", absent=True),
        Step("more", "amount > 0", beside=["amount >= first.amount", "at > first.at"]),
        Step("calm", "amount = 9", absent=True),
    ],
    within="5 hours",
    overlapping=True,
)


def test_matches_that_are_kept_are_what_plain_python_makes_of_the_rows(
    spark: SparkSession,
) -> None:
    from pyspark.sql.types import StructType

    from projections.spark.derivation.analysis import analyse
    from projections.spark.derivation.matching import matches_of

    query = PatternQuery(PATTERN, ("who",), "at", ("id", "amount"), "id <> 3")
    keys = ("who", "match_start", "match_number")
    schema = {"events": StructType.fromDDL(DDL)}
    view = analyse(spark, lambda frames: matches_of(frames["events"], query), schema, keys)
    kept, seen = Kept(spark, view, World(Random(2))), 0  # noqa: S311  # as above
    for rows in kept.changed():
        expected = found(row for row in rows if row.id != 3)
        assert expected == {
            (
                row["who"],
                tuple((each["step"], each["id"], each["amount"]) for each in row["rows"]),
                _utc(row["match_start"]),
                _utc(row["match_end"]),
                _utc(row["due_at"]),
            )
            for row in kept.rows.values()
        }
        seen += len(expected)
    assert seen > 3


def found(rows: Iterable[Row]) -> set[Any]:
    groups: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if row.at is not None:
            groups[row.who].append(row)
    every = set()
    for who, own in groups.items():
        events = []
        for row in own:
            size, at = row.amount, _micros(row.at)
            fits = [size is not None and fit(size) for fit in FITS]
            events.append((at, [not fit for fit in fits], row, fits))
        events.sort(key=lambda each: (each[0], each[1], _ordered(each[2])))
        seen = [Event(at, fits, _compared(row)) for at, _, row, fits in events]
        for match in matches(PATTERN, seen):
            taken = [(step, events[place][2]) for step, place in match.taken]
            assert match.due is not None
            every.add(
                (
                    who,
                    tuple((step, row.id, row.amount) for step, row in taken),
                    taken[0][1].at,
                    taken[-1][1].at,
                    EPOCH + timedelta(microseconds=match.due),
                )
            )
    return every


FITS = (lambda n: n >= 1, lambda n: n == 0, lambda n: n > 0, lambda n: n == 9)


def _compared(row: Row) -> dict[str, Any]:
    return {"amount": row.amount, "at": _micros(row.at)}


def _ordered(row: Row) -> tuple[Any, ...]:
    """As Spark orders what is compared and kept: NULL first."""
    return (row.amount is not None, row.amount or 0, row.id)


def _micros(at: datetime | None) -> int:
    assert at is not None
    return (at - EPOCH) // timedelta(microseconds=1)


class Kept:
    """The rows of a view, kept through changes as a job keeps them."""

    def __init__(self, spark: SparkSession, view: Derivation, world: World) -> None:
        from projections.derivation.strategy import Keyed

        assert isinstance(view.strategy, Keyed), view.explain()
        self._spark, self._view, self._world = spark, view, world
        self.rows: dict[Any, dict[str, Any]] = {}

    def changed(self) -> Iterator[list[Row]]:
        """Yields the rows of the table, at first and after each of some changes."""
        from projections.spark.derivation.recomputation import affected, gathered, outcome

        view, after = self._view, self._frames(self._world.rows.values())
        self._take(view.definition(after))
        yield list(self._world.rows.values())
        for _ in range(3):
            before, changes = after, self._frames(self._world.change())
            after = self._frames(self._world.rows.values())
            keys = gathered(self._spark, affected(view, changes, before, after), few_max=500)
            outcomes = outcome(view, before, after, keys)
            for row in outcomes.where("_deleted").collect():
                self.rows.pop(self._key(row.asDict()), None)
            self._take(outcomes.where("NOT _deleted").drop("_deleted"))
            yield list(self._world.rows.values())

    def _frames(self, rows: Iterable[Row]) -> dict[str, DataFrame]:
        return {"events": self._spark.createDataFrame(list(rows), DDL)}

    def _take(self, frame: DataFrame) -> None:
        given = [row.asDict() for row in frame.collect()]
        taken = {self._key(row): row for row in given}
        assert len(given) == len(taken), "a key is not unique"
        self.rows |= taken

    def _key(self, row: dict[str, Any]) -> Any:
        return tuple(row[name] for name in self._view.keys)


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)
