"""A view is searched by its name: words, conditions, facets, suggestions; options say how."""

from __future__ import annotations

import secrets
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.search_options import Keyword, SearchOptions, Stored, Text
from projections.definition.views import Store
from projections.errors import (
    IndexRefusedError,
    NoIndexError,
    SearchFieldError,
    SearchQueryError,
)
from projections.planning.view_plan import ViewPlan
from projections.stores.opensearch.query import SearchQuery
from projections.stores.opensearch.searcher import FacetValue, Searcher, Suggestion, conditions
from projections.stores.opensearch.sink import SearchSink, index_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

pytestmark = pytest.mark.integration

FIRST = 1 << 56
COLUMNS = (
    Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("name", ColumnKind.TEXT, "text"),
    Column("category", ColumnKind.TEXT, "text"),
    Column("about", ColumnKind.TEXT, "text"),
    Column("price", ColumnKind.NUMERIC, "numeric(9,2)", 9, 2),
    Column("sold", ColumnKind.BOOLEAN, "boolean"),
    Column("made", ColumnKind.DATE, "date"),
    Column("secret", ColumnKind.TEXT, "text"),
)
OPTIONS = SearchOptions(
    fields={
        "name": Text(suggest=True, boost=3),
        "about": Text(analyzer="english", exact=False),
        "category": Keyword(lowercase=True),
        "secret": Stored(),
    }
)
PRODUCTS = (
    (1, "Red chair", "Seats", "Four wooden legs", "49.90", True),
    (2, "Red table", "Tables", "A table for the chairs", "149.00", False),
    (3, "Blue chair", "Seats", None, "12.50", False),
    (4, "Lamp + shade", "Lights", "It is 100% -bright- (warm)", "9.99", None),
)


def products(name: str, options: SearchOptions = OPTIONS) -> ViewPlan:
    table = TableSchema(TableName("public", "products"), COLUMNS, ("id",))
    store = frozenset([Store.SEARCH])
    return ViewPlan(name, "t", "t.public.products", table, ("id",), store, search=options)


def row(number: int, name: str, category: str, about: str | None, *rest: Any) -> RowChange:
    price, sold = rest
    values = (number, name, category, about, Decimal(price), sold, None, f"hidden {number}")
    columns = [column.name for column in COLUMNS]
    return RowChange((number,), FIRST + number, dict(zip(columns, values, strict=True)), 1)


@pytest.fixture(scope="module")
def view(search_url: str) -> Iterator[str]:
    name = f"products_{secrets.token_hex(4)}"
    sink = SearchSink(search_url)
    sink.prepare(products(name))
    gone = RowChange((9,), FIRST + 9, None, 1)
    sink.apply(products(name), [*(row(*each) for each in PRODUCTS), gone])
    sink.engine.request("POST", f"/{name}/_refresh")
    yield name
    sink.close()


@pytest.fixture
def searcher(search_url: str) -> Iterator[Searcher]:
    with Searcher(search_url) as opened:
        yield opened


def keys(searcher: Searcher, view: str, query: SearchQuery | str) -> list[str]:
    return [hit.key for hit in searcher.search(view, query).hits]


def test_words_find_rows_and_a_name_counts_more_than_a_description(
    searcher: Searcher, view: str
) -> None:
    answer = searcher.search(view, "chair")

    assert (3, ["2"]) == (answer.total, [hit.key for hit in answer.hits][-1:])
    assert {"name": ("Red <em>chair</em>",)} == next(
        hit.highlights for hit in answer.hits if hit.key == "1"
    )
    assert {"about": ("A table for the <em>chairs</em>",)} == answer.hits[-1].highlights
    assert "49.90" == next(hit.row["price"] for hit in answer.hits if hit.key == "1")


