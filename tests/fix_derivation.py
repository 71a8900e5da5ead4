"""A Spark session within the tests' own process, for derived views; no server is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fix_spark import UNCOMPILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from projections.archive.rebuilding.tasks import TaskRunner

FEW_ROWS = {"spark.sql.shuffle.partitions": "1", **UNCOMPILED}
"""For sessions within the tests' process. A command that joins one gives it settings of its own."""


@pytest.fixture(scope="session")
def process_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The only session of this process, with a heap for the tests of all its files."""
    from headwater.runtime.java.jars import ensure
    from projections.job.spark.session import start_session
    from projections.planning.job_config import JobConfig

    home = tmp_path_factory.mktemp("spark")
    config = JobConfig.of_tables(
        "derivation",
        home,
        tuple(ensure("spark", progress=False)),
        driver_memory_mib=1_500,  # collecting garbage took an eighth of the time with half of it
        master="local[2]",
        conf={"spark.log.level": "ERROR", **FEW_ROWS},
    )
    session = start_session(config)
    gateway = session.sparkContext._gateway
    yield session
    session.stop()
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(60)


@pytest.fixture(scope="module")
def spark(process_session: SparkSession) -> SparkSession:
    """A session set as that of a test's job, whatever a module before has set in it."""
    for name, value in FEW_ROWS.items():
        process_session.conf.set(name, value)
    return process_session


@pytest.fixture(params=["own", "spark"])
def tasks(request: pytest.FixtureRequest) -> TaskRunner:
    """What runs the tasks of a rebuild: this process, or Spark."""
    from projections.archive.rebuilding.own_tasks import OwnTasks
    from projections.job.spark_tasks import SparkTasks

    return OwnTasks() if request.param == "own" else SparkTasks(request.getfixturevalue("spark"))
