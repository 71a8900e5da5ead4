"""Windows and matches are what plain Python makes of rows, however late they come, or change."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from projections.definition.derived import heavy_hitters, lagged
from projections.definition.operators.lateness import Late, untimed_rows
from projections.definition.operators.measures import Approximate, Measures, Percentile
from projections.definition.operators.pattern import Pattern, PatternQuery, Step
from projections.definition.operators.time_bounds import of_window, span_of
from projections.definition.operators.windows import (
    Calendar,
    Hopping,
    Session,
    Sliding,
    Tumbling,
    keys_of,
)
from projections.errors import ProjectionError
from projections.incremental.patterns.index import Effort
from projections.incremental.patterns.search import GroupRows, matches
from tests.oracles.event_rows import ABSURD, DDL, EPOCH, NIGHT, Kept, Row, World, declared, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from projections.definition.operators.windows import Window

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

STOCKHOLM = ZoneInfo("Europe/Stockholm")


class Bounds(NamedTuple):
    start: datetime
    end: datetime


WINDOWS: dict[str, Window] = {
    "tumbling": Tumbling("at", "1 hour", offset="10 minutes"),
    "hopping": Hopping("at", "1 hour", "25 minutes"),
    "offset": Hopping("at", "1 hour", "25 minutes", offset="2 hours 45 minutes"),
    "apart": Hopping("at", "20 minutes", "50 minutes", offset="5 minutes"),
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
    percentiles={
        "median": Percentile("amount", 0.5),
        "near": Percentile("amount", 0.5, error=0.01),
    },
    # as exact as one with more registers where values are few, and merged in a tenth of the time
    approximate_distinct={"about": Approximate("amount", 0.05)},
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
            "offset": lambda at: fixed(at, _H, timedelta(minutes=25), timedelta(minutes=165)),
            "apart": lambda at: fixed(
                at, timedelta(minutes=20), timedelta(minutes=50), timedelta(minutes=5)
            ),
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
        if row.at is not None and row.at not in ABSURD:
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
        said["kinds"] = said["about"] = len(set(amounts))
        said["median"] = _median(amounts)
        said["near"] = _median(amounts, error=0.01)
    return said


def _median(amounts: list[int], error: float = 1e-6) -> Any:
    ordered = sorted(amounts)
    if not ordered:
        return None
    middle = (len(ordered) - 1) / 2
    return pytest.approx((ordered[int(middle)] + ordered[-int(-middle // 1)]) / 2, rel=error)


SEEDS = pytest.mark.rotating("seed", [1, 2, 3])


def few_max_of(kind: str, kinds: Iterable[str], seed: int) -> int:
    """Of one kind in three, all that is affected is found by a join, as where many keys are."""
    return 0 if ([*kinds].index(kind) + seed) % 3 == 0 else 500


@SEEDS
@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_that_are_kept_are_what_plain_python_makes_of_the_rows(
    spark: SparkSession, kind: str, seed: int
) -> None:
    window, measures = WINDOWS[kind], OF_FRAMES if kind == "sliding" else ALL
    text = window.select("events", ("who",), measures, "")
    view = declared(spark, text, keys_of(window, ("who",)))
    world = World(chance(kind, seed), absurd=True)
    kept = Kept(spark, view, world, span=span_of(window))
    for rows in kept.changed(few_max_of(kind, WINDOWS, seed)):
        assert windows(kind, rows) == by_window(kept)


@pytest.mark.rotating("seed", [1, 2])
def test_windows_may_slide_over_all_rows_of_a_table(spark: SparkSession, seed: int) -> None:
    window = WINDOWS["sliding"]
    view = declared(spark, window.select("events", (), OF_FRAMES, ""), keys_of(window, ()))

    def expected(rows: Iterable[Row]) -> dict[Any, dict[str, Any]]:
        found = windows("sliding", (row._replace(who=None) for row in rows))
        return {(start, end): measures for (_, start, end), measures in found.items()}

    def shown(rows: Iterable[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
        return {(utc(row.pop("window_start")), utc(row.pop("window_end"))): row for row in rows}

    world = World(chance("of all", seed), absurd=True)
    kept = Kept(spark, view, world, extent=of_window(window, ()))
    for rows in kept.changed():
        assert expected(rows) == shown(map(dict, kept.rows.values()))

    times = [EPOCH + timedelta(minutes=10 * minutes) for minutes in (*range(-9, 9), 12, -12)]
    rows = [Row(n, "p", n, at, None) for n, at in enumerate(times)]
    found = view.definition({"events": spark.createDataFrame(rows, DDL)}).collect()
    assert expected(rows) == shown(row.asDict() for row in found)


FREQUENT = ("tumbling", "hopping", "apart", "day", "month")


@pytest.mark.parametrize(
    ("kind", "few_max"), [(kind, n % 2 * 500) for n, kind in enumerate(FREQUENT)]
)
def test_the_most_frequent_values_are_what_plain_python_counts(
    spark: SparkSession, kind: str, few_max: int
) -> None:
    values = heavy_hitters.counted("events", "amount", ("who",), WINDOWS[kind])
    keys = ("who", "window_start")
    text = heavy_hitters.query(values, "amount", 1, (*keys, "window_end"), keys)
    view, span = declared(spark, text, keys), span_of(WINDOWS[kind])
    kept = Kept(spark, view, World(chance(kind, 7)), span=span)
    several = 0
    for rows in kept.changed(few_max):
        found = {
            (row["who"], utc(row["window_start"]), utc(row["window_end"])): [
                (each["amount"], each["rows"]) for each in row["values"]
            ]
            for row in kept.rows.values()
        }
        expected = {}
        for key, inside in windowed(kind, rows):
            counts = Counter(row.amount for row in inside if row.amount is not None)
            ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
            if ranked:
                expected[key] = ranked[:1]
            several += len(ranked) > 1
        assert expected == found
    assert several > 0 or kind == "apart"


BACK: dict[str, tuple[timedelta, ZoneInfo | None]] = {
    "tumbling": (timedelta(hours=2), None),
    "day": (timedelta(days=1), STOCKHOLM),
    "sliding": (timedelta(minutes=15), None),
}


@pytest.mark.parametrize(("kind", "few_max"), [("tumbling", 500), ("day", 500), ("sliding", 0)])
def test_windows_stand_beside_those_of_some_time_before(
    spark: SparkSession, kind: str, few_max: int
) -> None:
    window, (back, zone) = WINDOWS[kind], BACK[kind]
    keys = keys_of(window, ("who",))
    of_windows = window.select("events", ("who",), Measures(count="n"), "")
    width, place = f"{back // timedelta(seconds=1)} seconds", None if zone is None else zone.key
    beside = lagged.query("windows", keys, width, {"before": "n"}, place)
    view = declared(spark, f"WITH windows AS ({of_windows}) {beside}", keys)
    kept = Kept(spark, view, World(chance(kind, 1)))
    met = 0
    for rows in kept.changed(few_max):
        found = {key: measures["n"] for key, measures in windows(kind, rows).items()}
        expected = {
            key: {"n": n, "before": found.get(earlier(key, back, zone or UTC))}
            for key, n in found.items()
        }
        assert expected == by_window(kept)
        met += sum(each["before"] is not None for each in expected.values())
    assert met


def earlier(
    key: tuple[Any, datetime, datetime], back: timedelta, zone: tzinfo
) -> tuple[Any, datetime, datetime]:
    """The same group's window of some time before, by the clocks of a place."""
    who, *bounds = key
    start, end = (utc(at.astimezone(zone) - back) for at in bounds)
    return who, start, end


