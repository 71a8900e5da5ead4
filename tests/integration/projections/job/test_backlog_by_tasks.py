"""A large batch of the tables' query is read by several tasks, and written in its order."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from cdc.broker.topics import topics
from cdc.broker.topics.topics import TopicSpec
from cdc.values import UNCHANGED_PLACEHOLDER
from projections.common.task_files import TaskFiles
from projections.job import backlog_tasks, streaming_query
from projections.job.backlog_reader import BacklogReader
from projections.job.backlog_tasks import BacklogTasks
from projections.job.stored_runs import StoredRuns
from tests.fix_log import TOPIC, envelope, orders
from tests.support.table_batches import OF_TABLE, config_of_tables
from tests.support.tables_query import TablesQuery, send

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from projections.job.stored_runs import StoredRun
    from projections.planning.job_config import JobConfig

pytestmark = [pytest.mark.integration, pytest.mark.spark]

RECORDS, PIECE, TASKS = 100, 20, 2


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[StoredRun, ...]]:
    """The runs of each batch that tasks have read; batches are large from some records on."""
    seen: list[tuple[StoredRun, ...]] = []

    def noted(folder: Path, runs: tuple[StoredRun, ...]) -> StoredRuns:
        seen.append(runs)
        return StoredRuns(folder, runs)

    monkeypatch.setattr(backlog_tasks, "StoredRuns", noted)
    monkeypatch.setattr(backlog_tasks, "LARGE_RECORDS", PIECE)
    monkeypatch.setattr(backlog_tasks, "PIECE_RECORDS", PIECE)
    monkeypatch.setattr(streaming_query, "PIECE_RECORDS", PIECE)
    monkeypatch.setattr(backlog_tasks, "tasks_at_once", lambda _: TASKS)
    monkeypatch.setattr(backlog_tasks, "TASKS_MIN", TASKS)
    return seen


@pytest.fixture
def config(kafka_bootstrap: str, tmp_path: Path) -> Iterator[JobConfig]:
    topics.ensure(kafka_bootstrap, [TopicSpec(TOPIC)])
    yield replace(config_of_tables(tmp_path), bootstrap=kafka_bootstrap)
    topics.delete(kafka_bootstrap, [TOPIC])


def test_tasks_read_the_pieces_of_one_partition_and_the_tables_have_the_newest_rows(
    spark: SparkSession, config: JobConfig, stored: list[tuple[StoredRun, ...]]
) -> None:
    send(config.bootstrap, TOPIC, orders(RECORDS))
    query = TablesQuery(spark, config, OF_TABLE)

    query.run()

    (runs,) = stored
    assert TASKS == len({run.file for run in runs})
    assert list(range(0, RECORDS, PIECE)) == sorted(run.offset for run in runs)
    assert [{"id": n % 7, "note": f"n{n}", "big": "b"} for n in (98, 99, 93, 94, 95, 96, 97)] == (
        query.rows()
    )
    assert [(RECORDS, RECORDS)] == [(each["records"], each["applied"]) for (each,) in query.batches]
    assert [] == list(BacklogTasks.of(config.addresses.tables, config.source).folder.iterdir())


def test_a_batch_whose_records_have_to_wait_is_written_from_its_records(
    spark: SparkSession, config: JobConfig, stored: list[tuple[StoredRun, ...]]
) -> None:
    first, *later = orders(RECORDS)
    lacking = {"id": 0, "note": "n0", "big": UNCHANGED_PLACEHOLDER}
    others = [record for record in later if record.key != first.key]
    send(config.bootstrap, TOPIC, [first._replace(value=envelope("u", 0x1000, lacking)), *others])
    query = TablesQuery(spark, config, OF_TABLE)

    query.run()

    assert 1 == len(stored)
    # a batch of so few records waits for a boundary, once it is written from its records
    assert [[]] == query.batches
    assert 1 + len(others) == query.waiting()


def test_a_batch_without_its_folder_fails_and_is_written_by_the_next_query(
    spark: SparkSession,
    config: JobConfig,
    stored: list[tuple[StoredRun, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send(config.bootstrap, TOPIC, orders(RECORDS))
    query = TablesQuery(spark, config, OF_TABLE)
    left = BacklogTasks.of(config.addresses.tables, config.source).folder / "left" / "file"
    left.parent.mkdir(parents=True)
    left.touch()

    with monkeypatch.context() as patch:
        patch.setattr(TaskFiles, "made", lambda parent: TaskFiles(parent / "elsewhere"))
        with pytest.raises(Exception, match="HW-P103"):
            query.run()
    assert not left.exists()
    assert [] == stored
    assert [] == query.rows()
    query.run()

    assert 7 == len(query.rows())
    assert 1 == len(stored)


def test_a_batch_whose_reading_task_is_killed_is_written_by_the_next_query(
    spark: SparkSession,
    config: JobConfig,
    stored: list[tuple[StoredRun, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark.errors import StreamingQueryException

    send(config.bootstrap, TOPIC, orders(RECORDS))
    query = TablesQuery(spark, config, OF_TABLE)

    class KilledReader(BacklogReader):  # sent to workers by value, as it is local
        def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import os
            import signal

            next(iter(batches))
            with self.files.joined():
                os.kill(os.getpid(), signal.SIGKILL)
            yield from ()

    with monkeypatch.context() as patch:
        patch.setattr(backlog_tasks, "BacklogReader", KilledReader)
        with pytest.raises(StreamingQueryException):
            query.run()
    assert ([], [], []) == (stored, query.batches, query.rows())
    query.run()

    assert 7 == len(query.rows())
    assert [RECORDS] == [each["records"] for (each,) in query.batches]
    assert [] == list(BacklogTasks.of(config.addresses.tables, config.source).folder.iterdir())


@pytest.mark.parametrize("executors", [0, 1, 3])
def test_one_task_takes_the_pieces_of_a_partition_in_their_order(
    spark: SparkSession, executors: int
) -> None:
    """Spark's source of Kafka asks for an executor for each piece, or for none if there are none.

    Spark does not promise that order; another kind of coalescing would lose it.
    """
    context: Any = spark.sparkContext
    jvm, chance = context._jvm, Random(executors)  # noqa: S311  # no secret

    def scala(items: Iterable[Any]) -> Any:
        made = jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return jvm.scala.jdk.javaapi.CollectionConverters.asScala(made).toSeq()

    hosts = [f"executor {n}" for n in range(executors)]
    places = [[chance.choice(hosts)] if hosts else [] for _ in range(RECORDS)]
    located = [jvm.scala.Tuple2(n, scala(place)) for n, place in enumerate(places)]
    pieces = context._jsc.sc().makeRDD(scala(located), jvm.scala.reflect.ClassTag.Any())

    assert list(range(RECORDS)) == list(pieces.toJavaRDD().coalesce(1).collect())


def test_a_small_batch_is_read_by_the_task_that_writes_it(
    spark: SparkSession, config: JobConfig, stored: list[tuple[StoredRun, ...]]
) -> None:
    send(config.bootstrap, TOPIC, orders(PIECE))
    query = TablesQuery(spark, config, OF_TABLE)

    query.run()

    assert [] == stored
    assert PIECE == query.waiting()
