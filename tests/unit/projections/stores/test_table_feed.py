"""A table that keeps its changes, for the views that are made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.planning.view_plan import ViewPlan
from projections.stores.delta.table_sink import TableSink

if TYPE_CHECKING:
    from pathlib import Path

ID = Column("id", ColumnKind.INTEGER, "integer", nullable=False)
ORDERS = TableSchema(TableName("public", "orders"), (ID,), ("id",))
PLAN = ViewPlan("orders", "shop", "t", ORDERS, ("id",), frozenset({Store.TABLE}), feeds=True)


def test_a_delete_of_a_row_that_never_was_there_is_taken_and_tells_no_change(
    tmp_path: Path,
) -> None:
    sink = TableSink(tmp_path)
    sink.prepare(PLAN)

    sink.apply(PLAN, [RowChange((1,), 8, {"id": 1}, 0), RowChange((2,), 16, None, 0)])

    # the versions before are its making
    feed = pa.table(DeltaTable(str(tmp_path / "orders")).load_cdf(2).read_all()).to_pylist()
    assert [(1, "insert")] == [(row["id"], row["_change_type"]) for row in feed]
