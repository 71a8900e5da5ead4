"""Views of patterns: sorts the rows of each group, and finds matches.

Rows of a group are processed together if one match can contain them: where the gap between two rows
exceeds a pattern's time, no match continues, and a new episode of the group begins. A group may
therefore have rows of years, as long as one episode fits into memory.

The search itself, and the preparation of rows for it, is in
`projections.incremental.patterns.batch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # noqa: TC002  # Spark asks for the search's types when it runs
from pyspark.sql import Window
from pyspark.sql import functions as fn
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from projections.common.fault import FaultError
from projections.definition.columns import INTERNAL_PREFIX
from projections.definition.operators.measures import quoted
from projections.definition.operators.windows import Sliding, micros, timed
from projections.errors import DerivationError, ProjectionError, ViewQueryError
from projections.incremental.patterns.batch import (
    AT,
    COMPARED,
    LISTED,
    MISSES,
    Limits,
    find_matches,
)
from projections.incremental.spark.catalyst import INPUT_MARK
from projections.incremental.spark.contradictions import impossible

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from projections.definition.operators.pattern import Pattern, PatternQuery

ROWS_MAX: Final = 2_000_000
"""Most rows of one episode: they are held in one Spark row, and in its worker."""
ROW_BYTES: Final = 2_048
"""Driver heap per row, which can lower that limit: Spark copies the rows several times, and a full
heap ends the whole job. With about 60 bytes listed per row, 1 GiB was measured to suffice for 1
million rows and not for 1.6 million; with one number per row, for 2 million."""
LOOKUPS_MAX: Final = 50_000_000
"""Most look-ups in an episode: about a minute's work, some twenty for each of so many rows. Most
patterns need one or two for each step; only several comparisons of one step can need any number."""

_EVENT: Final = f"{INTERNAL_PREFIX}event"
_EVENTS: Final = f"{INTERNAL_PREFIX}events"
_MATCH: Final = f"{INTERNAL_PREFIX}match"
_MATCHES: Final = f"{INTERNAL_PREFIX}matches"
_FIRST: Final = f"{INTERNAL_PREFIX}first"
_ROW_AT: Final = f"{INTERNAL_PREFIX}at"
_ROW_NUMBER: Final = f"{INTERNAL_PREFIX}number"
_BEFORE: Final = f"{INTERNAL_PREFIX}before"

_NUMBER: Final = "number"
_TIME: Final = "time"


def matches_of(frame: DataFrame, query: PatternQuery, view: str = "") -> DataFrame:
    """Returns a row for each match of a pattern.

    Args:
        frame: The rows.
        query: The pattern, with its group and time columns.
        view: Name of the view, for errors.

    Returns:
        The columns of the group, `match_start`, `match_end`, `match_number` among those of a group
        that begin at the same time, `due_at` and `rows`: for each row its step, its time and the
        listed columns.

    Raises:
        ViewQueryError: No row can meet a step's condition, or it compares incomparable values.
    """
    _require_possible(frame, query)
    _require_comparable(frame, query.pattern)
    by = [fn.col(quoted(name)) for name in query.by]
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001  # Java's heap has no other way from here
    heap_bytes = jvm.java.lang.Runtime.getRuntime().maxMemory()
    rows_max = min(ROWS_MAX, heap_bytes // ROW_BYTES)
    groups = (
        _together(_fitting(frame, query), query, rows_max)
        .groupBy(*by, _FIRST)
        .agg(fn.sort_array(fn.collect_list(_EVENT)).alias(_EVENTS))
    )
    limits = Limits(
        rows_max,
        _refusal(query, view, f"{rows_max:,} rows"),
        LOOKUPS_MAX,
        _refusal(query, view, f"{LOOKUPS_MAX:,} lookups"),
    )
    matches = _finder(query.pattern, limits, groups)(_EVENTS).alias(_MATCHES)
    rows = groups.select(*by, matches).select(*by, fn.explode(_MATCHES).alias(_MATCH))
    return rows.select(
        *by,
        fn.col(f"{_MATCH}.rows")[0]["at"].alias("match_start"),
        fn.element_at(f"{_MATCH}.rows", -1)["at"].alias("match_end"),
        fn.col(f"{_MATCH}.number").alias("match_number"),
        fn.timestamp_micros(f"{_MATCH}.due").alias("due_at"),
        fn.col(f"{_MATCH}.rows").alias("rows"),
    )


def _fitting(frame: DataFrame, query: PatternQuery) -> DataFrame:
    """Returns rows that may be part of a match, with the columns that determine their order."""
    time = fn.col(quoted(query.time))
    misses = [
        fn.expr(f"NOT coalesce({step.where}, false)").alias(f"_{number}")
        for number, step in enumerate(query.pattern.steps)
    ]
    compared = [_comparable(frame, name).alias(name) for name in query.pattern.compared]
    kept = [fn.col(quoted(name)) for name in query.keep]
    event = fn.struct(
        fn.unix_micros(time.cast("timestamp")).alias(AT),
        fn.struct(*misses).alias(MISSES),
        *([fn.struct(*compared).alias(COMPARED)] if compared else []),
        fn.struct(time.alias("at"), *kept).alias(LISTED),
    )
    # excludes times so extreme that a match's end could not be written
    wanted = frame.where(timed(Sliding(query.time, query.pattern.within)))
    if query.where:
        wanted = wanted.where(query.where)
    if not query.pattern.strict:  # otherwise a row that fits no step ends a match
        wanted = wanted.where(" OR ".join(f"({step.where})" for step in query.pattern.steps))
    return wanted.select(*(fn.col(quoted(name)) for name in query.by), event.alias(_EVENT))


def _together(rows: DataFrame, query: PatternQuery, rows_max: int) -> DataFrame:
    """Adds to each row the number of the first row of its episode.

    Rows beyond the limit get NULL and are not collected; one more than the limit is kept as
    evidence.
    """
    at, before, number = fn.col(_ROW_AT), fn.col(_BEFORE), fn.col(_ROW_NUMBER)
    order = Window.partitionBy(*(fn.col(quoted(name)) for name in query.by)).orderBy(at)
    numbered = rows.withColumn(_ROW_AT, fn.col(f"{_EVENT}.{AT}")).withColumns(
        {_ROW_NUMBER: fn.row_number().over(order), _BEFORE: fn.lag(at).over(order)}
    )
    apart = (at - before) > micros(query.pattern.within)
    begins = fn.when(fn.coalesce(apart, fn.lit(True)), number)  # NULL for the first row
    first = numbered.withColumn(_FIRST, fn.max(begins).over(order))
    event = fn.when(number - fn.col(_FIRST) <= rows_max, fn.col(_EVENT))
    return first.withColumn(_EVENT, event).drop(_ROW_AT, _ROW_NUMBER, _BEFORE)


def _comparable(frame: DataFrame, name: str) -> Column:
    """Converts a column for comparison in Python: times would be in the worker's time zone."""
    column = fn.col(quoted(name))
    return fn.unix_micros(column.cast("timestamp")) if _kind(frame, name) == _TIME else column


