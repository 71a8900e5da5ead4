"""The difference between a whole result and the stored rows, and keys that several rows have."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from projections.definition.columns import DELETED_FIELD
from projections.definition.operators.measures import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

ROW: Final = "_headwater_row"
STORED: Final = "_headwater_stored"
EQUAL: Final = "_headwater_equal"
IS: Final = "_headwater_is_"
WAS: Final = "_headwater_was_"
COUNT: Final = "_headwater_count"


def differences(result: DataFrame, stored: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Describes the rows to write so that a stored view equals its query's result.

    Args:
        result: The present result of the query.
        stored: The stored rows, with at least the result's columns, of the same types.
        keys: Columns that identify a row; NULL is an ordinary value.

    Returns:
        The view's columns, and `_deleted`: a row to upsert, or the keys of a row to delete. Rows
        that are stored correctly are omitted.
    """
    columns = result.columns
    pairs = pairs_of(result, stored, keys)
    gone = fn.col(ROW).isNull()
    return pairs.where(~fn.col(EQUAL)).select(
        *(
            fn.when(gone, fn.col(quoted(f"{WAS}{name}"))).otherwise(fn.col(ROW)[name]).alias(name)
            if name in keys
            else fn.col(ROW)[name].alias(name)
            for name in columns
        ),
        gone.alias(DELETED_FIELD),
    )


def pairs_of(result: DataFrame, stored: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Returns each row of a result beside the stored row of its key, and whether they are equal."""
    columns = result.columns
    row = fn.struct(*map(quoted, columns))
    now = result.select(*(fn.col(quoted(n)).alias(f"{IS}{n}") for n in keys), row.alias(ROW))
    was = stored.select(*(fn.col(quoted(n)).alias(f"{WAS}{n}") for n in keys), row.alias(STORED))
    same_key = reduce(
        and_,
        (fn.col(quoted(f"{IS}{n}")).eqNullSafe(fn.col(quoted(f"{WAS}{n}"))) for n in keys),
    )
    equal: Column = fn.col(ROW).isNotNull() & fn.col(STORED).isNotNull()
    for field in result.schema:
        equal &= alike(field)
    return now.join(was, same_key, "full_outer").withColumn(EQUAL, equal)


def doubled_keys(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Returns the keys that several rows have, and in `COUNT` how many."""
    counted = rows.groupBy(*map(quoted, keys)).agg(fn.count("*").alias(COUNT))
    return counted.where(fn.col(COUNT) > 1)


def alike(field: StructField) -> Column:
    """Returns the condition that both rows of a pair have the same value in a column."""
    is_, was_ = (_comparable(fn.col(side)[field.name], field.dataType) for side in (ROW, STORED))
    return is_.eqNullSafe(was_)


def _comparable(value: Column, kind: DataType) -> Column:
    """Converts maps to lists in key order: Spark cannot compare maps."""
    if not _has_map(kind):
        return value
    if isinstance(kind, MapType):
        inner = fn.transform_values(value, lambda _, each: _comparable(each, kind.valueType))
        return fn.array_sort(fn.map_entries(inner))
    if isinstance(kind, ArrayType):
        return fn.transform(value, lambda each: _comparable(each, kind.elementType))
    assert isinstance(kind, StructType)  # noqa: S101  # nothing else holds a map
    parts = (_comparable(value[f.name], f.dataType).alias(f.name) for f in kind)
    return fn.when(value.isNotNull(), fn.struct(*parts))


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return True
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, StructType) and any(_has_map(field.dataType) for field in kind)
