from __future__ import annotations

import hashlib
import pickle
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from eventstore.serialization.registry import EventTypes
from projections.definition.cache_options import CacheOptions
from projections.definition.columns import ROW_ID_COLUMN, VERSION_COLUMN
from projections.definition.derived.view_function import ViewFunction
from projections.definition.event_rows import KEY, STORED
from projections.definition.expectations.expectation import expect
from projections.definition.mirror import events, mirror, source
from projections.definition.registry import load
from projections.definition.search_options import SearchOptions, Text
from projections.definition.views import EVENT_TABLES, EVENTS, EventsView, Store
from projections.errors import DeclarationError, PlanError
from projections.incremental.explain import explain
from projections.planning.view_plan import Facts, HistoryPlan, facts_of, plan_views

if TYPE_CHECKING:
    from pathlib import Path

    from projections.planning.view_plan import ViewPlan

ORDERS = TableName("public", "orders")
ID = Column("id", ColumnKind.INTEGER, "bigint", nullable=False)


def module(folder: Path, text: str) -> Path:
    path = folder / "views.py"
    path.write_text("from headwater import source, view\n" + text, encoding="utf-8")
    return path


def test_a_module_declares_by_running(tmp_path: Path) -> None:
    path = module(
        tmp_path,
        'shop = source("shop", tables=["orders", "sales.items"])\n'
        'view.mirror("orders", shop.orders, keys=["id"])\n'
        'view.mirror("items", shop["sales.items"], to=["cache"])\n',
    )

    declared = load(path)

    assert list(declared.sources) == ["shop"]
    assert frozenset(Store) == declared.views["orders"].to
    assert frozenset({Store.CACHE}) == declared.views["items"].to
    assert TableName("sales", "items") == declared.views["items"].table


@pytest.mark.parametrize(
    "text",
    [
        'source("Shop", tables=["orders"])',
        'source("shop", tables=[])',
        'source("shop", tables=["orders", "public.orders"])',
        'source("shop", tables=["orders"], insert_only=["visits"])',
        'source("shop", tables=["a"]); source("shop", tables=["b"])',
        's = source("shop", tables=["a"]); view.mirror("x; drop", s.a)',
        's = source("shop", tables=["a"]); view.mirror("v", s.a); view.mirror("v", s.a)',
        's = source("shop", tables=["a"]); view.mirror("v", s.a, to=["kafka"])',
        's = source("shop", tables=["a"]); view.mirror("v", s.a, to=[])',
        's = source("shop", tables=["a"]); view.mirror("v", s["b"])',
        's = source("shop", tables=["a"]); view.mirror("v", s.a, scd=3)',
        's = source("shop", tables=["a"]); view.mirror("v", s.a, scd=2, to=["table", "cache"])',
        's = source("shop", tables=["a"]); view.mirror("v", s.a, sequence_by="at")',
        (
            's = source("shop", tables=["a"]); view.mirror("v", s.a, scd=2,'
            ' track_history_column_list=["x"], track_history_except_column_list=["y"])'
        ),
    ],
)
def test_a_wrong_declaration_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DeclarationError):
        load(module(tmp_path, text))


def test_a_missing_module_hints_at_init(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError) as refused:
        load(tmp_path / "views.py")

    assert refused.value.hint == "headwater init"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("from headwater import view\n\nview.history('x')\n", "line 4: AttributeError: "),
        ("x = (\n", "line 2: SyntaxError: "),
        ("import nothing_of_that_name\n", "line 2: ModuleNotFoundError: "),
    ],
)
def test_a_mistake_in_the_file_of_views_is_told_with_its_line(tmp_path, text, detail):
    with pytest.raises(DeclarationError, match="raised an error") as refused:
        load(module(tmp_path, text))

    assert refused.value.detail.startswith(detail)


def test_an_error_survives_the_way_between_processes() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(PlanError("a", detail="b", hint="c")))  # noqa: S301

    assert (PlanError, "a", "b", "c") == (type(error), error.message, error.detail, error.hint)


def test_a_plan_follows_the_primary_key() -> None:
    shop = source("shop", tables=["orders"])
    schema = TableSchema(ORDERS, (ID,), ("id",))

    (plan,) = plan_views([mirror("orders", shop.orders)], {ORDERS: schema})

    assert (plan.keys, plan.topic, plan.append_only) == (("id",), "shop.public.orders", False)