def test_deleted_rows_and_hidden_fields_are_not_found(searcher: Searcher, view: str) -> None:
    assert 4 == searcher.search(view, SearchQuery()).total
    assert [] == keys(searcher, view, "hidden")


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("category=seats", ["1", "3"]),
        ("category!=SEATS", ["2", "4"]),
        ("name = Red chair", ["1"]),
        ("price>=49.90", ["1", "2"]),
        ("price<12.5", ["4"]),
        ("sold=true", ["1"]),
        ("sold is null", ["4"]),
        ("about is not null", ["1", "2", "4"]),
        ("id<=2", ["1", "2"]),
        ("made is null", ["1", "2", "3", "4"]),
    ],
)
def test_conditions_narrow_what_is_found(
    searcher: Searcher, view: str, condition: str, found: list[str]
) -> None:
    query = SearchQuery(where=conditions([condition]), sort=("id",))

    assert found == keys(searcher, view, query)


def test_facets_are_counted_over_all_that_is_found(searcher: Searcher, view: str) -> None:
    query = SearchQuery("red chair", facets=("category", "sold"), size=1)

    answer = searcher.search(view, query)

    assert (3, 1) == (answer.total, len(answer.hits))
    assert (FacetValue("seats", 2), FacetValue("tables", 1)) == answer.facets["category"]
    assert {"true": 1, "false": 2} == {each.value: each.rows for each in answer.facets["sold"]}


def test_hits_are_sorted_and_paged(searcher: Searcher, view: str) -> None:
    query = SearchQuery(sort=("price:desc",), size=2, start=1)

    answer = searcher.search(view, query)

    assert ["1", "3"] == [hit.key for hit in answer.hits]
    assert {None} == {hit.score for hit in answer.hits}


@pytest.mark.parametrize(
    "text", ["+", "-bright-", "100%", '"(', "lamp AND", "\\", "shade~1", "(warm)", "a:b", "|"]
)
def test_no_character_of_a_text_is_syntax(searcher: Searcher, view: str, text: str) -> None:
    assert set(keys(searcher, view, text)) <= {"4", "2"}


def test_syntax_is_there_for_those_who_ask(searcher: Searcher, view: str) -> None:
    assert ["3"] == keys(searcher, view, SearchQuery("chair -red -(table | sofa)", syntax=True))
    assert ["1"] == keys(searcher, view, SearchQuery("red chair wooden", every_word=True))


def test_a_word_that_is_not_there_is_corrected(searcher: Searcher, view: str) -> None:
    answer = searcher.search(view, SearchQuery("rad chiar", fields=("name",)))

    assert (0, "red chair") == (answer.total, answer.did_you_mean)


def test_what_is_being_typed_finds_values(searcher: Searcher, view: str) -> None:
    assert [Suggestion("name", "Red chair", 1)] == searcher.suggest(view, "red ch")
    narrowed = SearchQuery("cha", conditions(["price<20"]), fields=("name",))
    assert [Suggestion("name", "Blue chair", 1)] == searcher.suggest(view, narrowed)
    assert [] == searcher.suggest(view, "(")


@pytest.mark.parametrize(
    ("query", "error", "hint"),
    [
        (SearchQuery(where=conditions(["pric>1"])), SearchFieldError, "did you mean price?"),
        (SearchQuery(where=conditions(["about=x"])), SearchFieldError, "Keyword()"),
        (SearchQuery(facets=("secret",)), SearchFieldError, "Keyword()"),
        (SearchQuery(sort=("nothing at all",)), SearchFieldError, "fields: about, category"),
        (SearchQuery("x", fields=("price",)), SearchFieldError, "--where price"),
        (SearchQuery(where=conditions(["price>dear"])), SearchQueryError, "field=value"),
        (SearchQuery(where=conditions(["id=9223372036854775808"])), SearchQueryError, "field"),
        (SearchQuery(where=conditions(["made>yesterday"])), SearchQueryError, "fewer"),
        (SearchQuery(size=10, start=9_991), SearchQueryError, "headwater query"),
        (SearchQuery("x" * 1001), SearchQueryError, None),
    ],
)
def test_what_cannot_be_asked_is_named(
    searcher: Searcher, view: str, query: SearchQuery, error: type[Exception], hint: str | None
) -> None:
    with pytest.raises(error) as caught:
        searcher.search(view, query)

    assert hint is None or hint in str(getattr(caught.value, "hint", None))


