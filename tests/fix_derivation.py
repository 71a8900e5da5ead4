"""A Spark session within the tests' own process, for derived views; no server is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session set as that of a test's job, the only one of this process."""
    from headwater.runtime.java.jars import ensure
    from projections.job.spark.session import start_session
    from projections.planning.job_config import JobConfig
    from tests.fix_spark import UNCOMPILED

    home = tmp_path_factory.mktemp("spark")
    config = JobConfig.of_tables(
        "derivation",
        home,
        tuple(ensure("spark", progress=False)),
        driver_memory_mib=1_500,  # collecting garbage took an eighth of the time with half of it
        master="local[2]",
        conf={
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "1",
            **UNCOMPILED,
        },
    )
    session = start_session(config)
    gateway = session.sparkContext._gateway
    yield session
    session.stop()
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(60)