def test_a_table_without_a_key_is_kept_by_row_position() -> None:
    shop = source("shop", tables=["orders"])

    (plan,) = plan_views([mirror("orders", shop.orders)], {ORDERS: TableSchema(ORDERS, (ID,))})

    assert (plan.keys, plan.append_only) == ((ROW_ID_COLUMN,), True)


@pytest.mark.parametrize(
    ("columns", "key", "keys"),
    [
        ((ID,), ("id",), ("other",)),
        ((ID, Column("_version", ColumnKind.INTEGER, "bigint")), ("id",), ()),
    ],
    ids=["other key", "reserved column"],
)
def test_a_view_that_does_not_fit_its_table_is_refused(
    columns: tuple[Column, ...], key: tuple[str, ...], keys: tuple[str, ...]
) -> None:
    shop = source("shop", tables=["orders"])

    with pytest.raises(PlanError):
        plan_views(
            [mirror("orders", shop.orders, keys)], {ORDERS: TableSchema(ORDERS, columns, key)}
        )


def test_a_module_declares_views_of_events(tmp_path: Path) -> None:
    path = module(
        tmp_path,
        'shop = source("shop", tables=["orders"], eventstore=True)\n'
        'view.events("orders_placed", shop.events("order.placed"), to=["table"])\n',
    )

    declared = load(path)

    captured = ["public.orders", "eventstore.events", "eventstore.archived_events"]
    assert captured == [str(table) for table in declared.sources["shop"].tables]
    placed = declared.views["orders_placed"]
    assert ("shop", EVENTS, {Store.TABLE}) == (placed.source, placed.table, placed.to)


@pytest.mark.parametrize(
    "text",
    [
        's = source("shop", tables=["a"]); s.events("order.placed")',
        's = source("shop", eventstore=True); s.events()',
        's = source("shop", eventstore=True); s.events("order.placed", "order.placed")',
        's = source("shop", eventstore=True); s.events(int)',
        'e = source("s", eventstore=True).events("a.b"); view.events("v", e); view.events("v", e)',
        's = source("shop", eventstore=True); view.events("v", s.events("a.b"), to=["kafka"])',
        'source("shop", tables=["eventstore.events"], eventstore=True)',
        'source("shop", tables=["eventstore.outbox"], eventstore=True)',
    ],
)
def test_a_wrong_declaration_of_events_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DeclarationError):
        load(module(tmp_path, text))


def test_a_module_finds_those_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "names_of_this_test.py").write_text('STORE = "cache"', encoding="utf-8")
    path = module(
        tmp_path,
        "from names_of_this_test import STORE\n"
        'view.mirror("orders", source("shop", tables=["orders"]).orders, to=[STORE])\n',
    )

    assert {Store.CACHE} == load(path).views["orders"].to
    assert str(tmp_path) == sys.path[-1]


def events_view(*types: str) -> EventsView:
    registry = EventTypes()
    registry.untyped("order.placed")
    shop = source("shop", eventstore=True)
    return events("placed", shop.events(*types, registry=registry))


LOG = {
    table: TableSchema(table, tuple(Column(n, ColumnKind.TEXT, "text") for n in STORED), (KEY,))
    for table in EVENT_TABLES
}


def test_a_view_of_events_is_made_from_both_of_the_logs_tables() -> None:
    (plan,) = plan_views([events_view("order.placed")], LOG)

    live, archived = "shop.eventstore.events", "shop.eventstore.archived_events"
    assert [live, archived] == list(plan.topics)
    assert ((KEY,), False) == (plan.keys, plan.append_only)
    assert Facts(frozenset({"order.placed"}), deletes=False) == facts_of([plan], live)
    assert Facts(frozenset({"order.placed"}), deletes=True) == facts_of([plan], archived)


@pytest.mark.parametrize("tables", [{}, {EVENTS: LOG[EVENTS]}], ids=["none", "older"])
def test_a_view_of_events_needs_an_event_store(tables: dict[TableName, TableSchema]) -> None:
    with pytest.raises(PlanError) as refused:
        plan_views([events_view("order.placed")], tables)

    assert "headwater db upgrade" == refused.value.hint