def test_a_view_that_is_not_there_is_named_with_the_nearest(searcher: Searcher, view: str) -> None:
    with pytest.raises(NoIndexError) as caught:
        searcher.search(view + "x", "chair")

    assert f"did you mean {view}?" == caught.value.hint
    for name in ("_all", "*", "a,b", "../x"):
        with pytest.raises(NoIndexError):
            searcher.search(name, "chair")


def test_a_long_text_does_not_fail_the_search(search_url: str, searcher: Searcher) -> None:
    plan = products(f"long_{secrets.token_hex(4)}")
    sink = SearchSink(search_url)
    sink.prepare(plan)
    sink.apply(plan, [row(1, "x" * 40_000, "y" * 9_000, "needle " + "hay " * 500_000, "1", None)])
    sink.engine.request("POST", f"/{plan.name}/_refresh")

    answer = searcher.search(plan.name, "needle")

    assert ("1", 1) == (answer.hits[0].key, answer.total)
    sink.close()


def test_an_index_is_made_anew_for_other_options_and_keeps_its_rows(
    search_url: str, searcher: Searcher, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"products_{secrets.token_hex(4)}"
    sink = SearchSink(search_url)
    plain = products(name, SearchOptions())
    sink.prepare(plain)
    sink.apply(plain, [*(row(*each) for each in PRODUCTS), RowChange((9,), FIRST + 9, None, 1)])
    before = sink.mark(plain)
    sink.prepare(plain)
    assert before == sink.mark(plain)  # nothing differs: nothing is copied

    declared = replace(
        OPTIONS,
        analysis={
            "analyzer": {"folded": {"tokenizer": "standard", "filter": ["lowercase", "short"]}},
            "filter": {"short": {"type": "truncate", "length": 3}},
        },
        analyzer="folded",
    )
    sink.prepare(products(name, declared))

    assert before != (mark := sink.mark(plain))
    said = capsys.readouterr()
    assert "name: text +keyword -> text analyzer=folded +keyword +suggest" in said.out + said.err
    sink.engine.request("POST", f"/{name}/_refresh")
    assert {"1", "2", "3"} == set(keys(searcher, name, "reddish chalk"))
    late = RowChange((9,), FIRST + 8, dict(row(*PRODUCTS[0]).row or {}) | {"id": 9}, 1)
    assert 1 == sink.apply(products(name, declared), [late]).stale
    sink.prepare(products(name, declared))
    assert mark == sink.mark(plain)
    sink.close()


def test_an_analyzer_that_the_engine_has_not_is_named(search_url: str) -> None:
    sink = SearchSink(search_url)
    plan = products(f"p_{secrets.token_hex(4)}", SearchOptions({"name": Text(analyzer="klingon")}))

    with pytest.raises(IndexRefusedError) as caught:
        sink.prepare(plan)

    assert "klingon" in str(caught.value.detail)
    assert sink.mark(plan) is None
    sink.close()


def test_a_view_may_have_more_columns_than_an_index_has_fields(
    search_url: str, searcher: Searcher
) -> None:
    few, many = 400, 1_200
    columns = tuple(Column(f"c{n}", ColumnKind.TEXT, "text") for n in range(many))
    plan = products(f"wide_{secrets.token_hex(4)}", SearchOptions())
    key = (Column("id", ColumnKind.INTEGER, "bigint"),)
    tables = [
        TableSchema(TableName("public", "wide"), key + columns[:count], ("id",))
        for count in (few, many)
    ]
    sink = SearchSink(search_url)
    for table in tables:
        sink.prepare(replace(plan, schema=table))

    change = RowChange((1,), FIRST, {"id": 1} | {c.name: c.name for c in columns}, 1)
    assert 1 == sink.apply(replace(plan, schema=tables[1]), [change]).upserted

    sink.engine.request("POST", f"/{index_name(plan)}/_refresh")
    assert ["1"] == keys(searcher, plan.name, SearchQuery("c1199", fields=("c1199",)))
    with pytest.raises(SearchQueryError) as caught:
        searcher.search(plan.name, "c1199")
    assert "--in" in str(caught.value.hint)
    sink.close()
