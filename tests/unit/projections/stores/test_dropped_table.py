"""No access to a dropped version of a view creates its tables again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.errors import SinkUnavailableError
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.stores.delta.sink import WarehouseSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ID = Column("id", ColumnKind.INTEGER, "integer", nullable=False)
ORDERS = TableSchema(TableName("public", "orders"), (ID,), ("id",))
LATEST = ViewPlan("orders.v2", "shop", "t", ORDERS, ("id",), frozenset({Store.TABLE}))
HISTORY = replace(LATEST, history=HistoryPlan(()))
CHANGES = [RowChange((1,), 8, {"id": 1}, 0), RowChange((2,), 16, None, 0)]

ACCESSES: dict[str, Callable[[WarehouseSink, ViewPlan], object]] = {
    "documents": lambda sink, plan: list(sink.documents(plan)),
    "parts": lambda sink, plan: list(sink.parts(plan)),
    "versioned": lambda sink, plan: list(sink.versioned(plan)),
    "version": lambda sink, plan: sink.version(plan),
    "stored": lambda sink, plan: sink.stored(plan, [(1,)]),
    "versions": lambda sink, plan: sink.versions(plan, CHANGES),
    "apply": lambda sink, plan: sink.apply(plan, CHANGES),
    "sweep": lambda sink, plan: sink.sweep(plan, 24),
}


@pytest.mark.parametrize("plan", [LATEST, HISTORY], ids=["latest", "history"])
@pytest.mark.parametrize("access", ACCESSES)
def test_a_dropped_table_is_not_created_again(tmp_path: Path, access: str, plan: ViewPlan) -> None:
    sink, other = WarehouseSink(tmp_path), WarehouseSink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, CHANGES)
    other.drop(plan)

    for opened in (sink, WarehouseSink(tmp_path)):  # one had the tables open
        with pytest.raises(SinkUnavailableError, match=r"orders\.v2"):
            ACCESSES[access](opened, plan)
        assert [] == [path.name for path in tmp_path.iterdir() if path.is_dir()]
