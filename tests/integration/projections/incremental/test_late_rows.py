"""Rows that come late: left out of windows, counted, and kept beside with the reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from projections.definition.operators.lateness import Late, untimed_rows
from projections.definition.operators.time_bounds import span_of
from projections.definition.operators.windows import (
    keys_of,
)
from tests.oracles.event_rows import ABSURD, NIGHT, Kept, Row, World, declared, utc
from tests.oracles.event_windows import (
    ALL,
    OF_FRAMES,
    SEEDS,
    WINDOWS,
    by_window,
    chance,
    few_max_of,
    measured,
    windowed,
    windows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]


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
