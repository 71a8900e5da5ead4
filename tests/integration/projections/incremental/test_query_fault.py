"""Errors of Spark at the values of rows are reported and logged without the values."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

SECRET = "4111-secret"
FAILING = {
    "CAST(note AS INT)": "CAST_INVALID_INPUT in CAST(note AS INT)",
    "sum(CAST(note AS DOUBLE))": "CAST_INVALID_INPUT in CAST(note AS DOUBLE)",
    "to_timestamp(note, 'yyyy')": "CANNOT_PARSE_TIMESTAMP",
    "raise_error(note)": "USER_RAISED_EXCEPTION",
    "map_from_arrays(array(note, note), array(1, 2))": "DUPLICATED_MAP_KEY",
    "CAST(number AS DECIMAL(4, 1))": "NUMERIC_VALUE_OUT_OF_RANGE",
    "CAST(number AS TINYINT)": "CAST_OVERFLOW",
    "1 / (number - number)": "DIVIDE_BY_ZERO",
}

WITHOUT_HINT = {"USER_RAISED_EXCEPTION", "DUPLICATED_MAP_KEY"}


@pytest.mark.parametrize("expression", FAILING)
def test_an_error_at_a_row_is_named_without_its_value(spark: SparkSession, expression: str) -> None:
    from pyspark.errors import PySparkException

    from projections.incremental.spark.query_fault import query_fault

    rows = spark.createDataFrame([(SECRET, 41110000)], "note STRING, number BIGINT").repartition(2)

    with pytest.raises(PySparkException) as failed:
        rows.selectExpr(expression).collect()
    fault = query_fault("sales", failed.value)

    assert ("HW-P025", "view sales cannot be kept") == (fault.code, fault.message)
    assert (fault.detail or "").startswith(FAILING[expression])
    assert "4111" not in f"{fault.detail} {fault.hint}"
    assert (fault.hint is None) == (fault.detail in WITHOUT_HINT)


def test_an_error_of_a_function_is_named_by_its_class_and_place(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as fn

    from projections.incremental.spark.query_fault import query_fault

    rows = spark.createDataFrame([(SECRET,)], "note STRING")

    with pytest.raises(PySparkException) as failed:
        rows.select(fn.udf(int, "int", useArrow=False)(rows.note)).collect()
    fault = query_fault("sales", failed.value)

    assert (fault.detail or "").startswith("ValueError at ")
    assert "4111" not in f"{fault.detail} {fault.hint}"


LOGGED = """
import sys
from pathlib import Path
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn
from headwater.runtime.java.jars import ensure
from projections.job.spark.session import start_session
from projections.planning.job_config import JobConfig
secret, *expressions = sys.argv[2:]
config = JobConfig.of_tables(
    "s",
    Path(sys.argv[1]),
    tuple(ensure("spark", progress=False)),
    driver_memory_mib=500,
    master="local[1]",
)
spark = start_session(config)
rows = spark.createDataFrame([(secret, 41110000)], "note STRING, number BIGINT").repartition(2)
for column in (*map(fn.expr, expressions), fn.udf(int, "int", useArrow=False)(rows.note)):
    try:
        rows.select(column).collect()
    except PySparkException:
        print("failed")
"""


def test_the_log_of_the_jvm_has_no_value_of_a_row(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", LOGGED, str(tmp_path), SECRET, *FAILING],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert 1 + len(FAILING) == made.stdout.split().count("failed")
    assert "SparkNumberFormatException: [CAST_INVALID_INPUT] SQLSTATE: 22018" in made.stderr
    assert "at org.apache.spark" in made.stderr
    assert "ValueError" in made.stderr
    assert [] == [line for line in made.stderr.splitlines() if "4111" in line]
