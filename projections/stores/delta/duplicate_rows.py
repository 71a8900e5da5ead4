"""Removes duplicate rows of a key from a damaged table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from cdc.table import ColumnKind
from projections.changes.row_change import RowChange
from projections.definition.columns import VERSION_COLUMN
from projections.stores.delta import key_equality
from projections.stores.delta.arrow import keys_table
from projections.stores.delta.merge_columns import quoted
from projections.stores.delta.table_format import HOOKS, writing
from projections.stores.delta.view_tables import having, keys_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from projections.planning.view_plan import ViewPlan


def delete_duplicates(table: DeltaTable, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> int:
    """Keeps one row of each key, of the greatest version; returns the number of rows removed."""
    wanted = keys_table(plan, [RowChange(key, 0, None, 0) for key in keys])
    wanted_keys = set(keys_of(plan, wanted))
    candidates = having(table.to_pyarrow_dataset().to_table(), plan, wanted)
    of_key = [key in wanted_keys for key in keys_of(plan, candidates)]
    rows = candidates.filter(pa.array(of_key, pa.bool_()))
    newest: dict[tuple[object, ...], tuple[int, int]] = {}
    versions = rows[VERSION_COLUMN].to_pylist()
    for number, (key, version) in enumerate(zip(keys_of(plan, rows), versions, strict=True)):
        newest[key] = max(newest.get(key, (-1, 0)), (version, number))
    remaining = rows.take(pa.array(sorted(number for _, number in newest.values()), pa.int64()))
    if remaining.num_rows == rows.num_rows:
        return 0
    predicate = _among(plan, remaining)
    if predicate is not None:
        write_deltalake(
            table,
            remaining,
            mode="overwrite",
            predicate=predicate,
            post_commithook_properties=HOOKS,
            writer_properties=writing(remaining.schema),
        )
    else:
        # such keys have no literals: all rows of them go, and the read that follows restores one
        of_keys = remaining.select(list(plan.keys))
        on = key_equality.condition(of_keys, plan.keys)
        written = writing(remaining.schema)
        merger = table.merge(
            of_keys, on, source_alias="s", target_alias="t", writer_properties=written
        )
        merger.when_matched_delete().execute()
    return int(rows.num_rows - remaining.num_rows)


def _among(plan: ViewPlan, rows: pa.Table) -> str | None:
    """Returns an SQL condition for these keys; None if a key column's type has no literals."""
    kinds = {plan.schema.by_name[name].kind for name in plan.keys}
    if not kinds <= {ColumnKind.INTEGER, ColumnKind.TEXT, ColumnKind.UUID, ColumnKind.BOOLEAN}:
        return None
    return " OR ".join(
        "("
        + " AND ".join(
            f"{quoted(name)} = {_literal(value)}"
            for name, value in zip(plan.keys, key, strict=True)
        )
        + ")"
        for key in keys_of(plan, rows)
    )


def _literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()
