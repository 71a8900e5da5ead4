"""A table has one row for a key that comes in two forms in one batch."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace as replace_change

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.views import ChangeTime, Store
from projections.planning.view_plan import ViewPlan
from projections.stores.delta.table_sink import TableSink

if TYPE_CHECKING:
    from pathlib import Path

PLAN = ViewPlan(
    "prices",
    "shop",
    "shop.public.prices",
    TableSchema(
        TableName("public", "prices"),
        (
            Column("price", ColumnKind.NUMERIC, "numeric(9,2)", 9, 2, nullable=False),
            Column("note", ColumnKind.TEXT, "text"),
        ),
        ("price",),
    ),
    ("price",),
    frozenset({Store.TABLE}),
)
TIMED = replace(PLAN, times=(("came_at", ChangeTime.FIRST_COMMIT),))


def of_price(text: str, version: int, note: str | None) -> RowChange:
    price = Decimal(text)
    row = None if note is None else {"price": price, "note": note}
    return RowChange((price,), version, row, 5)


@pytest.mark.parametrize("plan", [PLAN, TIMED], ids=["plain", "timed"])
@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["merged", "whole"])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_the_newest_change_of_both_forms_is_written(
    tmp_path: Path, plan: ViewPlan, small_bytes: int, order: tuple[int, ...]
) -> None:
    changes = [of_price("4.5", 7, "old"), of_price("4.50", 9, "new"), of_price("4.5", 8, None)]
    sink = TableSink(tmp_path, small_bytes=small_bytes)
    sink.prepare(plan)

    for batch in ([changes[place] for place in order], [of_price("1.00", 7, "other")], changes):
        sink.apply(plan, batch)

    rows = sink._table("prices").to_pyarrow_table().sort_by("price").to_pylist()
    assert [(Decimal("1.00"), "other", 7), (Decimal("4.50"), "new", 9)] == [
        (row["price"], row["note"], row["_version"]) for row in rows
    ]


def test_copies_of_one_change_in_both_forms_are_one_row(tmp_path: Path) -> None:
    sink = TableSink(tmp_path)
    sink.prepare(PLAN)

    sink.apply(PLAN, [of_price("4.5", 7, "same"), of_price("4.50", 7, "same")])

    assert 1 == sink._table("prices").to_pyarrow_table().num_rows


def test_the_time_of_an_insert_in_the_other_form_is_kept(tmp_path: Path) -> None:
    inserted = replace_change(of_price("4.5", 8, "old"), begun=8, begun_at_us=3)
    sink = TableSink(tmp_path)
    sink.prepare(TIMED)

    sink.apply(TIMED, [of_price("4.50", 16, "new"), inserted])

    (row,) = sink._table("prices").to_pyarrow_table().to_pylist()
    assert ("new", 16, 3) == (row["note"], row["_version"], row["came_at"].microsecond)


def test_unchanged_values_are_those_of_the_other_form(tmp_path: Path) -> None:
    sink = TableSink(tmp_path)
    sink.prepare(PLAN)
    sink.apply(PLAN, [of_price("4.5", 8, "first")])
    partial = RowChange(
        (Decimal("4.50"),), 24, {"price": Decimal("4.50"), "note": None}, 5, ("note",)
    )

    applied = sink.apply(PLAN, [partial, of_price("4.5", 16, "second")])

    (row,) = sink._table("prices").to_pyarrow_table().to_pylist()
    assert ("second", 24, ()) == (row["note"], row["_version"], applied.refused)


@pytest.mark.parametrize("plan", [PLAN, TIMED], ids=["plain", "timed"])
@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["merged", "whole"])
@pytest.mark.parametrize("order", [1, -1], ids=["delete first", "insert first"])
def test_a_row_whose_key_takes_the_other_form_stays(
    tmp_path: Path, plan: ViewPlan, small_bytes: int, order: int
) -> None:
    sink = TableSink(tmp_path, small_bytes=small_bytes)
    sink.prepare(plan)
    sink.apply(plan, [of_price("4.5", 8, "old"), of_price("1.00", 8, "other")])

    sink.apply(plan, [of_price("4.5", 16, None), of_price("4.50", 16, "new")][::order])

    rows = sink._table("prices").to_pyarrow_table().sort_by("price").to_pylist()
    assert ["other", "new"] == [row["note"] for row in rows]
