"""Windows and matches are what plain Python makes of rows, however late they come, or change."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta, tzinfo
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from projections.definition.derived import heavy_hitters, lagged
from projections.definition.operators.measures import Approximate, Measures
from projections.definition.operators.pattern import Pattern, PatternQuery, Step
from projections.definition.operators.time_bounds import of_window, span_of
from projections.definition.operators.windows import (
    Tumbling,
    keys_of,
)
from projections.errors import ProjectionError
from projections.incremental.patterns.index import WorkBudget
from projections.incremental.patterns.search import GroupRows, matches
from tests.oracles.event_rows import ABSURD, DDL, EPOCH, Kept, Row, World, declared, utc
from tests.oracles.event_windows import (
    ALL,
    OF_FRAMES,
    SEEDS,
    STOCKHOLM,
    WINDOWS,
    by_window,
    chance,
    few_max_of,
    windowed,
    windows,
)
from tests.support.frames import frame_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from zoneinfo import ZoneInfo

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]


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
    found = view.definition({"events": frame_of(spark, rows, DDL)}).collect()
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
        for match in matches(PATTERN, seen, WorkBudget(100_000, ProjectionError("too much"))):
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
