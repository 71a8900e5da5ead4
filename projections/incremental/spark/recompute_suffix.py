"""Views along the time of a group, recomputed from the first change onward.

See `projections.definition.operators.time_bounds`. For each changed group, the first row of the
view that may differ is determined; from there on the group is read, the view is computed, and its
rows are replaced. Earlier rows stay as they are and are not read, however many there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn
from pyspark.sql.types import TimestampType

from projections.definition.operators.measures import quoted
from projections.incremental.spark.affected_keys import FEW_MAX, gathered, named
from projections.incremental.spark.recompute_keys import replaced, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from projections.definition.operators.time_bounds import Extent
    from projections.incremental.spark.affected_keys import AffectedKeys
    from projections.incremental.spark.analysis import Derivation

_SINCE: Final = "_headwater_since"
_START: Final = "_headwater_start"
_END: Final = "_headwater_end"
_BEGIN: Final = "_headwater_begin"
_WANTED: Final = "_headwater_wanted_"


def touched(
    extent: Extent, changes: DataFrame, stored: DataFrame, few_max: int = FEW_MAX
) -> AffectedKeys:
    """Finds the groups that changes affect, and the earliest time affected.

    Args:
        extent: The extent of the view.
        changes: Changed rows of its input, before and after, in any order.
        stored: All rows of the view's table.
        few_max: Most groups that the driver holds.

    Returns:
        Columns of the groups, and the time from which on rows of the view may differ.
    """
    session = changes.sparkSession
    changed = gathered(session, _changed(extent, changes), few_max)
    if changed.count == 0 or extent.start == extent.end:  # no row extends across a point in time
        return changed
    try:
        return gathered(session, _begun(extent, changed, stored), few_max)
    finally:
        changed.release()


def onward(
    derivation: Derivation,
    extent: Extent,
    rows: DataFrame,
    groups: AffectedKeys,
    stored: DataFrame,
) -> DataFrame:
    """Describes the rows to write for changed groups.

    Args:
        derivation: The view.
        extent: How far the effect of a change extends.
        rows: All rows of its one input, after the changes.
        groups: The result of `touched`.
        stored: All rows of the view's table.

    Returns:
        The same columns as `recompute_keys.outcome`.
    """
    (name,) = derivation.inputs
    # skips files that end before the earliest of these times
    first_us, _ = groups.bounds[_SINCE]

    def since(frame: DataFrame, time: str, read_us: int = 0) -> DataFrame:
        late = _late(named(frame, groups, extent.by), time, first_us - read_us)
        there = _of_group(extent.by) & (_micros(time) >= fn.col(_SINCE) - read_us)
        return late.join(groups.held(_wanted(groups.frame, extent.by)), there, "left_semi")

    made = derivation.definition({name: since(rows, extent.time, extent.read_us)})
    present = since(made, extent.start) if extent.read_us else made
    return replaced(derivation, since(stored, extent.start), present)


def _changed(extent: Extent, changes: DataFrame) -> DataFrame:
    """Returns each changed group, with the earliest time at which an affected row may begin."""
    by = [quoted(name) for name in extent.by]
    since = (_micros(extent.time) - extent.before_us).alias(_SINCE)
    timed = changes.select(*by, since)
    first = timed.groupBy(*by).agg(fn.min(_SINCE).alias(_SINCE))
    # a group of all rows yields a row even without changes
    return first.where(fn.col(_SINCE).isNotNull())


def _begun(extent: Extent, changed: AffectedKeys, stored: DataFrame) -> DataFrame:
    """Moves the time of each group back to the beginning of a row that extends across it.

    Later rows depend on such a row, and it depends on an earlier one that it touches: adjacent rows
    therefore count as one, from the first of them.
    """
    by = [quoted(name) for name in extent.by]
    start, end = _micros(extent.start).alias(_START), _micros(extent.end).alias(_END)
    before = _of_group(extent.by) & (fn.col(_START) < fn.col(_SINCE))
    earlier = (
        named(stored, changed, extent.by)
        .select(*by, start, end)
        .join(changed.held(_wanted(changed.frame, extent.by)), before)
        .select(*by, _SINCE, _START, _END)
    )
    order = Window.partitionBy(*by).orderBy(_START).rowsBetween(Window.unboundedPreceding, -1)
    apart = fn.coalesce(fn.max(_END).over(order) < fn.col(_START), fn.lit(True))
    across = (
        earlier.withColumn(_BEGIN, fn.when(apart, fn.col(_START)))
        .groupBy(*by)
        .agg(*(fn.max(name).alias(name) for name in (_SINCE, _BEGIN, _END)))
        .where(fn.col(_END) >= fn.col(_SINCE))
        .drop(_END, _SINCE)
    )
    begun = across.select(*_renamed(extent.by), _BEGIN)
    joined = changed.frame.join(begun, _of_group(extent.by), "left_outer")
    return joined.select(*by, fn.coalesce(_BEGIN, _SINCE).alias(_SINCE))


def _late(rows: DataFrame, time: str, first_us: int) -> DataFrame:
    """Skips rows that file statistics prove to be earlier."""
    if not isinstance(rows.schema[time].dataType, TimestampType):
        return rows
    return rows.where(fn.col(quoted(time)) >= fn.timestamp_micros(fn.lit(first_us)))


def _micros(name: str) -> Column:
    return fn.unix_micros(fn.col(quoted(name)).try_cast("timestamp"))


def _wanted(groups: DataFrame, by: Sequence[str]) -> DataFrame:
    return groups.select(*_renamed(by), _SINCE)


def _renamed(by: Sequence[str]) -> list[Column]:
    return [fn.col(quoted(name)).alias(f"{_WANTED}{name}") for name in by]


def _of_group(by: Sequence[str]) -> Column:
    return same((f"{_WANTED}{name}", name) for name in by) if by else fn.lit(True)
