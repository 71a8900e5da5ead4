"""Sessions, sliding windows and matches that are kept from where a change reaches."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from projections.definition.operators.measures import Measures
from projections.definition.operators.pattern import PatternQuery
from projections.definition.operators.time_bounds import of_pattern, of_window
from projections.definition.operators.windows import Session, Sliding, keys_of
from tests.integration.projections.incremental.test_pattern_matching import PATTERNS
from tests.oracles.event_rows import ABSURD, DDL, NIGHT, Row, declared
from tests.support.frames import frame_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from projections.definition.operators.time_bounds import Extent
    from projections.definition.operators.windows import Window
    from projections.incremental.spark.analysis import Derivation

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

OF_ALL = "sliding over all rows"
WINDOWS: dict[str, Window] = {
    "session": Session("at", "10 minutes"),
    "sliding": Sliding("at", "25 minutes"),
    OF_ALL: Sliding("at", "25 minutes"),
}
GROUPS = [None, *"abcdefghijkl"]
STEPS = 4


class Table:
    """Rows of many groups, of which some come, move and go at a time, mostly the last ones."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.rows: dict[int, Row] = {}
        for number in range(400):
            self.rows[number] = self._row(number, random.randrange(120))

    def change(self) -> list[Row]:
        """Changes some rows; returns them as they were and as they are."""
        draw = self._random
        before = dict(self.rows)
        for number in draw.sample(range(440), 14):
            if number in self.rows and draw.random() < 0.4:
                del self.rows[number]
            else:
                slot = draw.randrange(100, 124) if draw.random() < 0.7 else draw.randrange(120)
                self.rows[number] = self._row(number, slot)
        changed = [row for key, row in before.items() if self.rows.get(key) != row]
        return changed + [row for key, row in self.rows.items() if before.get(key) != row]

    def _row(self, number: int, slot: int) -> Row:
        draw = self._random
        # rows of one time are many, and of what lies just within and just beyond a width as well
        at = NIGHT + timedelta(minutes=5 * slot, microseconds=draw.choice([0, 0, 0, 1]))
        time = draw.choice([None, *ABSURD]) if draw.random() < 0.05 else at
        amount = draw.choice([None, 0, 1, 1, 5, 5, 9])
        # groups that lie close together, and others that have gaps
        who = GROUPS[min(int(draw.expovariate(0.4)), len(GROUPS) - 1)]
        return Row(number, who, amount, time, None)


def of_kind(spark: SparkSession, kind: str) -> tuple[Derivation, Extent]:
    from pyspark.sql.types import StructType

    from projections.incremental.spark.analysis import analyse
    from projections.incremental.spark.pattern_matching import matches_of

    if kind in WINDOWS:
        window, measures = WINDOWS[kind], Measures("n", sums={"total": "amount"})
        by = () if kind == OF_ALL else ("who",)
        text = window.select("events", by, measures, "coalesce(amount, 1) <> 0")
        extent = of_window(window, by)
        assert extent is not None
        return declared(spark, text, keys_of(window, by)), extent
    query = PatternQuery(PATTERNS[kind], ("who",), "at", ("id", "amount"))
    schema = {"events": StructType.fromDDL(DDL)}
    keys = ("who", "match_start", "match_number")
    view = analyse(spark, lambda frames: matches_of(frames["events"], query), schema, keys)
    return view, of_pattern(query)


class Stored:
    """A view's table."""

    def __init__(self, spark: SparkSession, view: Derivation, rows: Iterable[Any]) -> None:
        self._spark, self._view = spark, view
        self.rows = {self.key(row): tuple(row) for row in rows}

    def frame(self, like: DataFrame) -> DataFrame:
        return frame_of(self._spark, self.rows.values(), like.schema)

    def take(self, outcome: DataFrame) -> None:
        given = outcome.collect()
        assert len(given) == len({self.key(row) for row in given}), "a key is there twice"
        for row in given:
            if row["_deleted"]:
                self.rows.pop(self.key(row), None)
            else:
                self.rows[self.key(row)] = tuple(row)[:-1]

    def key(self, row: Any) -> Any:
        return tuple(row[name] for name in self._view.keys)


@pytest.mark.parametrize("kind", [*WINDOWS, *PATTERNS])
def test_what_is_kept_from_where_changes_reach_is_what_the_query_gives_over_all_rows(
    spark: SparkSession, kind: str
) -> None:
    from projections.incremental.spark.recompute_suffix import onward, touched

    view, extent = of_kind(spark, kind)
    random = Random(kind)  # noqa: S311  # chance that can be repeated
    table, unpublished = Table(random), list[Row]()
    every = view.definition({"events": frame_of(spark, table.rows.values(), DDL)})
    stored, there = Stored(spark, view, every.collect()), 0

    for step in range(STEPS):
        unpublished += table.change()
        rows = frame_of(spark, table.rows.values(), DDL)
        every = view.definition({"events": rows})
        before = stored.frame(every)
        few_max = random.choice([500, 0])  # groups as literals, or by a join
        groups = touched(extent, frame_of(spark, unpublished, DDL), before, few_max)
        stored.take(onward(view, extent, rows, groups, before))
        groups.release()
        if step != 1:  # at one boundary the job ends before it is published: it comes again
            unpublished = []
        wanted = {stored.key(row): tuple(row) for row in every.collect()}
        assert wanted == stored.rows
        there += len(wanted)

    assert there > STEPS


def test_where_nothing_with_a_time_has_changed_nothing_is_written(spark: SparkSession) -> None:
    from projections.incremental.spark.recompute_suffix import touched

    view, extent = of_kind(spark, OF_ALL)
    rows = frame_of(spark, [Row(1, "a", 1, NIGHT, None)], DDL)
    stored = view.definition({"events": rows})

    for changes in ([], [Row(2, "a", 1, None, None)]):
        assert 0 == touched(extent, frame_of(spark, changes, DDL), stored).count
