"""What a view says of its search: refused where it cannot hold, and compared with what there is."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from headwater import Keyword, SearchOptions, Stored, Text
from projections.definition.mirror import mirror, source
from projections.errors import DeclarationError, PlanError, SearchQueryError
from projections.planning.view_plan import plan_views
from projections.stores.opensearch.filter import FieldCondition, Operator
from projections.stores.opensearch.mapping import index_body
from projections.stores.opensearch.reindex import changes

if TYPE_CHECKING:
    from projections.planning.view_plan import ViewPlan

PRODUCTS = TableName("public", "products")
SCHEMA = TableSchema(
    PRODUCTS,
    (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        Column("name", ColumnKind.TEXT, "text"),
        Column("price", ColumnKind.NUMERIC, "numeric"),
        Column("sold", ColumnKind.BOOLEAN, "boolean"),
        Column("extra", ColumnKind.JSON, "jsonb"),
    ),
    ("id",),
)


def planned(options: SearchOptions | None = None) -> ViewPlan:
    shop = source("shop", tables=["products"])
    view = mirror("products", shop.products, search=options)
    (plan,) = plan_views([view], {PRODUCTS: SCHEMA})
    return plan


def existing(options: SearchOptions | None = None) -> dict[str, Any]:
    """An index as the engine tells it."""
    body = deepcopy(index_body(planned(options)))
    analysis = body["settings"].get("analysis", {})
    return {"mappings": body["mappings"], "settings": {"index": {"analysis": analysis}}}


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Text(boost=0),
        lambda: Keyword(boost=float("nan")),
        lambda: Text(suggest=True, exact=False),
        lambda: SearchOptions({"name": "english"}),  # type: ignore[dict-item]
        lambda: SearchOptions(analysis={"analyzer": object()}),
        lambda: mirror("p", source("s", ["products"]).products, search={"name": Text()}),  # type: ignore[arg-type]
        lambda: mirror(
            "p", source("s", ["products"]).products, to=["cache"], search=SearchOptions()
        ),
    ],
)
def test_options_that_cannot_hold_are_refused_where_they_are_written(declare: Any) -> None:
    with pytest.raises(DeclarationError):
        declare()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nam": Text()}, "did you mean name?"),
        ({"price": Text()}, "numbers, times and booleans"),
        ({"sold": Keyword()}, "numbers, times and booleans"),
        ({"id": Keyword(lowercase=True)}, "numbers, times and booleans"),
    ],
)
def test_options_that_do_not_fit_the_columns_are_refused_by_the_plan(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlanError) as caught:
        planned(SearchOptions(fields))

    assert said in str(caught.value.hint)


def test_what_an_index_cannot_take_is_named_by_field_with_both_forms() -> None:
    declared = SearchOptions(
        {"name": Text(analyzer="english"), "id": Keyword(), "extra": Stored(), "price": Stored()},
        analysis={"filter": {"s": {"type": "truncate", "length": 3}}},
    )

    found = changes(existing(), index_body(planned(declared)))

    assert [
        "id: long -> keyword",
        "name: text +keyword -> text analyzer=english +keyword",
        "price: double -> double index=False",
        "extra: text -> text index=False",
        "analysis: as it was -> filter.s",
    ] == [str(change) for change in found]


def test_what_counts_more_or_comes_on_top_needs_no_new_index() -> None:
    declared = SearchOptions({"name": Text(boost=2)})
    had = existing()
    del had["mappings"]["properties"]["sold"]

    assert [] == changes(had, index_body(planned(declared)))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("total>=10", FieldCondition("total", Operator.AT_LEAST, "10")),
        (" a b != c=d", FieldCondition("a b", Operator.OTHER, "c=d")),
        ("note=", FieldCondition("note", Operator.EQUAL, "")),
        ("note IS NULL", FieldCondition("note", Operator.MISSING)),
        ("note is not null", FieldCondition("note", Operator.PRESENT)),
    ],
)
def test_a_condition_is_read_as_it_is_written(text: str, condition: FieldCondition) -> None:
    assert condition == FieldCondition.parse(text)


@pytest.mark.parametrize("text", ["", "total", "=3", "is null"])
def test_a_condition_without_field_or_comparison_is_refused(text: str) -> None:
    with pytest.raises(SearchQueryError):
        FieldCondition.parse(text)


@pytest.mark.parametrize("name", ["b.c", "x.", ".y", "..", " ", "_id", "_source"])
def test_a_column_that_the_engine_cannot_have_is_refused_where_its_view_is_planned(name):
    shop = source("shop", tables=["products"])
    schema = replace(SCHEMA, columns=(*SCHEMA.columns, Column(name, ColumnKind.TEXT, "text")))

    with pytest.raises(PlanError) as refused:
        plan_views([mirror("products", shop.products)], {PRODUCTS: schema})
    assert repr(name) in refused.value.message

    elsewhere = mirror("elsewhere", shop.products, to=["table", "cache"])
    (plan,) = plan_views([elsewhere], {PRODUCTS: schema})
    assert name in plan.schema.by_name