def _kind(frame: DataFrame, name: str) -> str:
    """Returns the kind of a column's values; values of one kind are comparable."""
    kind = frame.select(quoted(name)).schema[0].dataType
    if isinstance(kind, TimestampType | TimestampNTZType):
        return _TIME
    return _NUMBER if isinstance(kind, NumericType) else kind.typeName()


def _finder(pattern: Pattern, limits: Limits, groups: DataFrame) -> Any:
    """Returns the search as a Spark function that exchanges Arrow batches."""
    events: Any = groups.schema[_EVENTS].dataType
    listed = events.elementType[LISTED].dataType
    row = StructType([StructField("step", StringType()), *listed.fields])
    match = StructType(
        [
            StructField("number", IntegerType()),
            StructField("due", LongType()),
            StructField("rows", ArrayType(row, containsNull=False)),
        ]
    )

    def find(episodes: pa.Array) -> pa.Array:
        try:
            return find_matches(pattern, episodes, limits)
        except ProjectionError as error:
            raise FaultError(error) from None

    made: Any = arrow_udf  # declared for pandas functions
    return made(find, ArrayType(match, containsNull=False))


def _refusal(query: PatternQuery, view: str, most: str) -> DerivationError:
    """Returns the error for an episode that exceeds a limit, without values of its group."""
    named = f"view {view}" if view else "a view"
    return DerivationError(
        f"{named}: too many rows of one group within the pattern's time",
        detail=f"more than {most}; grouped by {', '.join(query.by)}, "
        f"within {query.pattern.within} of each other",
        hint="exclude rows with where=, group by more columns, shorten within=, or give the "
        "driver more memory; until then the view stays at its last boundary",
    )


def _require_possible(frame: DataFrame, query: PatternQuery) -> None:
    """Refuses conditions that no row admitted by `where` can meet."""
    if INPUT_MARK not in frame.schema[0].metadata:  # checked once, before there are rows
        return
    for step in query.pattern.steps:
        if not step.absent and impossible(frame, [*filter(None, [query.where]), step.where]):
            of = f"; among rows with: {query.where}" if query.where else ""
            raise ViewQueryError(
                f"step {step.name} of a pattern matches no row",
                detail=f"where: {step.where}{of}",
                hint="correct its where",
            )


def _require_comparable(frame: DataFrame, pattern: Pattern) -> None:
    """Refuses comparisons of different kinds, and arithmetic on values that are not numbers."""
    kinds = {name: _kind(frame, name) for name in pattern.compared}
    for step in pattern.steps:
        for each in step.conditions:
            one, other = kinds[each.column], kinds[each.other]
            if one != other or (each.reckons and one != _NUMBER):
                raise ViewQueryError(
                    f"step {step.name} of a pattern "
                    f"{'needs a number to compute' if each.reckons else 'compares unlike types'}",
                    detail=f"{each.text}: {each.column} is a {one}, {each.other} a {other}",
                    hint="correct its beside",
                )
