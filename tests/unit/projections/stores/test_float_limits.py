"""Conditions on floats find NaN where it is: files have no limits of such columns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.columns import DELETED_FIELD
from projections.definition.views import Store
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.stores.delta import table_format
from projections.stores.delta.arrow import table_schema
from projections.stores.delta.derived_table import DerivedTable
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.table_format import CONFIGURATION
from projections.stores.delta.table_sink import TableSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from projections.changes.sink import Sink

ID = Column("id", ColumnKind.INTEGER, "integer", nullable=False)
HEAT = Column("the heat, °C", ColumnKind.FLOAT, "double precision")
PLACE = Column("a.place", ColumnKind.TEXT, "text")
NAN, EQUAL = 2, 1.5
CONDITIONS = {
    "= 1.5": {1, 3},
    "< 2": {1, 3},
    "> 2": {NAN},
    "<> 1.5": {NAN},
    "BETWEEN 1 AND 2": {1, 3},
}
"""Conditions on the heat, and the rooms where they are true: NaN is greatest, as in Postgres."""


def plan_of(*columns: Column, history: HistoryPlan | None = None) -> ViewPlan:
    schema = TableSchema(TableName("public", "rooms"), columns, ("id",))
    to, topic = frozenset([Store.TABLE]), "shop.public.rooms"
    return ViewPlan("rooms", "shop", topic, schema, ("id",), to, history=history)


PLAN = plan_of(ID, HEAT, PLACE)


def change(number: int, version: int, heat: float, place: str = "a") -> RowChange:
    row = {"id": number, HEAT.name: heat, PLACE.name: place}
    return RowChange((number,), 1 << 56 | 8 * version, row, 1_000_000 * version)


def rooms(version: int, place: str) -> list[RowChange]:
    heats = {1: EQUAL, NAN: math.nan, 3: EQUAL}
    return [change(number, version, heat, place) for number, heat in heats.items()]


def answers(path: Path, current: str = "true") -> dict[str, set[int]]:
    """What conditions find, by the engine of `headwater query` and of alerts."""
    engine = QueryBuilder().register("rooms", DeltaTable(str(path)))
    found = {}
    for condition in CONDITIONS:
        query = f"""SELECT id FROM rooms WHERE "{HEAT.name}" {condition} AND {current}"""  # noqa: S608
        rows = pa.table(engine.execute(query).read_all())["id"].to_pylist()
        assert len(rows) == len({*rows})
        found[condition] = {*rows}
    return found


@pytest.fixture
def compacted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Does something, after which a table is compacted."""

    def after(work: Callable[[], Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(table_format, "COMMITS_PER_COMPACTION", 1)
            work()

    return after


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_conditions_on_a_mirror_find_what_is_not_a_number(
    tmp_path: Path, small_bytes: int, compacted: Callable[[Callable[[], Any]], None]
) -> None:
    sink, path = TableSink(tmp_path, small_bytes=small_bytes), tmp_path / "rooms"
    sink.prepare(PLAN)
    sink.apply(PLAN, rooms(1, "a"))
    assert answers(path) == CONDITIONS

    sink.apply(PLAN, [*rooms(2, "b")[:2], RowChange((9,), 1 << 56 | 16, None, 1)])
    assert answers(path) == CONDITIONS

    compacted(lambda: sink.apply(PLAN, rooms(3, "c")[1:]))
    assert answers(path) == CONDITIONS

    sink.sweep(PLAN, (1 << 56 | 24) - 1)
    assert answers(path)["< 2"] == {3}


def test_conditions_on_a_history_find_what_is_not_a_number(
    tmp_path: Path, compacted: Callable[[Callable[[], Any]], None]
) -> None:
    plan = replace(PLAN, history=HistoryPlan((HEAT.name, PLACE.name)))
    sink: Sink = HistorySink(tmp_path)
    sink.prepare(plan)
    for version in (1, 2):
        sink.apply(plan, rooms(version, f"{version}"))
        assert answers(tmp_path / "rooms", "is_current") == CONDITIONS

    compacted(lambda: sink.apply(plan, rooms(3, "c")))

    assert answers(tmp_path / "rooms", "is_current") == CONDITIONS


def test_conditions_on_a_derived_view_find_what_is_not_a_number(
    tmp_path: Path, compacted: Callable[[Callable[[], Any]], None]
) -> None:
    table, path = DerivedTable(tmp_path, "rooms", ("id",)), tmp_path / "rooms"

    def rows(place: str) -> pa.Table:
        heats = pa.array([EQUAL, math.nan, EQUAL])
        columns = {"id": [1, NAN, 3], HEAT.name: heats, PLACE.name: [place] * 3}
        nested = pa.StructArray.from_arrays([heats], ["heat"])
        lists = {"nested": nested, "list": [[1], [], None]}
        return pa.table({**columns, **lists, DELETED_FIELD: [False] * 3})

    table.write(rows("a"), 1, replaces_all=True)
    assert answers(path) == CONDITIONS
    table.write(rows("b").slice(1), 2)
    assert answers(path) == CONDITIONS
    compacted(lambda: table.write(rows("c").slice(2), 3))
    assert answers(path) == CONDITIONS
    table.write(rows("d").drop_columns([PLACE.name]), 4, replaces_all=True)
    assert answers(path) == CONDITIONS
    limited = DeltaTable(str(path)).metadata().configuration["delta.dataSkippingStatsColumns"]
    assert "`id`,`_version`" == limited


@pytest.mark.parametrize("now", [PLAN, plan_of(ID, HEAT), plan_of(ID, PLACE, HEAT)])
def test_a_table_of_before_has_limits_of_its_other_columns_once_it_is_written(
    tmp_path: Path, now: ViewPlan
) -> None:
    """Also if it got a column with floats, or lost one of the others, meanwhile."""
    path = tmp_path / "rooms"
    before = now if now is not PLAN else plan_of(ID, PLACE)
    schema = table_schema(before)
    DeltaTable.create(str(path), schema, configuration=dict(CONFIGURATION))
    DeltaTable.create(f"{path}.deleted", pa.schema([schema.field("id"), schema.field("_version")]))
    row = {"id": 9, HEAT.name: EQUAL, PLACE.name: "z", "_version": 1}
    write_deltalake(str(path), pa.Table.from_pylist([row], schema), mode="append")
    sink = TableSink(tmp_path, small_bytes=0)

    sink.prepare(now)
    sink.apply(now, rooms(1, "a"))
    sink.apply(now, [*rooms(2, "b")])

    last = {condition: ids - {9} for condition, ids in answers(path).items()}
    assert last == CONDITIONS
    table = DeltaTable(str(path))
    heat = pc.field(HEAT.name)
    assert {1, 3} <= {*table.to_pyarrow_dataset().to_table(filter=heat < 2)["id"].to_pylist()}
    limited = pa.table(table.get_add_actions(flatten=True)).column_names
    assert "min.id" in limited
    assert table.version() == _prepared_again(tmp_path, now)


def _prepared_again(root: Path, plan: ViewPlan) -> int:
    TableSink(root).prepare(plan)
    return DeltaTable(str(root / "rooms")).version()


def test_tables_without_floats_are_limited_as_delta_does_by_itself(tmp_path: Path) -> None:
    plan = plan_of(ID, PLACE)
    TableSink(tmp_path).prepare(plan)

    configuration = DeltaTable(str(tmp_path / "rooms")).metadata().configuration
    assert CONFIGURATION == configuration
