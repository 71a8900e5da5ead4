"""Views of patterns: the rows of each group are put in order, and matches are found in them.

Values of rows do not pass through Python: what is found are places in the ordered rows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from projections.measure import quoted
from projections.pattern import Event, Pattern, PatternQuery, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

_TAKEN = StructType([StructField("step", StringType()), StructField("place", IntegerType())])
_FOUND = ArrayType(
    StructType(
        [
            StructField("number", IntegerType()),
            StructField("due", LongType()),
            StructField("taken", ArrayType(_TAKEN)),
        ]
    )
)


def matches_of(frame: DataFrame, query: PatternQuery) -> DataFrame:
    """Returns a row for each match of a pattern.

    Args:
        frame: The rows.
        query: The pattern, and where it is looked for.

    Returns:
        The columns of the group, `match_start`, `match_end`, `match_number` among those of a group
        that begin at the same time, `due_at` and `rows`: of each row its step, its time and the
        columns that are kept.
    """
    by = [fn.col(quoted(name)) for name in query.by]
    groups = (
        _ordered(frame, query)
        .groupBy(*by)
        .agg(fn.sort_array(fn.collect_list("_event")).alias("_events"))
    )
    find = fn.udf(_finder(query.pattern), _FOUND, useArrow=False)
    seen = fn.transform("_events", lambda event: fn.struct(event.at, event.misses, event.compared))
    found = groups.select(*by, "_events", fn.explode(find(seen)).alias("_match"))
    rows = found.withColumn("rows", fn.transform("_match.taken", _shown(query)))
    due = fn.timestamp_micros("_match.due")
    return rows.select(
        *by,
        fn.col("rows")[0]["at"].alias("match_start"),
        fn.element_at("rows", -1)["at"].alias("match_end"),
        fn.col("_match.number").alias("match_number"),
        due.alias("due_at"),
        "rows",
    )


def _ordered(frame: DataFrame, query: PatternQuery) -> DataFrame:
    """Each row with what its place among others depends on, in that order."""
    time = fn.col(quoted(query.time))
    misses = [fn.expr(f"NOT coalesce({step.where}, false)") for step in query.pattern.steps]
    compared = [_comparable(frame, name).alias(name) for name in query.pattern.compared] or [
        fn.lit(None).cast("int").alias("nothing")
    ]
    kept = [fn.col(quoted(name)) for name in query.keep]
    event = fn.struct(
        fn.unix_micros(time.cast("timestamp")).alias("at"),
        fn.array(*misses).alias("misses"),
        fn.struct(*compared).alias("compared"),
        fn.struct(time.alias("at"), *kept).alias("row"),
    )
    wanted = frame.where(time.isNotNull())
    if query.where:
        wanted = wanted.where(query.where)
    return wanted.select(*(fn.col(quoted(name)) for name in query.by), event.alias("_event"))


def _comparable(frame: DataFrame, name: str) -> Column:
    """A column as Python compares it: times would come in the zone of the worker's machine."""
    column = fn.col(quoted(name))
    kind = frame.schema[name].dataType
    if isinstance(kind, TimestampType | TimestampNTZType):
        return fn.unix_micros(column.cast("timestamp"))
    return column


def _shown(query: PatternQuery) -> Callable[[Column], Column]:
    def of(taken: Column) -> Column:
        row = fn.element_at("_events", taken.place + 1)["row"]
        kept = [row[name].alias(name) for name in query.keep]
        return fn.struct(taken.step.alias("step"), row["at"].alias("at"), *kept)

    return of


def _finder(pattern: Pattern) -> Callable[[Sequence[Any]], list[Any]]:
    def find(rows: Sequence[Any]) -> list[Any]:
        events = [Event(at, [not miss for miss in misses], row) for at, misses, row in rows]
        numbers: Counter[int] = Counter()
        found = []
        for match in matches(pattern, events):
            begins = events[match.taken[0][1]].at
            numbers[begins] += 1
            found.append((numbers[begins], match.due, list(match.taken)))
        return found

    return find
