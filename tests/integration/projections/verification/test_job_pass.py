"""The job's Spark finds the keys of a mirror that differ, as the verifying process would itself."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.lsn import Lsn
from cdc.snapshot import ranges
from projections.common.throttle import Throttle
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.views import Store
from projections.errors import ReplayStoppedError
from projections.job import comparison, spark_tasks
from projections.job.comparison import TableComparison, comparing_folder
from projections.job.spark.task_runs import TaskRuns
from projections.stores.delta import small_table
from projections.verification import job_pass
from projections.verification.job_pass import JobPass
from projections.verification.verify import verify
from projections.versions import bulk_requests
from projections.versions.bulk_requests import BulkRequests, compared_place
from tests.support.rebuild_server import server
from tests.support.wide_table import (
    KEYS,
    RULES,
    UNHOLDABLE,
    WIDE,
    damage,
    fill,
    make,
    spec_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from projections.planning.job_spec import JobSpec
    from projections.verification.report import ViewReport

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = 120


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a small table compared in many ranges, pieces and parts."""
    monkeypatch.setattr(ranges, "RANGE_ROWS", 10)
    monkeypatch.setattr(comparison, "PIECE_ROWS", 40)
    monkeypatch.setattr(bulk_requests, "TASKS_MIN", 1)


@pytest.fixture
def by_job(monkeypatch: pytest.MonkeyPatch) -> list[JobPass]:
    """The passes by the job that were made."""
    made: list[JobPass] = []

    def kept(*args: Any) -> JobPass:
        made.append(JobPass(*args))
        return made[-1]

    monkeypatch.setattr(job_pass, "JobPass", kept)
    return made


def wide(
    connection: psycopg.Connection[Any], database: str, home: Path, keys: str, draw: random.Random
) -> JobSpec:
    """A table with many blocks, its view, and a job that compares small tables, too."""
    rules = {WIDE: RULES[WIDE]} if keys == "part, id" else None
    plan = make(connection, keys, draw, ROWS, rules, fillfactor=10)
    connection.execute("ANALYZE wide")
    spec = spec_of(database, plan, home)
    return replace(spec, config=replace(spec.config, rebuild_rows_min=1))


def compared(spec: JobSpec) -> ViewReport:
    (report,) = verify(spec, resting=True)
    return replace(report, verified_through=report.verified_through and Lsn(1))


def by_itself(spec: JobSpec) -> ViewReport:
    return compared(replace(spec, config=replace(spec.config, rebuild_rows_min=1_000_000)))


def left_behind(spec: JobSpec) -> list[str]:
    folder = spec.config.checkpoint(Store.TABLE).parent / ".rebuilds"
    files = comparing_folder(spec.config)
    there = [path.name for path in folder.iterdir() if path.is_dir()]
    return there + ([path.name for path in files.iterdir()] if files.exists() else [])


@pytest.mark.parametrize("keys", [KEYS[0], KEYS[1], KEYS[2], KEYS[-1]])
def test_the_job_finds_what_the_process_finds_itself(
    database: str, tmp_path: Path, spark: SparkSession, by_job: list[JobPass], keys: str
) -> None:
    draw = random.Random(keys)  # noqa: S311
    with psycopg.connect(database, autocommit=True) as connection:
        spec = wide(connection, database, tmp_path, keys, draw)
        (plan,) = spec.plans
        expectation = Expectation("positive", "small >= 0", OnFail.DROP)
        plan = replace(plan, expectations=(expectation,))
        spec = replace(spec, plans=(plan,))
        changes = fill(spec)
        with server(spark, spec.config):
            equal = compared(spec)
            assert by_itself(spec) == equal
            damage(connection, spec, draw, changes)
            differing = compared(spec)
            assert by_itself(spec) == differing
            assert [] == left_behind(spec)

    assert (True, True) == (equal.equal, equal.withheld > 10)
    assert min(differing.missing, differing.different, differing.extra) >= 3
    first, second = by_job
    assert ([], 0) == (first.suspects, first._otherwise.rows)
    assert (True, 0) == (len(second.suspects) > 10, second._otherwise.rows)


