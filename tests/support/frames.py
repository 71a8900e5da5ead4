"""Rows of a test as a frame that Spark plans for few rows, as it does changed rows of a job.

From a list, Spark makes an RDD of pickled rows, and converts them each time they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def frame_of(
    spark: SparkSession,
    rows: Iterable[Sequence[Any] | Mapping[str, Any]],
    schema: StructType | str,
) -> DataFrame:
    """Returns rows as a frame.

    Args:
        spark: The session.
        rows: Tuples in the order of the columns, or their values by name.
        schema: The columns, also as DDL.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    shape = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    assert isinstance(shape, StructType)
    named = [
        {
            name: _plain(row[name if isinstance(row, dict) else place])
            for place, name in enumerate(shape.names)
        }
        for row in rows
    ]
    table = pa.Table.from_pylist(named, to_arrow_schema(shape, timezone="UTC"))
    return spark.createDataFrame(table, shape)


def _plain(value: Any) -> Any:
    """Returns a value without Spark's rows, which are tuples."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.asDict(recursive=True) if hasattr(value, "asDict") else value