@pytest.mark.parametrize("error", [0.01, 0.05])
def test_values_counted_by_a_sketch_are_as_many_as_there_are_within_the_stated_error(
    spark: SparkSession, error: float
) -> None:
    sketch = Measures(approximate_distinct={"about": Approximate("v", error)})
    text = Tumbling("at", "1 hour").select("events", ("who",), sketch, "")
    values = spark.range(40_000).selectExpr(
        "CAST(id % 4 AS STRING) AS who", "id DIV 8 AS v", "TIMESTAMP '2026-11-24 09:00:00' AS at"
    )
    values.createOrReplaceTempView("events")
    (first, *_), (again, *_) = (spark.sql(text).collect() for _ in range(2))

    (exact,) = spark.sql("SELECT count(DISTINCT v) FROM events WHERE who = '0'").first()
    assert first == again
    assert 5_000 == exact
    assert 5_000 == pytest.approx(first["about"], rel=3 * error)


def chance(kind: str, seed: int) -> Random:
    return Random(f"{kind} {seed}")  # noqa: S311  # chance that is repeated


def by_window(kept: Kept) -> dict[Any, dict[str, Any]]:
    """What a view says of each window."""
    return {
        (row["who"], utc(row["window_start"]), utc(row["window_end"])): {
            name: value
            for name, value in row.items()
            if name not in {"who", "window_start", "window_end"}
        }
        for row in kept.rows.values()
    }


