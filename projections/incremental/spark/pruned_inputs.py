"""The part of a view's inputs to read for some changes: rows near them.

See `projections.incremental.analysis.pruning`. Spark receives it as conditions on the inputs, so
that it skips files and parts of files by their minimum and maximum values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as fn
from pyspark.sql.types import TimestampType

from projections.definition.operators.measures import quoted
from projections.incremental.analysis.pruning import identified
from projections.incremental.analysis.ranges import around
from projections.incremental.spark.affected_keys import FEW_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from projections.incremental.analysis.pruning import Anchor
    from projections.incremental.analysis.ranges import Range, ValueRanges
    from projections.incremental.spark.analysis import Derivation

_NEAR: Final = "_headwater_near_"
_FIRST_US: Final = -62_135_596_800_000_000  # the year 1
_LAST_US: Final = 253_402_300_799_999_999  # the end of 9999
"""Times that can be written; a range beyond them is unbounded."""


@dataclass(frozen=True, slots=True)
class PrunedInputs:
    """The rows of inputs near a change.

    Attributes:
        anchor: The anchor.
        by: Columns by which the view is maintained, with the anchor's columns.
        stretches: Ranges of values by input and column.
        values: Values by input and column, without NULL.
    """

    anchor: Anchor
    by: Mapping[str, str]
    stretches: Mapping[tuple[str, str], ValueRanges]
    values: Mapping[tuple[str, str], tuple[int | str, ...]]

    def of(self, inputs: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Filters the inputs to rows near the change.

        Args:
            inputs: All their rows, in any version.
        """
        filtered = dict(inputs)
        for (name, column), stretches in self.stretches.items():
            filtered[name] = filtered[name].where(_within(filtered[name], column, stretches))
        for (name, column), values in self.values.items():
            filtered[name] = filtered[name].where(fn.col(quoted(column)).isin(*values))
        return filtered

    def anchored(
        self, keys: DataFrame, new: Mapping[str, DataFrame], changes: Mapping[str, DataFrame]
    ) -> DataFrame:
        """Returns those keys that a row of the anchor has, or had before it changed.

        Args:
            keys: The keys.
            new: The inputs after the changes, filtered.
            changes: Changed rows of each input.
        """
        name = self.anchor.name
        identity = [fn.col(quoted(of)).alias(f"{_NEAR}{by}") for by, of in self.by.items()]
        rows = new[name].select(*identity)
        if name in changes:
            rows = rows.unionAll(changes[name].select(*identity))
        alike = (fn.col(quoted(by)).eqNullSafe(fn.col(quoted(f"{_NEAR}{by}"))) for by in self.by)
        # the keys are few, but the near rows may be many
        near_keys = rows.join(fn.broadcast(keys), reduce(lambda one, two: one & two, alike))
        return near_keys.select(*map(quoted, keys.columns))


def near(
    derivation: Derivation,
    by: tuple[str, ...],
    identities: Mapping[str, tuple[str, ...]],
    changed: Mapping[str, pa.Table],
) -> PrunedInputs | None:
    """Determines the part of the inputs to read for changes; None for everything.

    Args:
        derivation: The view.
        by: The columns by which it is maintained.
        identities: Columns that identify an input's rows, where known.
        changed: For each changed input, its changed rows before and after.
    """
    for anchor, columns in identified(derivation.anchors, by, identities):
        stretches, values = _stretches(anchor, changed), _values(anchor, changed)
        if stretches or values:
            return PrunedInputs(anchor, columns, stretches, values)
    return None


def _stretches(
    anchor: Anchor, changed: Mapping[str, pa.Table]
) -> dict[tuple[str, str], ValueRanges]:
    ranges: dict[tuple[str, str], ValueRanges] = {}
    for column in anchor.ordered:
        if not anchor.linked(column, changed):
            continue
        own = around(())
        if anchor.name in changed:
            own |= _lying(changed[anchor.name], column)
        links = [link for link in anchor.links if link.column == column]
        for link in links:
            if link.name in changed:
                theirs = _lying(changed[link.name], link.other)
                own |= theirs.moved(_less(link.most), _less(link.least))
        near = {(link.name, link.other): own.moved(link.least, link.most) for link in links}
        ranges |= {(anchor.name, column): own, **near}
    return {place: stretches for place, stretches in ranges.items() if stretches.bounded}


def _values(
    anchor: Anchor, changed: Mapping[str, pa.Table]
) -> dict[tuple[str, str], tuple[int | str, ...]]:
    """Returns the values of columns that must be equal in joined rows, if they are few."""
    values_by_column: dict[tuple[str, str], tuple[int | str, ...]] = {}
    equal = [link for link in anchor.links if link.equal]
    for column in dict.fromkeys(link.column for link in equal):
        others = [link for link in equal if link.column == column]
        places = {anchor.name: column} | {link.name: link.other for link in others}
        if not places.keys() >= changed.keys():
            continue
        columns = [rows[places[name]] for name, rows in changed.items()]
        some = {value for each in columns for value in pc.unique(each.drop_null()).to_pylist()}
        if len(some) > FEW_MAX or not all(isinstance(each, int | str) for each in some):
            continue
        values = tuple(sorted(some))
        values_by_column |= {(link.name, link.other): values for link in others}
        if not (anchor.name in changed and changed[anchor.name][column].null_count):
            values_by_column[anchor.name, column] = values
    return values_by_column


def _less(value: int | None) -> int | None:
    return None if value is None else -value


def _lying(rows: pa.Table, column: str) -> ValueRanges:
    values = rows[column]
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz))
    some = pc.unique(values.drop_null().cast(pa.int64())).to_pylist()
    return around(some, nulls=values.null_count > 0)


def _within(rows: DataFrame, column: str, stretches: ValueRanges) -> Column:
    value = fn.col(quoted(column))
    time = isinstance(rows.schema[column].dataType, TimestampType)
    there = [_between(value, each, time=time) for each in stretches.ranges]
    if stretches.nulls:
        there.append(value.isNull())
    return reduce(or_, there, fn.lit(False)) if there else fn.lit(False)


def _between(value: Column, ends: Range, *, time: bool) -> Column:
    first, last = ends
    if time:
        first = None if first is None or first < _FIRST_US else min(first, _LAST_US)
        last = None if last is None or last > _LAST_US else max(last, _FIRST_US)
    since = fn.lit(True) if first is None else value >= _literal(first, time=time)
    until = fn.lit(True) if last is None else value <= _literal(last, time=time)
    return since & until


def _literal(value: int, *, time: bool) -> Column:
    return fn.timestamp_micros(fn.lit(value)) if time else fn.lit(value)
