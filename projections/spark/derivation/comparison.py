"""A whole result beside what is stored, and keys that do not identify their rows."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from projections.derivation.errors import DuplicateKeyError
from projections.search.fields import DELETED_FIELD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

_ROW: Final = "_headwater_row"
_STORED: Final = "_headwater_stored"


def differences(result: DataFrame, stored: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Describes what makes a stored view equal to its query's result.

    Args:
        result: What the query gives now.
        stored: What is stored, with at least the result's columns, of the same types.
        keys: Columns that identify a row, NULL being a value like any other.

    Returns:
        The view's columns, and `_deleted`: a row is an upsert, or of a deleted one the keys alone.
        Rows that are stored as they should be are left out, but for those with maps, which Spark
        cannot compare.
    """
    columns = result.columns
    row = fn.struct(*columns)
    now = result.select(*(fn.col(n).alias(f"_is_{n}") for n in keys), row.alias(_ROW))
    was = stored.select(*(fn.col(n).alias(f"_was_{n}") for n in keys), row.alias(_STORED))
    same_key = reduce(and_, (fn.col(f"_is_{n}").eqNullSafe(fn.col(f"_was_{n}")) for n in keys))
    gone = fn.col(_ROW).isNull()
    comparable = [field.name for field in result.schema if not _has_map(field.dataType)]
    equal: Column = fn.col(_ROW).isNotNull() & fn.col(_STORED).isNotNull()
    if len(comparable) < len(columns):
        equal = fn.lit(False)
    for name in comparable:
        equal &= fn.col(_ROW)[name].eqNullSafe(fn.col(_STORED)[name])
    return (
        now.join(was, same_key, "full_outer")
        .where(~equal)
        .select(
            *(
                fn.when(gone, fn.col(f"_was_{name}")).otherwise(fn.col(_ROW)[name]).alias(name)
                if name in keys
                else fn.col(_ROW)[name].alias(name)
                for name in columns
            ),
            gone.alias(DELETED_FIELD),
        )
    )


def require_unique(rows: DataFrame, keys: Sequence[str], view: str) -> None:
    """Refuses rows of which two have one key; looks at all of them, in one Spark job.

    Args:
        rows: Rows of a view, whole or for some keys.
        keys: Columns that identify a row.
        view: The view, for the message.

    Raises:
        DuplicateKeyError: Two rows have one key, or more.
    """
    copies = rows.groupBy(*keys).agg(fn.count("*").alias("copies")).where("copies > 1")
    found = copies.select(*(fn.col(name).cast("string") for name in keys), "copies").head()
    if found is None:
        return
    *example, count = found
    raise DuplicateKeyError(
        f"the key of the view {view} does not identify its rows",
        detail=f"keys: {', '.join(keys)}; one of them has {count} rows",
        hint="add columns to keys, or group or filter the query until there is one row for each",
        example=tuple("NULL" if value is None else str(value) for value in example),
    )


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return True
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, StructType) and any(_has_map(field.dataType) for field in kind)