def test_a_view_of_an_unknown_event_type_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"view placed: unknown type order\.paid"):
        plan_views([events_view("order.placed", "order.paid")], LOG)


def test_a_view_of_a_table_that_is_not_there_is_refused() -> None:
    shop = source("shop", tables=["orders"])

    with pytest.raises(PlanError, match=r"no table public\.orders"):
        plan_views([mirror("orders", shop.orders)], {})


PRICES = TableSchema(
    TableName("public", "prices"),
    (
        ID,
        Column("price", ColumnKind.NUMERIC, "numeric(9,2)", 9, 2),
        Column("note", ColumnKind.TEXT, "text"),
        Column("since", ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
    ),
    ("id",),
)


def plan_of(schema: TableSchema = PRICES, **words: Any) -> ViewPlan:
    view = mirror("prices", source("shop", tables=[str(schema.table)])[str(schema.table)], **words)
    (plan,) = plan_views([view], {schema.table: schema})
    return plan


def test_a_history_tracks_all_that_it_keeps_unless_it_says_otherwise() -> None:
    told = plan_of(
        scd=2,
        sequence_by="since",
        except_column_list=["since"],
        track_history_except_column_list=["note"],
    )
    named = plan_of(scd=2, track_history_column_list=["price"])

    assert HistoryPlan(("id", "price", "note", "since")) == plan_of(scd=2).history
    assert HistoryPlan(("id", "price"), "since") == told.history
    assert ["id", "price", "note"] == list(told.schema.by_name)
    assert {"id", "price", "note", "since"} == told.topics[told.topic].by_name.keys()
    assert frozenset({Store.TABLE}) == told.to
    assert named.history is not None
    assert ("price",) == named.history.tracked


def test_a_mirror_has_the_columns_that_its_list_does_not_leave_out() -> None:
    reserved = Column(VERSION_COLUMN, ColumnKind.TEXT, "text")
    table = TableSchema(PRICES.table, (*PRICES.columns, reserved), ("id",))

    plan = plan_of(table, except_column_list=["note", VERSION_COLUMN, "note"])

    assert ["id", "price", "since"] == list(plan.schema.by_name)
    assert (("id",), frozenset(Store)) == (plan.keys, plan.to)
    assert {plan.topic: plan.schema} == plan.topics
    assert ["note", VERSION_COLUMN] == [column.name for column in plan.left_out]
    assert ("note", VERSION_COLUMN) == explain(plan, [plan]).without


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"except_column_list": ["colour"]}, "no column colour"),
        ({"except_column_list": ["note", "id"]}, "column id is part of the key"),
        ({"expect": [expect("noted", "note <> ''")]}, "note"),
        ({"apply_as_deletes": "note IS NULL"}, "note"),
        ({"search": SearchOptions(fields={"note": Text()})}, "a column that the view lacks"),
        ({"cache": CacheOptions(lookups=["noted:{note}"])}, "note"),
        ({"cache": CacheOptions(counters={"noted:{note}": "*"})}, "note"),
    ],
)
def test_a_column_that_is_left_out_cannot_be_named(words: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan_of(**{"except_column_list": ["note"], **words})


def test_something_of_a_table_without_a_key_is_left() -> None:
    keyless = TableSchema(PRICES.table, PRICES.columns)

    with pytest.raises(PlanError, match=r"no column of public\.prices is left"):
        plan_of(keyless, except_column_list=list(keyless.by_name))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"track_history_column_list": ["colour"]}, "no column colour"),
        ({"sequence_by": "note"}, "column note is not a time"),
        ({"except_column_list": ["id"]}, "column id is part of the key"),
        (
            {"except_column_list": ["note"], "track_history_column_list": ["note"]},
            "column note is both tracked and left out",
        ),
    ],
)
def test_a_history_that_does_not_fit_its_table_is_refused(words: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan_of(scd=2, **words)


def test_a_history_needs_a_key_and_names_of_its_own() -> None:
    reserved = Column("valid_to", ColumnKind.TEXT, "text")

    with pytest.raises(PlanError, match="has no key"):
        plan_of(TableSchema(PRICES.table, PRICES.columns), scd=2)
    with pytest.raises(PlanError, match="column valid_to is reserved"):
        plan_of(TableSchema(PRICES.table, (*PRICES.columns, reserved), ("id",)), scd=2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_version", "column _version is reserved"),
        ("_headwater_gone", "column _headwater_gone is reserved"),
        ("_Version", "column _Version is reserved in a table"),
        ("_change_type", "column _change_type is reserved in a table"),
        ("ID", "the warehouse does not distinguish columns id and ID"),
        ("VALID_TO", "column VALID_TO is reserved in a history"),
        ("_live", "column _live is reserved in a history"),
    ],
)
def test_columns_that_a_store_cannot_have_are_refused_there(name: str, said: str) -> None:
    columns = (*PRICES.columns, Column(name, ColumnKind.TEXT, "text"))
    table = TableSchema(PRICES.table, columns, ("id",))
    only_of_history = said.endswith("history")

    with pytest.raises(PlanError, match=said) as refused:
        plan_of(table, scd=2 if only_of_history else 1)
    assert f"except_column_list=['{name}']" in str(refused.value.hint)
    if only_of_history:
        assert name in plan_of(table).schema.by_name
    elif said != f"column {name} is reserved":
        assert name in plan_of(table, to=["search", "cache"]).schema.by_name


