"""The search sink under pressure, on a full disk, with huge values, and with a lost index."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cdc.table import Column, ColumnKind
from projections.changes.row_change import Applied
from projections.definition.search_options import SearchOptions, Text
from projections.errors import (
    IndexLostError,
    PlanError,
    SinkReadOnlyError,
    SinkRefusedError,
    SinkUnavailableError,
    UnholdableValueError,
)
from projections.stores.opensearch import bulk
from projections.stores.opensearch.sink import SearchSink, index_name
from tests.oracles.sink_contract import delete, make_plan, make_row, upsert

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from projections.planning.view_plan import ViewPlan

pytestmark = pytest.mark.integration


@pytest.fixture
def sink(search_url: str) -> Iterator[SearchSink]:
    opened = SearchSink(search_url, patience_s=1.0)
    yield opened
    opened.close()


@pytest.fixture
def plan(sink: SearchSink) -> ViewPlan:
    made = make_plan()
    sink.prepare(made)
    return made


def ids(sink: SearchSink, plan: ViewPlan) -> list[Any]:
    return sorted(row["id"] for row in sink.documents(plan))


def test_deletes_are_remembered_through_merges_and_a_restart(
    sink: SearchSink, plan: ViewPlan
) -> None:
    """Closing an index ends its engine, and with it all that was only in memory."""
    index = index_name(plan)
    sink.engine.request("PUT", f"/{index}/_settings", {"index.gc_deletes": "0s"})
    sink.apply(plan, [upsert(1, make_row(n)) for n in (1, 2, 3)])
    sink.apply(plan, [delete(5, 1), delete(5, 4)])
    for step in ("_flush", "_forcemerge?max_num_segments=1", "_close", "_open"):
        sink.engine.request("POST", f"/{index}/{step}")
    sink.engine.request("GET", f"/_cluster/health/{index}?wait_for_status=yellow&timeout=30s")

    late = sink.apply(plan, [upsert(4, make_row(1)), upsert(4, make_row(4))])

    assert Applied(stale=2) == late
    assert [2, 3] == ids(sink, plan)


def test_an_engine_that_is_too_busy_is_given_less_at_a_time(
    sink: SearchSink, plan: ViewPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BULK_BYTES_LEAST", 1)
    send, sizes = sink.engine.bulk, []

    def refuse_much(index: str, body: list[bytes]) -> list[dict[str, Any]]:
        sizes.append(len(body))
        if len(sizes) == 1:
            raise SinkUnavailableError("search is too busy", detail="status 429")
        answers = send(index, body[:8])
        busy = {"status": 429, "error": {"type": "rejected_execution_exception"}}
        return answers + [busy] * (len(body) - len(answers))

    monkeypatch.setattr(sink.engine, "bulk", refuse_much)
    monkeypatch.setattr(bulk, "BULK_BYTES", 20_000)
    sink._sender._bytes_max = 20_000

    applied = sink.apply(plan, [upsert(1, make_row(n)) for n in range(40)])

    assert Applied(upserted=40) == applied
    assert list(range(40)) == ids(sink, plan)
    assert max(sizes) > 16 > min(sizes)


def test_an_engine_that_stays_too_busy_ends_the_batch_for_now(
    sink: SearchSink, plan: ViewPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_: str, body: list[bytes]) -> list[dict[str, Any]]:
        return [{"status": 429, "error": {"type": "rejected_execution_exception"}}] * len(body)

    monkeypatch.setattr(sink.engine, "bulk", busy)

    with pytest.raises(SinkUnavailableError) as caught:
        sink.apply(plan, [upsert(1, make_row(n)) for n in range(5)])

    assert ("5 documents", True) == (caught.value.detail, caught.value.retriable)


@pytest.mark.parametrize("block", ["read_only_allow_delete", "write", "read_only"])
def test_a_read_only_index_is_told_with_its_remedy(
    sink: SearchSink, plan: ViewPlan, block: str
) -> None:
    settings = f"/{index_name(plan)}/_settings"
    sink.engine.request("PUT", settings, {f"index.blocks.{block}": True})

    with pytest.raises(SinkReadOnlyError) as caught:
        sink.apply(plan, [upsert(1, make_row())])

    assert caught.value.retriable
    assert "free disk space" in str(caught.value.hint)
    sink.engine.request("PUT", settings, {f"index.blocks.{block}": None})
    assert 1 == sink.apply(plan, [upsert(1, make_row())]).upserted


def test_a_document_that_is_too_large_waits_and_all_others_are_written(
    sink: SearchSink, plan: ViewPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "DOCUMENT_BYTES", 3 << 20)
    large = upsert(1, make_row(2, note="x" * (4 << 20)))

    applied = sink.apply(plan, [upsert(1, make_row(1)), large, upsert(1, make_row(3))])

    (refused,) = applied.refused
    assert (large.key, 2) == (refused.change.key, applied.upserted)
    assert isinstance(refused.error, UnholdableValueError)
    assert "too large" in refused.error.message
    assert [1, 3] == ids(sink, plan)


def test_a_request_that_the_engine_finds_too_large_waits_alone(
    sink: SearchSink, plan: ViewPlan
) -> None:
    """The engine's own limit is 100 MB; it is held to it by a document of more."""
    large = upsert(1, make_row(2, note="x " * (52 << 20)))

    applied = sink.apply(plan, [upsert(1, make_row(1)), large])

    assert [large.key] == [refused.change.key for refused in applied.refused]
    assert [1] == ids(sink, plan)


