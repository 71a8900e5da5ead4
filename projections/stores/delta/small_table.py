"""Small tables: changes are merged in memory, and the complete table is overwritten.

A merge by Delta plans joins and rewrites the files of changed rows, which takes 20 ms of processor
time even for a table of a hundred rows; and each batch merges every table that it changes. A small
table is read, changed and overwritten in a third of that time. The result is the same: one commit
with the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.table import ColumnKind
from projections.definition.columns import VERSION_COLUMN
from projections.stores.delta.table_format import FEED

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from projections.planning.view_plan import ViewPlan

BYTES_MAX: Final = 512 << 10
"""Size of a table's files below which it is small."""

ROWS_MAX: Final = 5_000
"""Rows of a small table; with more, a merge by Delta is as fast."""

_EXACT: Final = {ColumnKind.INTEGER, ColumnKind.TEXT, ColumnKind.UUID, ColumnKind.BOOLEAN}
"""Kinds of keys whose values are equal in Python if and only if they are in Delta."""


def small_rows(
    plan: ViewPlan, table: DeltaTable, schema: pa.Schema, bytes_max: int = BYTES_MAX
) -> pa.Table | None:
    """Returns the rows of a table that can be overwritten; None if Delta has to merge.

    Delta must merge a table that is large, that derived views read by its changes (they would see
    every row as changed), whose rows keep their earliest times, or whose keys have a kind that
    Python compares differently.

    Args:
        plan: The view.
        table: Its table, or that of its deletes.
        schema: The table's schema as the view has it.
        bytes_max: Size of the table's files from which Delta merges.
    """
    plain = not (plan.inserted_at or (plan.events is not None and plan.times))
    columns = (plan.schema.by_name.get(name) for name in plan.keys)  # a row id is no column
    if not plain or not {column.kind for column in columns if column is not None} <= _EXACT:
        return None
    if FEED.items() <= table.metadata().configuration.items():
        return None
    files = pa.table(table.get_add_actions(flatten=True))
    size_bytes, count = (pc.sum(files[name]).as_py() or 0 for name in ("size_bytes", "num_records"))
    if size_bytes >= bytes_max or count > ROWS_MAX or files["num_records"].null_count:
        return None
    rows = table.to_pyarrow_dataset().to_table()
    return rows.cast(schema) if rows.schema.names == schema.names else None


def merged(
    plan: ViewPlan, current: pa.Table, rows: pa.Table, gone: pa.Table | None
) -> tuple[pa.Table | None, int]:
    """Merges newer rows and deletes into a table.

    Args:
        plan: The view.
        current: The table's rows.
        rows: Upserts, at most one for each key.
        gone: Deletes, as keys with versions; none has the key of an upsert.

    Returns:
        The merged rows, None if nothing changes; and the number of upserts among them.
    """
    numbers = {key: number for number, key in enumerate(_keys(plan, current))}
    versions = current[VERSION_COLUMN].to_pylist()

    def newer(table: pa.Table) -> list[bool]:
        keyed_versions = zip(_keys(plan, table), table[VERSION_COLUMN].to_pylist(), strict=True)
        return [
            key not in numbers or version > versions[numbers[key]]
            for key, version in keyed_versions
        ]

    taken = rows.filter(pa.array(newer(rows), pa.bool_()))
    replaced = {numbers[key] for key in _keys(plan, taken) if key in numbers}
    if gone is not None:
        newest = gone.filter(pa.array(newer(gone), pa.bool_()))
        replaced |= {numbers[key] for key in _keys(plan, newest) if key in numbers}
    if not replaced and not taken.num_rows:
        return None, 0
    stays = pa.array([number not in replaced for number in range(current.num_rows)], pa.bool_())
    return pa.concat_tables([current.filter(stays), taken.cast(current.schema)]), taken.num_rows


def _keys(plan: ViewPlan, table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].to_pylist() for name in plan.keys), strict=True))