def test_a_view_by_a_function_is_found_again_in_its_module_wherever_it_is_sent(
    tmp_path: Path,
) -> None:
    path = module(
        tmp_path,
        'shop = source("shop", tables=["public.orders"])\n'
        'orders = view.mirror("orders", shop.orders)\n'
        '@view(keys=["id"])\n'
        "def doubled(orders):\n"
        "    return twice(orders)\n"
        "def twice(orders):\n"
        "    return orders * 2\n",
    )
    declared = load(path).derived["doubled"]

    sent = pickle.loads(pickle.dumps(declared))  # noqa: S301

    assert sent.function is not None
    assert "abab" == sent.function("ab")
    path.write_text(path.read_text().replace("* 2", "* 3"))
    assert load(path).derived["doubled"].text != declared.text == sent.text
    with pytest.raises(DeclarationError, match="has changed since it was declared"):
        pickle.loads(pickle.dumps(declared))  # noqa: S301
    path.write_text(path.read_text().replace("* 3", "* 2") + "unused = 1\n")
    assert "abab" == pickle.loads(pickle.dumps(declared)).function("ab")  # noqa: S301


ELSEWHERE = {
    "def around(made):\n    def inner(orders):\n        return made(orders)\n"
    "    return inner\n"
    '@view("doubled", keys=["id"])\n@around\ndef made(orders):\n    return orders * 2\n': (
        "it is nested in another function"
    ),
    'doubled = view("doubled", keys=["id"])(lambda orders: orders * 2)\n': (
        "not defined at the top level"
    ),
    "if shop:\n    @view(keys=['id'])\n    def doubled(orders):\n        return orders * 2\n": (
        "not defined at the top level"
    ),
    "import elsewhere\nview('doubled', keys=['id'])(elsewhere.made)\n": "in another module",
    "from elsewhere import *\n@view(keys=['id'])\ndef doubled(orders):\n    return orders * 2\n": (
        "import \\*"
    ),
}


@pytest.mark.parametrize(("text", "why"), ELSEWHERE.items())
def test_a_function_of_which_nobody_can_tell_what_it_needs_is_told_by_all_of_its_module(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "elsewhere.py").write_text("def made(orders):\n    return orders * 2\n")
    sys.modules.pop("elsewhere", None)
    before = 'shop = source("shop", tables=["public.orders"])\nview.mirror("orders", shop.orders)\n'
    path = module(tmp_path, before + text)
    declared = load(path).derived["doubled"]

    assert isinstance(declared.function, ViewFunction)
    assert re.search(why, declared.function.unresolved)
    assert "abab" == declared.function("ab")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == declared.text


def test_a_view_by_a_function_of_no_module_cannot_be_sent() -> None:
    def doubled(orders: str) -> str:
        return orders * 2

    made = ViewFunction(doubled, "doubled", None)

    assert "abab" == made("ab")
    with pytest.raises(DeclarationError, match="outside a module"):
        pickle.dumps(made)
