"""The page's windows over a history keep what the source purged, and lose what it took back."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from cdc.table import Column, ColumnKind, TableName, TableSchema
from headwater.reading import sql
from projections.changes.row_change import RowChange
from projections.definition.registry import load
from projections.definition.views import Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.publishing.published_versions import Published
from projections.stores.delta.history.sink import HistorySink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "time.md"
BEFORE = """
from headwater import Calendar, source, view

web = source("web", tables=["public.searches"])
"""
SEARCHES = TableSchema(
    TableName("public", "searches"),
    (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        Column("person", ColumnKind.INTEGER, "bigint"),
        Column("term", ColumnKind.TEXT, "text"),
        Column("at", ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
    ),
    ("id",),
)
PLAN = ViewPlan(
    *("searches_history", "web", "web.public.searches", SEARCHES, ("id",)),
    frozenset([Store.TABLE]),
    history=HistoryPlan(("person", "term", "at")),
)
NOON, DAY = datetime(2026, 1, 10, 12, tzinfo=UTC), timedelta(days=1)


class Web:
    """A table whose history the real sink keeps, and the page's views of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        from projections.job.spark.session import session_of_batches
        from projections.job.tasks.derived_tables import DerivedTablesTask

        blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        (declared,) = (block for block in blocks if '"searches_ever"' in block)
        (folder / "views.py").write_text(BEFORE + declared)
        spec = JobSpec(JobConfig.of_tables("web", folder, ()))
        spec = replace(spec, derived=tuple(load(folder / "views.py").derived.values()))
        self.tables = spec.config.addresses.tables
        self._deriver = DerivedTablesTask(spark, session_of_batches(spark), spec)
        self._history, self._published = HistorySink(self.tables), Published(self.tables, "web")
        self._history.prepare(PLAN)
        self._versions = count(1 << 56 | 100, 8)

    def put(self, number: int, at: datetime, committed: datetime) -> None:
        self._apply(number, {"id": number, "person": 7, "term": "chair", "at": at}, committed)

    def remove(self, number: int, committed: datetime) -> None:
        self._apply(number, None, committed)

    def _apply(self, number: int, row: dict[str, object] | None, committed: datetime) -> None:
        at_us = (committed - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        self._history.apply(PLAN, [RowChange((number,), next(self._versions), row, at_us)])

    def per_day(self) -> dict[datetime, int]:
        """Has the views follow; returns how many searches each day has."""
        place = PLAN.name
        versions = {place: DeltaTable(str(self.tables / place)).version()}
        version = self._published.publish(1, next(self._versions), versions, complete=False)
        assert version is not None
        self._published.complete(version, self._deriver.derived(version))
        assert {} == self._deriver.faults
        kept = {
            maintainer.explanation and maintainer.explanation.strategy
            for maintainer in self._deriver.maintainers
        }
        assert {"keyed"} == kept
        rows = sql.run("SELECT * FROM searches_ever_per_day", self.tables).to_pylist()
        return {row["window_start"] + DAY / 2: row["searches"] for row in rows}


def test_a_purge_leaves_windows_as_they_are_and_a_correction_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    web = Web(spark, tmp_path)
    for number in (1, 2, 3, 4):
        web.put(number, NOON, NOON)
    web.put(5, NOON + 40 * DAY, NOON + 40 * DAY)
    assert {NOON: 4, NOON + 40 * DAY: 1} == web.per_day()

    web.put(2, NOON + DAY, NOON + DAY)  # it was a day later
    web.remove(3, NOON + 2 * DAY)  # it was none
    web.remove(4, NOON + 30 * DAY)
    assert {NOON: 2, NOON + DAY: 1, NOON + 40 * DAY: 1} == web.per_day()

    for number in (1, 2):
        web.remove(number, NOON + 41 * DAY)
    assert {NOON: 2, NOON + DAY: 1, NOON + 40 * DAY: 1} == web.per_day()

    web.put(1, NOON + 2 * DAY, NOON + 42 * DAY)  # its key is another row's
    web.remove(5, NOON + 42 * DAY)
    assert {NOON: 1, NOON + DAY: 1, NOON + 2 * DAY: 1} == web.per_day()
