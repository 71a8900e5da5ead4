"""The keys that a change affects, and what becomes of them."""

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
    from projections.incremental.spark.pruned_inputs import Nearby

_PRESENT: Final = "_headwater_present"


def affected(
    derivation: Derivation,
    changes: Mapping[str, DataFrame],
    old: Mapping[str, DataFrame],
    new: Mapping[str, DataFrame],
    nearby: Nearby | None = None,
) -> DataFrame:
    """Describes the keys that changes affect, as one query over all changed inputs.

    Args:
        derivation: The view, kept by its keys.
        changes: By input, its changed rows: as they were and as they are, both in one frame and in
            whatever order, with the input's columns; others are passed over. Only inputs that
            changed.
        old: By input, all its rows before the changes. Read only where two changed inputs, or two
            uses of one, lead to the key through each other.
        new: By input, all its rows after the changes.
        nearby: What has to be read of the inputs; then `old` and `new` have that, or more.

    Returns:
        The columns `by` of the strategy; values can occur more than once.
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

    def found(place: int, use: UsedInput) -> None:
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
        found(place, use)
    keys = [catalyst.frame(each).toDF(*strategy.by) for each in (plans, far) if each]
    if not keys:  # what changed has no part in the result: Spark has left it out of the plan
        return derivation.definition(new).select(*strategy.by).where(fn.lit(False))
    if nearby is not None and far:
        keys[-1] = nearby.anchored(keys[-1], new, changes)
    return reduce(DataFrame.unionAll, keys)


def recomputed(
    derivation: Derivation,
    inputs: Mapping[str, DataFrame],
    keys: AffectedKeys,
) -> DataFrame:
    """Describes the rows that a view has for affected keys.

    Few keys become literals: Spark carries them through joins and groups to both sides and down to
    the files of a table. Many are joined, which it does not carry past a column that is computed;
    so the rows of an input that have a part in the result are looked for before.

    Args:
        derivation: The view.
        inputs: All rows of all inputs, in the version wanted.
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
    """Returns the inputs of a view without rows whose time no affected key has a part in.

    So a table is passed over whose rows lie in other windows, by the least and greatest times that
    its files say they have: what a boundary costs does not grow with the windows that there are.

    Args:
        span: Between which times the rows of a key lie; None if that is not known.
        derivation: The view.
        inputs: All rows of all inputs.
        keys: The keys.
    """
    uses = keyed(derivation).uses
    if span is None or span.start not in keys.bounds or len(uses) != 1:
        return inputs  # read twice, a table may say something of a window from outside it
    name = uses[0].name
    kinds = {field.name: field.dataType for field in inputs[name].schema}
    times = (kinds.get(span.time), keys.frame.schema[span.start].dataType)
    if not all(isinstance(each, TimestampType) for each in times):
        return inputs
    first, last = keys.bounds[span.start]
    time = fn.col(quoted(span.time))
    since = time >= fn.lit(first) - fn.lit(span.before)
    until = time < fn.lit(last) + fn.lit(span.after)
    return {**inputs, name: inputs[name].where(since & until)}


def outcome(
    derivation: Derivation,
    new: Mapping[str, DataFrame],
    keys: AffectedKeys,
    stored: Callable[[], DataFrame],
) -> DataFrame:
    """Describes what to write for affected keys.

    Args:
        derivation: The view.
        new: By input, all rows after the changes.
        keys: What `gathered` found.
        stored: Gives all rows that the view's table has, whatever has become of it since the
            changes began: where a boundary was not brought to its end, there are rows of that.
            Asked only where the view is not kept by all of its keys.

    Returns:
        The view's columns, and `_deleted`: a row is an upsert, or of a deleted one the keys alone.
        Where that is NULL it is deleted unless the key has a row, which comes later.
    """
    present = recomputed(derivation, new, keys)
    if set(keyed(derivation).by) != set(derivation.keys):
        return replaced(derivation, among(stored(), keys), present)
    if keys.count and keys.values is not None:
        return _unless_there(derivation, keys, present)
    before = keys.frame.select(*(fn.col(name).alias(f"_was_{name}") for name in derivation.keys))
    alike = same((f"_was_{name}", name) for name in derivation.keys)
    present = present.withColumn(_PRESENT, fn.lit(True))
    joined = before.join(present, alike, "left_outer")
    gone = fn.col(_PRESENT).isNull()
    return joined.select(
        *(
            fn.when(gone, fn.col(f"_was_{name}")).otherwise(fn.col(name)).alias(name)
            if name in derivation.keys
            else fn.col(name)
            for name in derivation.columns
        ),
        gone.alias(DELETED_FIELD),
    )


def _unless_there(derivation: Derivation, keys: AffectedKeys, present: DataFrame) -> DataFrame:
    """Few keys, and the rows that they have: a caller that writes these sees which have none.

    To find that out by a join would cost another job of Spark's, and half of what these take.
    """
    given = {field.name: field.dataType for field in present.schema}
    known = {name: fn.col(name) for name in derivation.keys}
    before = keys.frame.select(
        *(known.get(name, fn.lit(None)).cast(given[name]).alias(name) for name in given),
        fn.lit(None).cast("boolean").alias(DELETED_FIELD),
    )
    return before.unionAll(present.withColumn(DELETED_FIELD, fn.lit(False)))


def replaced(derivation: Derivation, before: DataFrame, present: DataFrame) -> DataFrame:
    """Describes what to write so that rows of a view are in the place of others.

    Args:
        derivation: The view.
        before: Its present rows.
        present: Its new rows.

    Returns:
        What `outcome` does, without rows that are there as they should be.
    """
    # once each, whatever someone has done to the table
    return differences(present, before.dropDuplicates([*derivation.keys]), derivation.keys)


def among(rows: DataFrame, keys: AffectedKeys) -> DataFrame:
    """Returns those rows whose values are among keys, columns being called alike."""
    return _restricted(named(rows, keys, keys.frame.columns), keys)


def _confined(rows: DataFrame, own: Mapping[str, str], keys: AffectedKeys) -> DataFrame:
    """The rows of an input that have a part in the result for the keys."""
    there = [name for name in keys.frame.columns if name in own]
    if not there:
        return rows
    wanted = keys.frame.select(*(fn.col(name) for name in there))
    if len(there) < len(keys.frame.columns):
        wanted = wanted.distinct()
    return _semi(rows, keys.held(wanted), [(name, own[name]) for name in there])


def _restricted(result: DataFrame, keys: AffectedKeys) -> DataFrame:
    names = keys.frame.columns
    return _semi(result, keys.held(keys.frame), list(zip(names, names, strict=True)))


def _semi(rows: DataFrame, keys: DataFrame, pairs: Sequence[tuple[str, str]]) -> DataFrame:
    """Rows whose values are among those of keys, NULL among them; a key's column and the rows'."""
    wanted = keys.select(*(fn.col(key).alias(f"_wanted_{key}") for key, _ in pairs))
    alike = same((f"_wanted_{key}", name) for key, name in pairs)
    return rows.join(wanted, alike, "left_semi")


def same(pairs: Iterable[tuple[str, str]]) -> Column:
    """Returns a condition: columns have the same values, NULL among them."""
    return reduce(and_, (fn.col(one).eqNullSafe(fn.col(two)) for one, two in pairs))