AFTER = timedelta(minutes=20)
LATE = Late("came", after="20 minutes", ahead="1 hour")
KINDS = ("tumbling", "hopping", "day")


def late(row: Row, end: datetime) -> bool:
    return row.came is not None and row.came >= end + AFTER


def ahead(row: Row) -> bool:
    if row.came is None or row.at is None or row.at in ABSURD:
        return False
    return row.at - timedelta(hours=1) > row.came


@SEEDS
@pytest.mark.parametrize("count", [None, "late"], ids=["dropped", "counted"])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_leave_out_rows_that_came_late_whatever_else_changes(
    spark: SparkSession, kind: str, count: str | None, seed: int
) -> None:
    window = WINDOWS[kind]
    text = replace(LATE, count=count).select(window, "events", ("who",), ALL, "")
    view = declared(spark, text, keys_of(window, ("who",)))
    world = World(chance(kind, seed), minutes=180, absurd=True)
    kept = Kept(spark, view, world, span=span_of(window))
    numbers: set[tuple[bool, bool]] = set()
    for rows in kept.changed(few_max_of(kind, KINDS, seed)):
        expected = {}
        for key, inside in windowed(kind, (row for row in rows if not ahead(row))):
            in_time = [row for row in inside if not late(row, key[2])]
            left_out = len(inside) - len(in_time)
            numbers.add((bool(in_time), bool(left_out)))
            if count is not None:
                expected[key] = measured(kind, in_time) | {count: left_out}
            elif in_time:
                expected[key] = measured(kind, in_time)
        assert expected == by_window(kept)

    assert len(numbers) > 1


@pytest.mark.parametrize("kind", ["session", "sliding"])
def test_where_rows_move_the_ends_one_is_late_by_its_own_time(
    spark: SparkSession, kind: str
) -> None:
    window, measures = WINDOWS[kind], OF_FRAMES if kind == "sliding" else ALL
    text = LATE.select(window, "events", ("who",), measures, "id <> 3 OR id <> 3")
    view = declared(spark, text, keys_of(window, ("who",)))
    kept, seen = Kept(spark, view, World(chance(kind, 1), minutes=180, absurd=True)), 0
    beside = declared(spark, LATE.late_rows(window, "events", "id <> 3"), ("id",))
    for rows in kept.changed():
        rows = [row for row in rows if row.id != 3 and not ahead(row)]  # noqa: PLW2901
        left_out = {row for row in rows if usable(row) and late(row, row.at or NIGHT)}
        assert windows(kind, (row for row in rows if row not in left_out)) == by_window(kept)
        found = beside.definition(kept.frames()).collect()
        by = {(row.id, (row.came - row.at).total_seconds()) for row in left_out}  # type: ignore[operator]
        assert by == {(row["id"], row["late_by_s"]) for row in found}
        seen += len(by)
    assert seen > 3


def usable(row: Row) -> bool:
    return row.at is not None and row.at not in ABSURD


