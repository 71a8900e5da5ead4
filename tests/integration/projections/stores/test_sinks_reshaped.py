"""Every store takes the columns that a view has now, and keeps the rows that it has."""

from __future__ import annotations

import secrets
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from cdc.lsn import Lsn
from cdc.schema_change.shape import ColumnShape, ShapeVersion, TableHistory, TableShape
from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.errors import SinkUnavailableError
from projections.planning.row_upcaster import TableShapes
from projections.planning.view_plan import ViewPlan
from projections.stores.delta.table_sink import TableSink
from projections.stores.opensearch.sink import SearchSink
from projections.stores.valkey.sink import CacheSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from projections.changes.sink import Sink

pytestmark = pytest.mark.integration

TABLE = TableName("public", "things")
VERSION = 1 << 56
BEFORE = (
    Column("id", ColumnKind.INTEGER, "integer"),
    Column("a", ColumnKind.TEXT, "text"),
    Column("n", ColumnKind.INTEGER, "integer"),
    Column("gone", ColumnKind.TEXT, "text"),
)
AFTER = (
    Column("id", ColumnKind.INTEGER, "bigint"),
    Column("label", ColumnKind.TEXT, "text"),
    Column("n", ColumnKind.NUMERIC, "numeric(9,2)", 9, 2),
    Column("on_top", ColumnKind.BOOLEAN, "boolean"),
)
NUMBERS = ({"id": 1, "a": 2, "n": 3, "gone": 4}, {"id": 1, "label": 2, "n": 3, "on_top": 5})


@pytest.fixture(params=list(Store))
def open_sink(
    request: pytest.FixtureRequest, cache_url: str, search_url: str, tmp_path: Path
) -> Callable[[], Sink]:
    if request.param is Store.CACHE:
        return lambda: CacheSink(cache_url, "t:")
    if request.param is Store.SEARCH:
        return lambda: SearchSink(search_url)
    return lambda: TableSink(tmp_path)


def plans() -> tuple[ViewPlan, ViewPlan]:
    """A view before and after its table has changed."""
    shapes = [
        TableShape(7, TABLE, tuple(ColumnShape(n, name, "") for name, n in numbers.items()), (1,))
        for numbers in NUMBERS
    ]
    history = TableHistory.of(
        ShapeVersion(place, Lsn(place), None, shape, "", rewritten=None)
        for place, shape in enumerate(shapes)
    )
    before, after = (
        ViewPlan(
            "",
            "t",
            "t.public.things",
            TableSchema(TABLE, columns, ("id",)),
            ("id",),
            frozenset(Store),
            shapes={"t.public.things": TableShapes(history, numbers)},
        )
        for columns, numbers in zip((BEFORE, AFTER), NUMBERS, strict=True)
    )
    name = f"things_{secrets.token_hex(5)}"
    return replace(before, name=name), replace(after, name=name)


def change(version: int, number: int, **row: object) -> RowChange:
    return RowChange((number,), VERSION + version, {"id": number, **row} if row else None, 0)


@pytest.mark.parametrize("open_sink", [Store.TABLE], indirect=True)
def test_whoever_reads_by_columns_that_are_gone_is_told_to_try_again(
    open_sink: Callable[[], Sink],
) -> None:
    before, after = plans()
    reader, writer = open_sink(), open_sink()
    writer.prepare(before)
    writer.apply(before, [change(1, 1, a="label", n=1, gone="x")])
    assert 1 == len(reader.stored(before, [(1,)])[0].documents)
    writer.prepare(after)

    for read in (
        lambda: reader.stored(before, [(1,)]),
        lambda: list(reader.documents(before)),
        lambda: list(reader.parts(before)),
    ):
        with pytest.raises(SinkUnavailableError) as told:
            read()
        assert told.value.retriable


def test_a_store_follows_its_view(open_sink: Callable[[], Sink]) -> None:
    before, after = plans()
    sink = open_sink()
    sink.prepare(before)
    rows = [change(n, n, a=f"label {n}", n=n, gone="x") for n in (1, 2, 3)]
    sink.apply(before, [*rows, change(4, 4)])
    sink.sweep(before, VERSION + 1)

    sink.prepare(after)
    other = open_sink()
    other.prepare(after)
    read = [change(5, n, label=f"read {n}", n=Decimal("1.50"), on_top=True) for n in (1, 3)]
    late = change(3, 4, label="deleted before", n=Decimal(1), on_top=None)
    below = RowChange((9,), VERSION, {"id": 9, "label": "", "n": None, "on_top": None}, 0)
    applied = other.apply(after, [*read, late, below])

    assert (applied.upserted, applied.stale) == (2, 2)  # deletes and what was swept are remembered
    found = {row["id"]: row for row in sink.documents(after)}
    assert found.keys() == {1, 2, 3}
    assert found[1] == {"id": 1, "label": "read 1", "n": "1.50", "on_top": True}
    assert sink.versions(after, [*rows, late]) == [VERSION + n for n in (5, 2, 5, 4)]
    sink.prepare(after)
    assert len(list(sink.documents(after))) == 3
    for each in (sink, other):
        each.close()


def test_what_a_row_had_stays_until_it_is_read(tmp_path: Path) -> None:
    before, after = plans()
    sink = TableSink(tmp_path)
    sink.prepare(before)
    sink.apply(
        before, [change(1, 1, a="kept", n=7, gone="x"), change(2, 2, a=None, n=None, gone="")]
    )

    sink.prepare(after)

    found = sorted(sink.documents(after), key=lambda row: str(row["id"]))
    assert found == [
        {"id": 1, "label": "kept", "n": "7.00", "on_top": None},
        {"id": 2, "label": None, "n": None, "on_top": None},
    ]


def test_an_index_whose_copy_was_not_finished_is_finished(search_url: str) -> None:
    before, after = plans()
    sink = SearchSink(search_url)
    sink.prepare(before)
    sink.apply(before, [change(1, 1, a="x", n=7, gone="x")])
    sink.engine.request("PUT", f"/{before.name}-v1-spare", {"mappings": {"dynamic": "strict"}})

    sink.prepare(after)

    assert [row["id"] for row in sink.documents(after)] == [1]
    indices = sink.engine.request("GET", f"/_cat/indices/{before.name}*?format=json")
    assert [each["index"] for each in indices] == [f"{before.name}-v1"]
    sink.close()