def test_ranges_pieces_and_parts_are_shared_by_tasks(
    database: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(1)  # noqa: S311
    runs: list[tuple[int, int]] = []
    numbers = TaskRuns.numbers

    def noted(self: TaskRuns, pieces: int, tasks: int) -> DataFrame:
        runs.append((pieces, tasks))
        return numbers(self, pieces, tasks)

    monkeypatch.setattr(TaskRuns, "numbers", noted)
    monkeypatch.setattr(spark_tasks, "tasks_at_once", lambda *_: 3)
    monkeypatch.setattr(small_table, "ROWS_MAX", 0)  # each write adds a file
    with psycopg.connect(database, autocommit=True) as connection:
        spec = wide(connection, database, tmp_path, "part, id", draw)
        fill(spec, 40)
        (plan,) = spec.plans
        found = TableComparison(spark, spec.config).compared(plan, ROWS, lambda: None)

    assert (ROWS, 0, []) == (found.rows, found.withheld, found.keys)
    (ranges_read, connections), *others = runs
    assert (True, 2) == (ranges_read > 3, connections)  # no more than the source may have
    assert [(3, 3), (4, 3)] == others  # pieces of the table, and parts of both sides


@pytest.mark.parametrize("change", [*UNHOLDABLE[:2], "total = 77"])
def test_what_the_job_cannot_compare_is_compared_by_the_process(  # noqa: PLR0913, PLR0917
    database: str,
    tmp_path: Path,
    spark: SparkSession,
    by_job: list[JobPass],
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    """Values that no table has, and more keys that differ than the driver takes."""
    monkeypatch.setattr(comparison, "KEYS_MAX", 20)
    draw = random.Random(change)  # noqa: S311
    too_many = change == "total = 77"
    which = "true" if too_many else "id = 60"
    with psycopg.connect(database, autocommit=True) as connection:
        spec = wide(connection, database, tmp_path, "id", draw)
        fill(spec)
        connection.execute(f"UPDATE wide SET {change} WHERE {which}".encode())  # noqa: S608
        with server(spark, spec.config):
            report = compared(spec)
            assert by_itself(spec) == report
            assert [] == left_behind(spec)

    assert (ROWS if too_many else 1) == report.different + report.missing
    found = [(each._otherwise.rows, each.unsuited) for each in by_job]
    assert [(ROWS, False) if too_many else (0, True)] == found


def test_a_verification_with_a_budget_and_one_beside_another_need_no_job(
    database: str, tmp_path: Path, spark: SparkSession, by_job: list[JobPass]
) -> None:
    draw = random.Random(2)  # noqa: S311
    with psycopg.connect(database, autocommit=True) as connection:
        spec = wide(connection, database, tmp_path, "id", draw)
        (plan,) = spec.plans
        fill(spec)
        with server(spark, spec.config):
            (limited,) = verify(spec, resting=True, throttle=Throttle(0.9))
            assert [] == by_job
            with BulkRequests(spec.config).asking(compared_place(plan.name)):
                beside = compared(spec)

    assert (True, True) == (limited.equal, beside.equal)
    assert [ROWS] == [each._otherwise.rows for each in by_job]


def test_a_comparison_that_is_given_up_leaves_nothing_behind(
    database: str, tmp_path: Path, spark: SparkSession
) -> None:
    draw = random.Random(3)  # noqa: S311

    def given_up() -> None:
        raise ReplayStoppedError("given up")

    with psycopg.connect(database, autocommit=True) as connection:
        spec = wide(connection, database, tmp_path, "id", draw)
        (plan,) = spec.plans
        fill(spec)
        with pytest.raises(ReplayStoppedError):
            TableComparison(spark, spec.config).compared(plan, ROWS, given_up)

    assert [] == list(comparing_folder(spec.config).iterdir())
