"""Keys that a change affects: literals of a query if few, rows held by Spark if many.

Values stay Spark's own: they come out of one query and go into the next without conversion to
Python, so they are unchanged, and a key costs no call between processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    TimestampType,
)

from projections.definition.operators.measures import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

FEW_MAX: Final = 500
"""Most keys that become literals of the query; beyond, planning them costs more than it saves."""

HELD_MAX: Final = 1_000_000
"""Most keys that each worker holds to find their rows: only then does Spark look for those before
it groups rows (its `PushDownLeftSemiAntiJoin`). Beyond, all rows are grouped."""

_LITERAL: Final = (*(BooleanType, DateType, DecimalType, IntegralType, StringType, TimestampType),)
"""Types whose values survive the round trip through the driver unchanged."""


@dataclass(frozen=True, slots=True)
class AffectedKeys:
    """Values of the columns by which a view is maintained, each once.

    Attributes:
        frame: The values, as a DataFrame: rows in the driver if they are few; if many, cached by
            Spark once computed, until they are released.
        count: Number of keys; None if they are too many for each worker to hold.
        values: For few keys, the values of each column without NULL, as a Java list.
        nulls: For few keys, columns in which NULL occurs.
        bounds: Least and greatest value of columns, if these can be literals and are not all NULL.
    """

    frame: DataFrame
    count: int | None
    values: Mapping[str, Any] | None = None
    nulls: frozenset[str] = frozenset()
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def release(self) -> None:
        """Releases the cached keys."""
        if self.values is None:
            self.frame.unpersist()

    def held(self, frame: DataFrame) -> DataFrame:
        """Marks a frame with at most one row per key for broadcast, unless keys are many."""
        return frame if self.count is None else fn.broadcast(frame)


def gathered(session: SparkSession, keys: DataFrame, few_max: int = FEW_MAX) -> AffectedKeys:
    """Collects affected keys, in one Spark job; if they are many, in two.

    Args:
        session: The session.
        keys: Values of the columns by which a view is maintained; they may repeat.
        few_max: Most keys that the driver holds.
    """
    distinct = keys.distinct()
    names = _literals(keys)
    if len(names) < len(keys.columns):
        return _many(distinct, names)
    rows = fn.collect_list(fn.struct(*map(quoted, names)))
    values = [fn.collect_list(quoted(name)) for name in names]
    aggregates = _one(distinct.limit(few_max + 1), [*_extremes(names), rows, *values])
    count, first = aggregates.getLong(0), 1 + 2 * len(names)
    if count > few_max:
        return _many(distinct, names)
    java = session._jsparkSession  # noqa: SLF001  # Python's way would make them Python's
    frame = DataFrame(java.createDataFrame(aggregates.getList(first), keys._jdf.schema()), session)  # noqa: SLF001
    lists = {name: aggregates.getList(first + place) for place, name in enumerate(names, start=1)}
    nulls = frozenset(name for name, values in lists.items() if values.size() < count)
    return AffectedKeys(frame, count, lists, nulls, _bounds(aggregates, names))


def named(rows: DataFrame, keys: AffectedKeys, names: Sequence[str]) -> DataFrame:
    """Filters rows by the values of keys, column by column, if these are few.

    Args:
        rows: The rows; all are returned if keys are many.
        keys: The keys.
        names: The columns, with the same names in both.
    """
    if keys.values is not None:
        for name in names:
            rows = rows.where(_among(name, keys, keys.values[name]))
    return rows


def _many(distinct: DataFrame, names: Sequence[str]) -> AffectedKeys:
    held = distinct.persist()
    aggregates = _one(held, _extremes(names))
    count = aggregates.getLong(0)
    return AffectedKeys(
        held, count if count <= HELD_MAX else None, bounds=_bounds(aggregates, names)
    )


def _literals(frame: DataFrame) -> list[str]:
    return [field.name for field in frame.schema if isinstance(field.dataType, _LITERAL)]


def _extremes(names: Sequence[str]) -> list[Column]:
    return [each(quoted(name)) for name in names for each in (fn.min, fn.max)]


def _one(rows: DataFrame, aggregates: Sequence[Column]) -> Any:
    """Returns the number of rows and some aggregates over all of them, as one Java row."""
    return rows.agg(fn.count("*"), *aggregates)._jdf.collectAsList().get(0)  # noqa: SLF001


def _bounds(row: Any, names: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    bounds = {name: (row.get(1 + 2 * n), row.get(2 + 2 * n)) for n, name in enumerate(names)}
    return {name: pair for name, pair in bounds.items() if pair[0] is not None}


def _among(name: str, keys: AffectedKeys, values: Any) -> Column:
    """Returns the condition that a column has one of the values, or NULL if that is affected."""
    column: Any = fn.col(quoted(name))
    among = fn.lit(False) if values.isEmpty() else Column(column._jc.isInCollection(values))  # noqa: SLF001
    return column.isNull() | among if name in keys.nulls else among
