"""Rows with times of their own, that come late, change and go; and views kept through that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.frames import frame_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from projections.definition.operators.time_bounds import Extent, Span
    from projections.incremental.spark.analysis import Derivation

DDL = "id int, who string, amount int, at timestamp, came timestamp"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# what databases write for no time at all; a minute of the first would end in year 10000
ABSURD = (
    datetime(9999, 12, 31, 23, 59, 30, tzinfo=UTC),
    datetime(9999, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
)
# about the night in which clocks go back: there the day has 25 hours
NIGHT = datetime(2026, 10, 24, 20, tzinfo=UTC)


class Row(NamedTuple):
    id: int
    who: str | None
    amount: int | None
    at: datetime | None
    came: datetime | None


class World:
    """A table whose rows come in any order, change their time and group, and go."""

    def __init__(self, random: Random, minutes: int = 600, *, absurd: bool = False) -> None:
        self._random, self._minutes, self._absurd = random, minutes, absurd
        # of their own: what else the rows have does not depend on when they come
        self._delays = Random(minutes)  # noqa: S311  # chance that is repeated
        self.rows: dict[int, Row] = {}
        for _ in range(12):
            self.put()

    def put(self) -> None:
        number = self._random.randint(1, 16)
        minutes = self._random.choice([None, *range(0, self._minutes, 15)])
        at = None if minutes is None else NIGHT + timedelta(minutes=minutes)
        if self._absurd and self._random.random() < 0.2:
            at = self._random.choice([None, *ABSURD])
        who = self._random.choice([None, "p", "q"])
        amount = self._random.choice([None, 0, 1, 5, 9])
        delay = self._delays.choice([None, -90, -30, 10, 30, 45, 60, 75, 80, 110, 125, 1500])
        since = NIGHT if at is None or at in ABSURD else at
        came = None if delay is None else since + timedelta(minutes=delay)
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

    from projections.incremental.spark.analysis import analyse
    from projections.incremental.spark.sql_query import definition_of_sql

    schema = StructType.fromDDL(DDL)
    return analyse(spark, definition_of_sql(spark, text), {"events": schema}, keys)


class Kept:
    """The rows of a view, kept through changes as a job keeps them."""

    def __init__(
        self,
        spark: SparkSession,
        view: Derivation,
        world: World,
        extent: Extent | None = None,
        span: Span | None = None,
    ) -> None:
        from projections.incremental.analysis.strategy import Keyed

        assert extent or isinstance(view.strategy, Keyed), view.explain()
        self._spark, self._view, self._world = spark, view, world
        self._extent, self._span = extent, span
        self.rows: dict[Any, dict[str, Any]] = {}

    def changed(self, few_max: int = 500) -> Iterator[list[Row]]:
        """Yields the rows of the table, at first and after each of some changes."""
        view, after = self._view, self._frames(self._world.rows.values())
        self._take(row.asDict() for row in view.definition(after).collect())
        yield list(self._world.rows.values())
        for _ in range(3):
            before, changes = after, self._frames(self._world.change())
            after = self._frames(self._world.rows.values())
            outcomes = self._outcomes(changes, before, after, few_max)
            found = [row.asDict() for row in outcomes.collect()]
            left = [row.pop("_deleted") is False for row in found]
            for row in (row for row, stays in zip(found, left, strict=True) if not stays):
                self.rows.pop(self._key(row), None)
            self._take(row for row, stays in zip(found, left, strict=True) if stays)
            yield list(self._world.rows.values())

    def _outcomes(
        self,
        changes: dict[str, DataFrame],
        before: dict[str, DataFrame],
        after: dict[str, DataFrame],
        few_max: int,
    ) -> DataFrame:
        from projections.incremental.spark.affected_keys import gathered
        from projections.incremental.spark.recompute_keys import affected, outcome, within
        from projections.incremental.spark.recompute_suffix import onward, touched

        view, extent = self._view, self._extent
        schema = view.definition(after).schema
        stored = frame_of(self._spark, self.rows.values(), schema)
        if extent is not None:
            groups = touched(extent, changes["events"], stored, few_max)
            return onward(view, extent, after["events"], groups, stored)
        keys = gathered(self._spark, affected(view, changes, before, after), few_max=few_max)
        read = within(self._span, view, after, keys)
        return outcome(view, read, keys, lambda: stored)

    def frames(self) -> dict[str, DataFrame]:
        """The table as it is now."""
        return self._frames(self._world.rows.values())

    def _frames(self, rows: Iterable[Row]) -> dict[str, DataFrame]:
        return {"events": frame_of(self._spark, rows, DDL)}

    def _take(self, rows: Iterable[dict[str, Any]]) -> None:
        given = list(rows)
        taken = {self._key(row): row for row in given}
        assert len(given) == len(taken), "a key is not unique"
        self.rows |= taken

    def _key(self, row: dict[str, Any]) -> Any:
        return tuple(row[name] for name in self._view.keys)


def utc(at: datetime) -> datetime:
    return at.astimezone(UTC)