def test_a_term_that_is_too_long_is_named_by_its_field(sink: SearchSink) -> None:
    plan = replace(make_plan(), search=SearchOptions({"note": Text(analyzer="keyword")}))
    sink.prepare(plan)

    applied = sink.apply(
        plan, [upsert(1, make_row(1, note="y" * 40_000)), upsert(1, make_row(2)), delete(1, 3)]
    )

    (refused,) = applied.refused
    assert isinstance(refused.error, SinkRefusedError)
    assert (1, 1) == (applied.upserted, applied.deleted)
    assert "in field note" in str(refused.error.detail)
    assert "yyy" not in str(refused.error.detail)


def test_an_index_that_was_deleted_takes_nothing_until_the_view_is_prepared(
    sink: SearchSink, plan: ViewPlan
) -> None:
    sink.apply(plan, [upsert(1, make_row())])
    before = sink.mark(plan)
    sink.engine.request("DELETE", f"/{index_name(plan)}")

    for use in (
        lambda: sink.apply(plan, [upsert(2, make_row())]),
        lambda: sink.versions(plan, [upsert(2, make_row())]),
        lambda: sink.sweep(plan, 1),
    ):
        with pytest.raises(IndexLostError) as caught:
            use()
        assert not caught.value.retriable
    assert sink.mark(plan) is None
    sink.prepare(plan)
    assert sink.mark(plan) not in (None, before)


@pytest.mark.parametrize("noted", [True, False], ids=["restored", "made_by_somebody"])
def test_an_index_that_took_the_place_of_ours_is_noticed(
    sink: SearchSink, plan: ViewPlan, noted: bool
) -> None:
    index = index_name(plan)
    had = sink.engine.request("GET", f"/{index}")[index]["mappings"]
    sink.engine.request("DELETE", f"/{index}")
    sink.engine.request("PUT", f"/{index}", {"mappings": had} if noted else {})

    with pytest.raises(IndexLostError):
        sink.apply(plan, [upsert(1, make_row())])

    assert sink.mark(plan) is None


def test_nothing_is_made_by_a_write_to_an_index_that_never_was(sink: SearchSink) -> None:
    plan = replace(make_plan(), name=f"never_{secrets.token_hex(4)}")

    with pytest.raises(IndexLostError):
        sink.apply(plan, [upsert(1, make_row())])

    assert sink.mark(plan) is None


NAMES = [
    "a b",
    "имя",
    "Order No",
    "a:b",
    "a,b",
    "pay$id",
    "(id)",
    "a*",
    '"',
    "\\",
    "#",
    "a/b",
    "-5",
]
REFUSED = ["b.c", "x.", ".y", "..", " ", "_id", "_source", "_version", "_routing"]


@pytest.mark.parametrize("name", [*NAMES, *REFUSED])
def test_a_plan_is_refused_for_the_names_that_the_engine_refuses(
    sink: SearchSink, name: str
) -> None:
    """`note` is a text, so `note.keyword` is a field of the engine beside any column's."""
    plan = make_plan()
    column = Column(name, ColumnKind.TEXT, "text")
    plan = replace(plan, schema=replace(plan.schema, columns=(*plan.schema.columns, column)))
    if name in REFUSED:
        with pytest.raises(PlanError, match="cannot index column"):
            sink.prepare(plan)
        return
    sink.prepare(plan)

    sink.apply(plan, [upsert(1, make_row(1, **{name: "x"}))])

    assert [("x", 1)] == [(row[name], row["id"]) for row in sink.documents(plan)]