@pytest.mark.rotating("seed", [1, 2])
@pytest.mark.parametrize("few_max", [500, 0])
def test_each_row_that_is_in_no_window_for_its_time_is_kept_beside_with_the_reason(
    spark: SparkSession, seed: int, few_max: int
) -> None:
    text = untimed_rows(WINDOWS["hopping"], "events", "id <> 3", LATE)
    # pyspark's own way to Python does not take year 1
    view = declared(spark, f"SELECT id, reason FROM ({text})", ("id",))  # noqa: S608
    kept, seen = Kept(spark, view, World(chance("beside", seed), absurd=True)), set()
    for rows in kept.changed(few_max):
        reasons = {
            row.id: "missing" if row.at is None else "ahead" if ahead(row) else "absurd"
            for row in rows
            if row.id != 3 and (not usable(row) or ahead(row))
        }
        assert reasons == {row["id"]: row["reason"] for row in kept.rows.values()}
        seen |= {*reasons.values()}
    assert len(seen) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_came_late_are_kept_beside_with_the_windows_they_are_late_for(
    spark: SparkSession, kind: str
) -> None:
    text = LATE.late_rows(WINDOWS[kind], "events", "")
    view, world = (
        declared(spark, text, ("id", "window_start")),
        World(chance(kind, 1), minutes=180, absurd=True),
    )
    kept, seen = Kept(spark, view, world, span=span_of(WINDOWS[kind])), 0
    for rows in kept.changed():
        expected = {
            (*row, start, end, (row.came - end).total_seconds())
            for (_, start, end), inside in windowed(kind, (row for row in rows if not ahead(row)))
            for row in inside
            if row.came is not None and late(row, end)
        }
        assert expected == {
            tuple(utc(each) if isinstance(each, datetime) else each for each in row.values())
            for row in kept.rows.values()
        }
        seen += len(expected)
    assert seen


PATTERN = Pattern(
    [
        Step("first", "amount >= 1"),
        Step("none", "amount = 0", absent=True),
        Step("more", "amount > 0", beside=["amount >= first.amount", "at > first.at"]),
        Step("calm", "amount = 9", absent=True),
    ],
    within="5 hours",
    skip="to next row",
)


def test_matches_that_are_kept_are_what_plain_python_makes_of_the_rows(
    spark: SparkSession,
) -> None:
    from pyspark.sql.types import StructType

    from projections.incremental.spark.analysis import analyse
    from projections.incremental.spark.pattern_matching import matches_of

    query = PatternQuery(PATTERN, ("who",), "at", ("id", "amount"), "id <> 3")
    keys = ("who", "match_start", "match_number")
    schema = {"events": StructType.fromDDL(DDL)}
    view = analyse(spark, lambda frames: matches_of(frames["events"], query), schema, keys)
    kept, seen = Kept(spark, view, World(Random(2), absurd=True)), 0  # noqa: S311  # as above
    for rows in kept.changed():
        expected = found(row for row in rows if row.id != 3)
        assert expected == {
            (
                row["who"],
                tuple((each["step"], each["id"], each["amount"]) for each in row["rows"]),
                utc(row["match_start"]),
                utc(row["match_end"]),
                utc(row["due_at"]),
            )
            for row in kept.rows.values()
        }
        seen += len(expected)
    assert seen > 3


def found(rows: Iterable[Row]) -> set[Any]:
    groups: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if row.at is not None and row.at not in ABSURD:
            groups[row.who].append(row)
    every = set()
    for who, own in groups.items():
        events = []
        for row in own:
            size, at = row.amount, _micros(row.at)
            fits = [size is not None and fit(size) for fit in FITS]
            events.append((at, [not fit for fit in fits], row, fits))
        events.sort(key=lambda each: (each[0], each[1], _ordered(each[2])))
        seen = GroupRows(
            [at for at, *_ in events],
            list(zip(*(fits for *_, fits in events), strict=True)),
            {
                "amount": [row.amount for _, _, row, _ in events],
                "at": [at for at, *_ in events],
            },
        )
        for match in matches(PATTERN, seen, Effort(100_000, ProjectionError("too much"))):
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


def _ordered(row: Row) -> tuple[Any, ...]:
    """As Spark orders what is compared and kept: NULL first."""
    return (row.amount is not None, row.amount or 0, row.id)


def _micros(at: datetime | None) -> int:
    assert at is not None
    return (at - EPOCH) // timedelta(microseconds=1)
