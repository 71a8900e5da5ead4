"""The keys that a change affects, and their new rows."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import TimestampType

from projections.definition.columns import DELETED_FIELD
from projections.definition.operators.measures import quoted
from projections.incremental.analysis.strategy import ordered
from projections.incremental.spark.affected_keys import named
from projections.incremental.spark.analysis import keyed, only_known
from projections.incremental.spark.full_diff import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column

    from projections.definition.operators.time_bounds import Span
    from projections.incremental.analysis.strategy import UsedInput
    from projections.incremental.spark.affected_keys import AffectedKeys
    from projections.incremental.spark.analysis import Derivation
    from projections.incremental.spark.pruned_inputs import PrunedInputs

_PRESENT: Final = "_headwater_present"
_WAS: Final = "_headwater_was_"
_WANTED: Final = "_headwater_wanted_"


def affected(
    derivation: Derivation,
    changes: Mapping[str, DataFrame],
    old: Mapping[str, DataFrame],
    new: Mapping[str, DataFrame],
    nearby: PrunedInputs | None = None,
) -> DataFrame:
    """Describes the keys that changes affect, as one query over all changed inputs.

    Args:
        derivation: The view, maintained by keys.
        changes: For each changed input, its changed rows before and after, in one frame in any
            order, with the input's columns; others are ignored.
        old: All rows of each input before the changes. Read only if two changed inputs, or two uses
            of one, reach the key through each other.
        new: All rows of each input after the changes.
        nearby: The part of the inputs to read; `old` and `new` then contain at least that part.

    Returns:
        The columns `by` of the strategy; values may repeat.
    """
    strategy = keyed(derivation)
    only_known(derivation, changes)
    changed = ordered([use for use in strategy.uses if use.name in changes])
    places = {use.leaf: place for place, use in enumerate(changed)}
    names = {use.leaf: use.name for use in strategy.uses}
    catalyst = derivation.catalyst
    outputs = [derivation.columns.index(name) for name in strategy.by]
    plans: list[Any] = []
    far: list[Any] = []

    def collect(place: int, use: UsedInput) -> None:
        def table(leaf: int) -> DataFrame | None:
            if leaf not in names:
                return None
            version = new if places.get(leaf, -1) < place else old
            return version[names[leaf]]

        for path in use.paths:
            plan = catalyst.run(path, changes[use.name], table)
            other = nearby is not None and use.name != nearby.anchor.name
            (far if other else plans).append(catalyst.selected(plan, outputs))

    for place, use in enumerate(changed):
        collect(place, use)
    keys = [catalyst.frame(each).toDF(*strategy.by) for each in (plans, far) if each]
    if not keys:  # Spark removed the changed input from the plan: it does not affect the result
        return derivation.definition(new).select(*map(quoted, strategy.by)).where(fn.lit(False))
    if nearby is not None and far:
        keys[-1] = nearby.anchored(keys[-1], new, changes)
    return reduce(DataFrame.unionAll, keys)


def recomputed(
    derivation: Derivation,
    inputs: Mapping[str, DataFrame],
    keys: AffectedKeys,
) -> DataFrame:
    """Describes the present rows of affected keys.

    Few keys become literals: Spark pushes them through joins and groups, down to the files of a
    table. Many keys are joined, which Spark does not push past a computed column; the relevant rows
    of an input are therefore selected first.

    Args:
        derivation: The view.
        inputs: All rows of all inputs, in the wanted version.
        keys: The keys.
    """
    if keys.values is None:
        own = keyed(derivation).own
        read = {
            name: _confined(frame, own[name].columns, keys) if name in own else frame
            for name, frame in inputs.items()
        }
        return _restricted(derivation.definition(read), keys)
    result = named(derivation.definition(inputs), keys, keys.frame.columns)
    if len(keys.frame.columns) > 1:
        return _restricted(result, keys)
    return result


def within(
    span: Span | None,
    derivation: Derivation,
    inputs: Mapping[str, DataFrame],
    keys: AffectedKeys,
) -> Mapping[str, DataFrame]:
    """Filters the inputs of a view to rows in the time range of affected keys.

    A table whose rows are in other windows is thus skipped by file statistics, so the cost of a
    boundary does not grow with the number of windows.

    Args:
        span: The time range of a key's rows; None if unknown.
        derivation: The view.
        inputs: All rows of all inputs.
        keys: The keys.
    """
    uses = keyed(derivation).uses
    if span is None or span.start not in keys.bounds or len(uses) != 1:
        return inputs  # an input with two uses may contribute rows from outside a window
    name = uses[0].name
    kinds = {field.name: field.dataType for field in inputs[name].schema}
    times = (kinds.get(span.time), keys.frame.schema[span.start].dataType)
    if not all(isinstance(each, TimestampType) for each in times):
        return inputs
    first, last = keys.bounds[span.start]
    time = _column(span.time)
    since = time >= fn.lit(first) - fn.lit(span.before)
    until = time < fn.lit(last) + fn.lit(span.after)
    return {**inputs, name: inputs[name].where(since & until)}


def outcome(
    derivation: Derivation,
    new: Mapping[str, DataFrame],
    keys: AffectedKeys,
    stored: Callable[[], DataFrame],
) -> DataFrame:
    """Describes the rows to write for affected keys.

    Args:
        derivation: The view.
        new: All rows of each input after the changes.
        keys: The result of `gathered`.
        stored: Returns all present rows of the view's table, including those of an unfinished
            boundary. Called only if the view is not maintained by all of its keys.

    Returns:
        The view's columns, and `_deleted`: a row to upsert, or the keys of a row to delete. If
        NULL, the row is deleted unless a later row has its key.
    """
    present = recomputed(derivation, new, keys)
    if set(keyed(derivation).by) != set(derivation.keys):
        return replaced(derivation, among(stored(), keys), present)
    if keys.count and keys.values is not None:
        return _unless_there(derivation, keys, present)
    before = keys.frame.select(*(_column(name).alias(f"{_WAS}{name}") for name in derivation.keys))
    alike = same((f"{_WAS}{name}", name) for name in derivation.keys)
    present = present.withColumn(_PRESENT, fn.lit(True))
    joined = before.join(present, alike, "left_outer")
    gone = fn.col(_PRESENT).isNull()
    return joined.select(
        *(
            fn.when(gone, _column(f"{_WAS}{name}")).otherwise(_column(name)).alias(name)
            if name in derivation.keys
            else _column(name)
            for name in derivation.columns
        ),
        gone.alias(DELETED_FIELD),
    )


def _unless_there(derivation: Derivation, keys: AffectedKeys, present: DataFrame) -> DataFrame:
    """Returns few keys beside their rows: the writer sees which keys have none.

    A join would cost another Spark job, and half as much time again.
    """
    given = {field.name: field.dataType for field in present.schema}
    known = {name: _column(name) for name in derivation.keys}
    before = keys.frame.select(
        *(known.get(name, fn.lit(None)).cast(given[name]).alias(name) for name in given),
        fn.lit(None).cast("boolean").alias(DELETED_FIELD),
    )
    return before.unionAll(present.withColumn(DELETED_FIELD, fn.lit(False)))


def replaced(derivation: Derivation, before: DataFrame, present: DataFrame) -> DataFrame:
    """Describes the rows to write to replace rows of a view.

    Args:
        derivation: The view.
        before: Its present rows.
        present: Its new rows.

    Returns:
        As `outcome`, without rows that are stored correctly.
    """
    # one row of each key, even if the table was damaged
    return differences(present, before.dropDuplicates([*derivation.keys]), derivation.keys)


def among(rows: DataFrame, keys: AffectedKeys) -> DataFrame:
    """Returns the rows whose values are among keys; columns have the same names."""
    return _restricted(named(rows, keys, keys.frame.columns), keys)


def _confined(rows: DataFrame, own: Mapping[str, str], keys: AffectedKeys) -> DataFrame:
    """Returns the rows of an input that contribute to the result for the keys."""
    there = [name for name in keys.frame.columns if name in own]
    if not there:
        return rows
    wanted = keys.frame.select(*map(quoted, there))
    if len(there) < len(keys.frame.columns):
        wanted = wanted.distinct()
    return _semi(rows, keys.held(wanted), [(name, own[name]) for name in there])


def _restricted(result: DataFrame, keys: AffectedKeys) -> DataFrame:
    names = keys.frame.columns
    return _semi(result, keys.held(keys.frame), list(zip(names, names, strict=True)))


def _semi(rows: DataFrame, keys: DataFrame, pairs: Sequence[tuple[str, str]]) -> DataFrame:
    """Returns rows whose values are among those of keys, including NULL."""
    wanted = keys.select(*(_column(key).alias(f"{_WANTED}{key}") for key, _ in pairs))
    alike = same((f"{_WANTED}{key}", name) for key, name in pairs)
    return rows.join(wanted, alike, "left_semi")


def same(pairs: Iterable[tuple[str, str]]) -> Column:
    """Returns the condition that columns have the same values, NULL equal to NULL."""
    return reduce(and_, (_column(one).eqNullSafe(_column(two)) for one, two in pairs))


def _column(name: str) -> Column:
    return fn.col(quoted(name))
