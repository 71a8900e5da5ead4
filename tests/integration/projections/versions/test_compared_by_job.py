"""The job's Spark finds out whether two versions of a view have the same rows in their tables."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.diff import DefinitionChange, DefinitionChangeKind
from projections.definition.expectations.expectation import deletes
from projections.definition.views import Store
from projections.job import comparison, version_comparison
from projections.job.comparison import comparing_folder
from projections.planning.job_config import JobConfig
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.publishing.published_versions import Published
from projections.stores.delta import small_table, table_diff
from projections.stores.delta.sink import WarehouseSink
from projections.stores.delta.suspect_keys import SuspectKeys
from projections.versions import bulk_requests
from projections.versions.compare import VersionDifference, compare_versions
from tests.support.rebuild_server import server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TABLE = TableSchema(
    TableName("public", "orders"),
    (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        Column("status", ColumnKind.TEXT, "text"),
        Column("total", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
    ),
    ("id",),
)
OLD = ViewPlan("orders", "shop", "shop.public.orders", TABLE, ("id",), frozenset({Store.TABLE}))
NEW = replace(OLD, name="orders.v2", active=False)
PLACED = replace(NEW, expectations=(deletes("status = 'cancelled'"),))
HISTORY = replace(NEW, history=HistoryPlan(("status", "total")))
NOTHING = DefinitionChange(DefinitionChangeKind.NONE)
ROWS = DefinitionChange(DefinitionChangeKind.REBUILD, ("rows",), rows=True)
STATES = ("placed", "cancelled", None, "Ærø")
MANY = 100


def row(number: int, total: str = "1.00") -> dict[str, Any]:
    return {"id": number, "status": STATES[number % 4], "total": Decimal(total)}


def written(config: JobConfig, plan: ViewPlan, rows: Sequence[dict[str, Any]]) -> int:
    """Writes rows to a version's table, some at a time; returns the version of the table."""
    with closing(WarehouseSink(config.addresses.tables)) as sink:
        sink.prepare(plan)
        for first in range(0, len(rows), 25):
            some = enumerate(rows[first : first + 25], start=first + 1)
            sink.apply(plan, [RowChange((each["id"],), at, each, at * 1000) for at, each in some])
        return sink.version(plan)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobConfig:
    """A job that compares small tables, too."""
    monkeypatch.setattr(bulk_requests, "TASKS_MIN", 1)
    monkeypatch.setattr(comparison, "PIECE_ROWS", 40)
    monkeypatch.setattr(small_table, "ROWS_MAX", 0)  # each write adds a file
    return JobConfig.of_tables("shop", tmp_path / "home", (), rebuild_rows_min=1)


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> list[SuspectKeys]:
    """Has an element for each time that this process has read the tables."""
    made: list[SuspectKeys] = []

    def noted(*hashes: Any) -> SuspectKeys:
        made.append(SuspectKeys(*hashes))
        return made[-1]

    monkeypatch.setattr(table_diff, "SuspectKeys", noted)
    return made


def compared(config: JobConfig, new: ViewPlan, change: DefinitionChange) -> VersionDifference:
    connection: Any = None
    return compare_versions(connection, config, OLD, new, change)


def by_itself(config: JobConfig, new: ViewPlan, change: DefinitionChange) -> VersionDifference:
    return compared(replace(config, rebuild_rows_min=1_000_000), new, change)


@pytest.mark.parametrize(
    ("new", "change", "kept"),
    [
        pytest.param(NEW, NOTHING, lambda _: True, id="same definition"),
        pytest.param(PLACED, ROWS, lambda each: each["status"] != "cancelled", id="fewer rows"),
        pytest.param(HISTORY, ROWS, lambda _: True, id="history"),
    ],
)
def test_the_job_finds_what_the_process_finds_itself(  # noqa: PLR0913, PLR0917
    config: JobConfig,
    spark: SparkSession,
    read_here: list[SuspectKeys],
    new: ViewPlan,
    change: DefinitionChange,
    kept: Callable[[dict[str, Any]], bool],
) -> None:
    rows = [row(number) for number in range(MANY)]
    earlier = [row(number, "0.50") for number in range(25)] if new.history else []
    versions = {
        OLD.name: written(config, OLD, rows),
        new.name: written(config, new, [*earlier, *filter(kept, rows)]),
    }
    published = Published(config.addresses.tables, config.source)
    published.publish(1, 100, versions)
    with server(spark, config):
        equal = compared(config, new, change)
        assert [] == read_here
        assert by_itself(config, new, change) == equal
        assert equal.same

        with closing(WarehouseSink(config.addresses.tables)) as sink:
            changed = RowChange((50,), 9000, row(50, "2.00"), 9000)
            sink.apply(OLD, [changed, RowChange((MANY - 2,), 9001, None, 9001)])
            versions[OLD.name] = sink.version(OLD)
        published.publish(1, 101, versions)
        differing = compared(config, new, change)
        assert 2 == len(read_here)
        assert by_itself(config, new, change) == differing

    assert not differing.same
    assert (1, 1) == (differing.unexplained.changed, differing.unexplained.appeared)
    assert [] == list(comparing_folder(config).iterdir())


def test_versions_are_compared_without_a_job_that_cannot(
    config: JobConfig,
    spark: SparkSession,
    read_here: list[SuspectKeys],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [row(number) for number in range(30)]
    versions = {plan.name: written(config, plan, rows) for plan in (OLD, NEW)}
    Published(config.addresses.tables, config.source).publish(1, 100, versions)
    with server(spark, config):
        monkeypatch.setattr(version_comparison, "plain", lambda _: False)
        assert compared(config, NEW, NOTHING).same
        assert 1 == len(read_here)

    assert compared(config, NEW, NOTHING).same
    assert 2 == len(read_here)
