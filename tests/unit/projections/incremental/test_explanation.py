from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cdc.table import Column, ColumnKind, TableSchema
from projections.definition.cache_options import CacheOptions
from projections.definition.expectations.expectation import expect
from projections.definition.operators.time_bounds import of_window
from projections.definition.operators.windows import Session, Sliding
from projections.definition.registry import load
from projections.definition.views import DerivedView, Store
from projections.incremental.explain import explain, explain_derived
from projections.planning.view_plan import ViewPlan, plan_views

GLOBALSHOP = Path(__file__).parents[4] / "examples" / "globalshop" / "views.py"


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


def test_a_view_names_the_columns_that_are_not_in_the_log() -> None:
    found = plans()

    assert ("gross",) == explain(found["orders"], found.values(), ["gross"]).without
    assert () == explain(found["orders"], found.values()).without


def test_a_history_says_since_when_its_states_are_valid() -> None:
    found = plans()
    history = explain(found["orders_history"], found.values())

    assert "history" == history.kind
    assert "every state of each key, valid since the commit" == history.strategy
    assert {"table": ("Delta table orders_history",)} == history.sinks


def test_a_view_made_from_others_says_how_its_keys_are_found_and_where_it_is() -> None:
    view = DerivedView(
        "by_status",
        ("status",),
        frozenset({Store.TABLE, Store.CACHE}),
        ("orders",),
        sql="SELECT status, count(*) AS orders FROM orders GROUP BY status",
        cache=CacheOptions(layout="hash"),
    )
    unseen = explain_derived(view, "shop", {}, ["orders", "by_status"])
    said = {"strategy": "keyed", "by": ["status"], "paths": {"orders": ["its own columns"]}}
    kept = explain_derived(view, "shop", said, ["orders", "by_status"])

    assert ("derived", ("orders",), ("status",)) == (unseen.kind, unseen.inputs, unseen.keys)
    assert "unknown until the job has maintained it" == unseen.strategy
    assert "by status; orders: its own columns" == kept.strategy
    near = explain_derived(view, "shop", said | {"near": ["orders.at", "clicks.at"]}, [])
    assert f"{kept.strategy}; rows near a change by orders.at, clicks.at" == near.strategy
    assert ("by_status", "orders") == kept.group
    assert {
        "cache": ("keys shop:by_status:<key>", "layout hash"),
        "table": ("Delta table by_status",),
    } == kept.sinks


def test_a_view_made_from_others_says_what_keeps_it_out_of_a_store() -> None:
    stores = frozenset({Store.TABLE, Store.SEARCH, Store.CACHE})
    view = DerivedView("by_status", ("status",), stores, ("orders",), sql="SELECT 1")
    down = {
        "code": "HW-P011",
        "message": "search does not answer",
        "detail": "ConnectionError",
        "hint": None,
    }
    said = {"error": None, "stores": {"search": {"error": down}, "cache": {"error": None}}}

    found = explain_derived(view, "shop", said, []).sinks

    assert "HW-P011 search does not answer: ConnectionError" == found["search"][-1]
    assert ("Delta table by_status",) == found["table"]
    assert ("keys shop:by_status:<key>",) == found["cache"]


def test_a_view_made_along_the_time_of_its_groups_says_so() -> None:
    extent = of_window(Session("at", "30 minutes"), ("person",))
    keys, to = ("person", "window_start"), frozenset({Store.TABLE})
    view = DerivedView("visits", keys, to, ("searches",), sql="SELECT 1", extent=extent)
    said = {"strategy": "keyed", "by": ["person"], "paths": {"searches": ["its own columns"]}}

    along = explain_derived(view, "shop", said, []).strategy
    dropped = replace(view, expectations=(expect("few", "searches < 9", on_fail="drop"),))
    whole = explain_derived(dropped, "shop", said, []).strategy

    said_of = "by person and, of many rows, from the at of a change on; searches: its own columns"
    assert said_of == along
    assert "by person; searches: its own columns" == whole


def test_a_window_that_slides_over_all_rows_says_that_it_is_kept_along_their_time() -> None:
    window = Sliding("at", "8 minutes")
    to, extent = frozenset({Store.TABLE}), of_window(window, ())
    view = DerivedView("lately", ("window_end",), to, ("orders",), sql="SELECT 1", extent=extent)
    said = {"strategy": "whole", "reason": "a window is not partitioned by orders.at"}
    dropped = replace(view, expectations=(expect("few", "orders < 9", on_fail="drop"),))

    assert "from the at of a change on" == explain_derived(view, "shop", said, []).strategy
    assert "computed as a whole" in explain_derived(dropped, "shop", said, []).strategy
