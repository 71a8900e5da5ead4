"""Search indices that somebody else has made otherwise, and options that some rows do not fit."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.table import Column, ColumnKind, TableName
from projections.definition.search_options import SearchOptions, Text
from projections.definition.views import MirrorView, Store
from projections.errors import IndexLostError, IndexRefusedError
from projections.stores.opensearch.client import EngineRefusedError, SearchEngine
from projections.stores.opensearch.sink import SearchSink, index_name
from tests.fix_capture import reading
from tests.oracles.sink_contract import make_plan, make_row, upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from projections.planning.view_plan import ViewPlan
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = pytest.mark.integration


@pytest.fixture
def sink(search_url: str) -> Iterator[SearchSink]:
    opened = SearchSink(search_url)
    yield opened
    opened.close()


def types(sink: SearchSink, plan: ViewPlan, *names: str) -> list[str]:
    found = sink.engine.request("GET", f"/{index_name(plan)}/_mapping")
    properties = found[index_name(plan)]["mappings"]["properties"]
    return [properties[name]["type"] for name in names]


def ids(sink: SearchSink, plan: ViewPlan) -> list[Any]:
    return sorted(row["id"] for row in sink.documents(plan))


def test_an_index_that_somebody_made_with_other_types_becomes_the_views_own(
    sink: SearchSink,
) -> None:
    plan = make_plan()
    made = {"properties": {"id": {"type": "text"}, "note": {"type": "date"}}}
    sink.engine.request("PUT", f"/{index_name(plan)}", {"mappings": made})
    sink.engine.request("PUT", f"/{index_name(plan)}/_doc/7", {"id": "seven", "note": "2024-01-01"})

    sink.prepare(plan)

    assert ["long", "text"] == types(sink, plan, "id", "note")
    assert 2 == sink.apply(plan, [upsert(1, make_row(n)) for n in (1, 2)]).upserted
    sink.sweep(plan, upsert(1, make_row()).version)  # as after the first read of the table
    assert [1, 2] == ids(sink, plan)


def test_an_index_with_the_right_types_and_nothing_else_gets_all_that_is_the_views(
    sink: SearchSink,
) -> None:
    plan = make_plan()
    sink.prepare(plan)
    index = index_name(plan)
    mappings = sink.engine.request("GET", f"/{index}")[index]["mappings"]
    del mappings["_meta"]
    sink.engine.request("DELETE", f"/{index}")
    sink.engine.request("PUT", f"/{index}", {"mappings": mappings | {"dynamic": "true"}})

    sink.prepare(plan)

    sink.apply(plan, [upsert(1, make_row())])
    assert [1] == ids(sink, plan)  # through the alias
    with pytest.raises(EngineRefusedError, match="refuses"):
        sink.engine.request("PUT", f"/{index}/_doc/9", {"not_ours": 1})


def test_a_field_that_somebodys_document_added_gives_way_to_the_views(sink: SearchSink) -> None:
    plan = make_plan()
    sink.prepare(plan)
    sink.apply(plan, [upsert(1, make_row(n)) for n in (1, 2)])
    index = index_name(plan)
    sink.engine.request("PUT", f"/{index}/_mapping", {"dynamic": "true"})
    sink.engine.request("PUT", f"/{index}/_doc/x?refresh=true", {"later": 5})
    assert ["long"] == types(sink, plan, "later")
    columns = (*plan.schema.columns, Column("later", ColumnKind.TEXT, "text"))
    wider = replace(plan, schema=replace(plan.schema, columns=columns))

    sink.prepare(wider)

    assert ["text"] == types(sink, plan, "later")
    change = upsert(2, make_row(1) | {"later": "words"})
    assert 1 == sink.apply(wider, [change]).upserted


def test_documents_that_new_options_cannot_take_are_left_out_and_the_view_is_read_anew(
    sink: SearchSink,
) -> None:
    plan = make_plan()
    sink.prepare(plan)
    changes = [upsert(1, make_row(1)), upsert(1, make_row(2, note="y" * 40_000))]
    sink.apply(plan, changes)
    before = sink.mark(plan)
    other = replace(plan, search=SearchOptions({"note": Text(analyzer="keyword")}))

    with pytest.raises(IndexLostError) as caught:
        sink.prepare(other)

    assert "1 left out; note: text +keyword -> text analyzer=keyword" in str(caught.value.detail)
    assert [1] == ids(sink, plan)
    sink.prepare(other)
    assert sink.mark(other) not in (None, before)  # so the job knows that it is another place
    applied = sink.apply(other, changes)
    assert ([changes[1].key], 1) == ([each.change.key for each in applied.refused], applied.stale)


def test_an_index_that_bears_the_views_name_is_told_with_its_remedy(sink: SearchSink) -> None:
    plan = make_plan()
    sink.engine.request("PUT", f"/{plan.name}")

    with pytest.raises(IndexRefusedError) as caught:
        sink.prepare(plan)

    assert f"an index with the name of the alias {plan.name}" in str(caught.value.hint)
    sink.engine.request("DELETE", f"/{plan.name}")
    sink.prepare(plan)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.soak(minutes=2)
def test_a_view_whose_index_is_refused_stands_still_in_search_and_nothing_else_does(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    database: str,
    search_url: str,
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("notes", "others"):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, body text)")
            rows = f"INSERT INTO {table} SELECT n, 'x' FROM generate_series(1, 9) n"  # noqa: S608
            connection.execute(rows.encode())
    captured = capture("notes", "others")
    name = captured.spec.name
    broken, well = (
        MirrorView(f"{name}_{table}", name, TableName("public", table), (), stores)
        for table, stores in (
            ("notes", frozenset({Store.SEARCH, Store.CACHE})),
            ("others", frozenset({Store.SEARCH})),
        )
    )
    broken = replace(broken, search=SearchOptions(analyzer="nobody_has_this"))
    job = view_job(captured, views=[broken, well])
    job.start()
    job.wait(lambda said: said["state"] == "ready" and said["paused"])
    captured.execute("UPDATE notes SET body = 'changed'", "DELETE FROM others WHERE id = 3")
    with closing(SearchEngine(search_url)) as engine:
        job.wait(lambda _: count(engine, well.name) == 8)

        (paused,) = job.status()["paused"]
        assert (broken.name, ["search"]) == (paused["view"], paused["stores"])
        assert IndexRefusedError.code == paused["error"]["code"]
        assert "nobody_has_this" in paused["error"]["detail"]
        assert 0 == job.stop()

        job.spec = replace(
            job.spec,
            plans=tuple(replace(plan, search=well.search) for plan in job.spec.plans),
            views=(replace(broken, search=well.search), well),
        )
        job.start()
        with reading(captured):
            assert [] == job.catch_up()
        assert [] == job.status()["paused"]
        assert 9 == count(engine, broken.name)
        assert 0 == job.stop()


def count(engine: SearchEngine, alias: str) -> int:
    found = engine.request("GET", f"/_cat/aliases/{alias}?format=json")
    return int(engine.request("GET", f"/{alias}/_count")["count"]) if found else -1
