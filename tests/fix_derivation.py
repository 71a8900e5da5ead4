"""A Spark session within the tests' own process, for derived views; no server is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--derivation-seeds",
        type=int,
        default=16,
        help="how many random derived views are kept through random changes",
    )
    parser.addoption(
        "--derivation-first-seed",
        type=int,
        default=0,
        help="the first of those seeds",
    )


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session set as that of a test's job."""
    from headwater.supply.jars import ensure
    from projections.spark.session import start_session
    from projections.spec import JobSpec
    from tests.fix_spark import UNCOMPILED

    home = tmp_path_factory.mktemp("spark")
    spec = JobSpec.of_tables(
        "derivation",
        home,
        tuple(ensure("spark", progress=False)),
        driver_memory_mib=700,
        master="local[2]",
        conf={
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "1",
            **UNCOMPILED,
        },
    )
    session = start_session(spec)
    context = session.sparkContext
    gateway = context._gateway
    yield session
    session.stop()
    # the JVM ends with the module: it would keep its memory beside all later tests
    process = gateway.proc
    gateway.shutdown()
    type(context)._gateway = None
    type(context)._jvm = None
    process.stdin.close()
    process.wait(60)
