from __future__ import annotations

from pathlib import Path

from cdc.table import Column, ColumnKind, TableSchema
from projections.explanation import explain
from projections.plan import ViewPlan, plan_views
from projections.view import Store, load

GLOBALSHOP = Path(__file__).parents[2] / "examples" / "globalshop" / "views.py"


def plans() -> dict[str, ViewPlan]:
    """GlobalShop's views of its orders, bound to a table like its own."""
    declared = load(GLOBALSHOP)
    (source,) = declared.sources.values()
    table = source["orders"].table
    columns = (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        Column("customer_id", ColumnKind.UUID, "uuid", nullable=False),
        Column("status", ColumnKind.TEXT, "order_status", nullable=False),
        Column("total", ColumnKind.NUMERIC, "numeric", nullable=False, precision=12, scale=2),
    )
    schemas = {table: TableSchema(table, columns, ("id",))}
    views = [view for view in declared.views.values() if view.table == table]
    return {plan.name: plan for plan in plan_views(views, schemas)}


def test_a_view_says_what_it_is_made_from_and_what_lies_beside_its_rows() -> None:
    found = plans()
    orders = explain(found["orders"], found.values())

    assert ("mirror", ("public.orders",), ("id",)) == (orders.kind, orders.inputs, orders.keys)
    assert ("orders", "orders_history") == orders.group
    assert {str(store) for store in Store} == orders.sinks.keys()
    assert (
        "keys shop:orders:<key>",
        "layout document",
        "lookup customer:{customer_id}:orders",
        "counter orders:{status}: *",
        "leaderboard largest: total",
    ) == orders.sinks["cache"]


def test_a_history_says_since_when_its_states_are_valid() -> None:
    found = plans()
    history = explain(found["orders_history"], found.values())

    assert "history" == history.kind
    assert "every state of each key, valid since the commit" == history.strategy
    assert {"table": ("Delta table orders_history",)} == history.sinks
