"""Changes as a table has them: which have an exact form there, and which have the same key."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import structs

from projections.changes.row_change import Refused, RowChange
from projections.errors import UnholdableValueError
from projections.stores.delta.arrow import deletes_schema, keys_table, rows_table
from projections.stores.delta.view_tables import keys_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.planning.view_plan import ViewPlan


def one_of_each_key(plan: ViewPlan, changes: Sequence[RowChange]) -> list[Sequence[RowChange]]:
    """Divides changes into parts with one change of each key, the older ones first.

    A key may come in two forms: `0` and `-0` of a float, or `4.5` and `4.50` around a change of the
    scale of a `numeric` column. The newer change may lack unchanged values, and the time of the
    row's insert, so it is written after the older one. Other keys have one change each, also those
    of a `numeric` that is stored as text: there, each form is a key of its own.
    """
    schema = deletes_schema(plan)
    types = [schema.field(name).type for name in plan.keys]
    if not any(pa.types.is_decimal(each) or pa.types.is_floating(each) for each in types):
        return [changes]
    parts: list[list[RowChange]] = []
    count: Counter[tuple[object, ...]] = Counter()
    # an update from one form to the other is a delete and an insert of one version: the row stays
    ordered = sorted(changes, key=lambda change: (change.version, change.row is None))
    for change, place in zip(ordered, keys_of(plan, keys_table(plan, ordered)), strict=True):
        if count[place] == len(parts):
            parts.append([])
        parts[count[place]].append(change)
        count[place] += 1
    return [*parts] or [changes]


def places_of(
    plan: ViewPlan, keys: Sequence[tuple[object, ...]]
) -> tuple[pa.Table, list[tuple[object, ...]]]:
    """Returns keys as a table, and each as the table has it: `()` if it has no exact form."""
    probes = [RowChange(key, 0, None, 0) for key in keys]
    held, refused = parted(plan, probes)
    wanted = keys_table(plan, held)
    without = {id(each.change) for each in refused}
    places = iter(keys_of(plan, wanted))
    return wanted, [() if id(probe) in without else next(places) for probe in probes]


def parted(plan: ViewPlan, changes: Sequence[RowChange]) -> tuple[list[RowChange], list[Refused]]:
    """Separates changes with an exact form in the table from those without one."""
    try:
        if not plan.append_only:
            keys_table(plan, [change for change in changes if change.row is None])
            keys_table(plan, [of_base(change) for change in changes if change.unchanged_columns])
        rows_table(plan, [change for change in changes if change.row is not None])
    except UnholdableValueError as error:
        if len(changes) == 1:
            return [], [Refused(changes[0], error)]
        middle = len(changes) // 2
        held, refused = parted(plan, changes[:middle])
        more_held, more_refused = parted(plan, changes[middle:])
        return held + more_held, refused + more_refused
    return list(changes), []


def of_base(change: RowChange) -> RowChange:
    """Returns a change under the key of the row that has its unchanged values."""
    return change if change.base is None else structs.replace(change, key=change.base)
