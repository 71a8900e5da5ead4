"""Tables in the warehouse have columns of any names that Postgres takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import ReadSpan, RowChange
from projections.definition.columns import DELETED_FIELD
from projections.definition.views import Store
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.stores.delta.derived_table import DerivedTable
from projections.stores.delta.history.check import HistoryCheck
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.table_sink import TableSink

if TYPE_CHECKING:
    from pathlib import Path

EPOCH = 1 << 56
HARD = (
    "`", "a`b", ".x", "a.b", 'say "hi"', "it's", "a\\b", "new\nline", "select",
    "before", "after", "read", "later", "moved", "key", "row", "value", "version", "s", "t",
)  # fmt: skip
"""Names that SQL, Arrow or our own code could take for something else."""


@pytest.fixture(params=["`", "a`b", ".x", "a.b", 'say "hi"', "read", "s"])
def plan(request: pytest.FixtureRequest) -> ViewPlan:
    """A mirror with a column of that name in its key, and all others beside it."""
    key = ("id", request.param)
    columns = (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        *(Column(name, ColumnKind.TEXT, "text", nullable=name not in key) for name in HARD),
    )
    schema = TableSchema(TableName("public", "things"), columns, key)
    to = frozenset([Store.TABLE])
    return ViewPlan("things", "shop", "shop.public.things", schema, key, to)


def change(plan: ViewPlan, number: int, version: int, value: str | None) -> RowChange:
    _, name = plan.keys
    row = {**dict.fromkeys(plan.schema.by_name, value), "id": number, name: "k"}
    return RowChange(
        (number, "k"), EPOCH | 8 * version, None if value is None else row, 1_000_000 * version
    )


@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["merged", "whole"])
def test_a_mirror_has_columns_of_any_name(plan: ViewPlan, small_bytes: int, tmp_path: Path) -> None:
    sink = TableSink(tmp_path, small_bytes=small_bytes)
    sink.prepare(plan)
    sink.apply(plan, [change(plan, number, 1, "old") for number in (1, 2, 3)])
    sink.apply(plan, [change(plan, 2, 2, None)])

    sink.apply(plan, [change(plan, 1, 2, None), change(plan, 3, 2, "new")])

    assert [change(plan, 3, 2, "new").row] == list(sink.documents(plan))


def test_a_history_has_columns_of_any_name(plan: ViewPlan, tmp_path: Path) -> None:
    _, name = plan.keys
    watched = tuple(each for each in plan.schema.by_name if each not in {"id", name})
    plan, sink = replace(plan, history=HistoryPlan(watched)), HistorySink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, [change(plan, number, 1, "old") for number in (1, 2)])

    sink.apply(plan, [change(plan, 1, 2, "new"), change(plan, 2, 2, None)])

    assert [change(plan, 1, 2, "new").row] == list(sink.documents(plan))
    assert 3 == DeltaTable(str(tmp_path / "things")).to_pyarrow_table().num_rows
    assert [] == [found for found in HistoryCheck(tmp_path, plan).differing() if found]
    empty = ReadSpan(EPOCH | 8 * 3 - 1, 3_000_000, 3_000_000)
    assert 1 == sink.sweep(plan, empty.version, [empty])
    assert [] == list(sink.documents(plan))


@pytest.mark.parametrize("name", HARD)
def test_a_view_made_from_others_has_columns_of_any_name(name: str, tmp_path: Path) -> None:
    table = DerivedTable(tmp_path, "v", (name,))
    batches: list[dict[str, int | None]] = [{"a": 1, "b": 2}, {"a": None, "b": 3, "c": 4}]
    for version, counts in enumerate(batches, start=1):
        rows = [
            {name: key, f"{name} count": count, DELETED_FIELD: count is None}
            for key, count in counts.items()
        ]
        table.write(pa.Table.from_pylist(rows), version, replaces_all=version == 1)

    stored = DeltaTable(str(tmp_path / "v")).to_pyarrow_table().to_pylist()
    assert {"b": 3, "c": 4} == {row[name]: row[f"{name} count"] for row in stored}
