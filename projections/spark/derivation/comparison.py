"""A whole result beside what is stored, and keys that do not identify their rows."""

from __future__ import annotations

from functools import reduce
from itertools import zip_longest
from operator import and_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from projections.definition.columns import DELETED_FIELD
from projections.derivation.errors import DuplicateKeyError
from projections.view_report import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

_ROW: Final = "_headwater_row"
_STORED: Final = "_headwater_stored"
_EQUAL: Final = "_headwater_equal"


def differences(result: DataFrame, stored: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Describes what makes a stored view equal to its query's result.

    Args:
        result: What the query gives now.
        stored: What is stored, with at least the result's columns, of the same types.
        keys: Columns that identify a row, NULL being a value like any other.

    Returns:
        The view's columns, and `_deleted`: a row is an upsert, or of a deleted one the keys alone.
        Rows that are stored as they should be are left out.
    """
    columns = result.columns
    pairs = _pairs(result, stored, keys)
    gone = fn.col(_ROW).isNull()
    return pairs.where(~fn.col(_EQUAL)).select(
        *(
            fn.when(gone, fn.col(f"_was_{name}")).otherwise(fn.col(_ROW)[name]).alias(name)
            if name in keys
            else fn.col(_ROW)[name].alias(name)
            for name in columns
        ),
        gone.alias(DELETED_FIELD),
    )


class Counts(NamedTuple):
    """What a comparison found, in rows.

    Attributes:
        stored: Rows that are stored.
        missing: Rows that are not.
        extra: Rows that are stored and should not be, or more than once.
        different: Rows that are stored otherwise.
        duplicated: Of those that are extra, rows beside another one of their key.
    """

    stored: int
    missing: int
    extra: int
    different: int
    duplicated: int


def counted(result: DataFrame, stored: DataFrame, keys: Sequence[str]) -> Counts:
    """Counts what `differences` describes, in one Spark job.

    Args:
        result: What the query gives now.
        stored: What is stored, with at least the result's columns, of the same types.
        keys: Columns that identify a row, NULL being a value like any other.
    """
    lacks, had = fn.col(_ROW).isNull(), fn.col(_STORED).isNotNull()
    both = had & ~lacks
    key = fn.struct(*(fn.col(f"_is_{name}") for name in keys))
    numbers = [fn.count(fn.when(each, True)) for each in (had, ~had, lacks, both & ~fn.col(_EQUAL))]
    pairs = _pairs(result, stored, keys)
    row = pairs.agg(
        *numbers, fn.count(fn.when(both, True)) - fn.count_distinct(fn.when(both, key))
    ).collect()[0]
    held, missing, extra, different, twice = row
    return Counts(held, missing, extra + twice, different, twice)


class Wrong(NamedTuple):
    """A key that is not stored as it should be.

    Attributes:
        key: Its values, in the order of the keys.
        verdict: What is wrong.
        columns: In which columns the rows differ.
    """

    key: tuple[Any, ...]
    verdict: Verdict
    columns: tuple[str, ...] = ()


def wrong(
    result: DataFrame, stored: DataFrame, keys: Sequence[str], counts: Counts, limit: int
) -> list[Wrong]:
    """Names some of what `counted` has found, of each kind in turn, in a Spark job for each kind.

    Args:
        result: What the query gives now.
        stored: What is stored, with at least the result's columns, of the same types.
        keys: Columns that identify a row.
        counts: What was found.
        limit: How many keys at most.
    """
    lacks, had = fn.col(_ROW).isNull(), fn.col(_STORED).isNotNull()
    pairs = _pairs(result, stored, keys)
    now, was = (
        [fn.col(f"{side}{name}").alias(name) for name in keys] for side in ("_is_", "_was_")
    )
    unlike = fn.array_compact(
        fn.array(
            *(
                fn.when(~_alike(field), fn.lit(field.name)).otherwise(fn.lit(None))
                for field in result.schema
            )
        )
    )
    none = fn.array().cast("array<string>")
    twice = pairs.where(had & ~lacks).groupBy(*now).count().where("count > 1")
    kinds = {
        Verdict.MISSING: (counts.missing, pairs.where(~had).select(*now, none.alias(_EQUAL))),
        Verdict.EXTRA: (
            counts.extra - counts.duplicated,
            pairs.where(lacks).select(*was, none.alias(_EQUAL)),
        ),
        Verdict.DIFFERENT: (
            counts.different,
            pairs.where(had & ~lacks & ~fn.col(_EQUAL)).select(*now, unlike.alias(_EQUAL)),
        ),
        Verdict.DUPLICATED: (counts.duplicated, twice.select(*keys, none.alias(_EQUAL))),
    }
    there = [verdict for verdict, (count, _) in kinds.items() if count]
    found: list[list[Wrong]] = []
    for verdict in there:
        rows = kinds[verdict][1].limit(limit).toArrow().to_pylist()
        found.append(
            [Wrong(tuple(row[n] for n in keys), verdict, tuple(row[_EQUAL])) for row in rows]
        )
    taken = [each for row in zip_longest(*found) for each in row if each is not None]
    return taken[:limit]


def _pairs(result: DataFrame, stored: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Every row of a result beside the stored one of its key, and whether they are equal."""
    columns = result.columns
    row = fn.struct(*columns)
    now = result.select(*(fn.col(n).alias(f"_is_{n}") for n in keys), row.alias(_ROW))
    was = stored.select(*(fn.col(n).alias(f"_was_{n}") for n in keys), row.alias(_STORED))
    same_key = reduce(and_, (fn.col(f"_is_{n}").eqNullSafe(fn.col(f"_was_{n}")) for n in keys))
    equal: Column = fn.col(_ROW).isNotNull() & fn.col(_STORED).isNotNull()
    for field in result.schema:
        equal &= _alike(field)
    return now.join(was, same_key, "full_outer").withColumn(_EQUAL, equal)


def _alike(field: StructField) -> Column:
    """Whether both rows of a pair have the same value in a column."""
    is_, was_ = (_comparable(fn.col(side)[field.name], field.dataType) for side in (_ROW, _STORED))
    return is_.eqNullSafe(was_)


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


def _comparable(value: Column, kind: DataType) -> Column:
    """A value with its maps as lists in the order of their keys: Spark compares no maps."""
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
