"""What a changed definition explains is set apart where two versions of a view are compared."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from cdc.lsn import Lsn
from cdc.table import Column, ColumnKind, TableName, TableSchema
from eventstore.serialization.registry import EventTypes
from projections.changes.row_change import RowChange
from projections.common import store_lock
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.diff import DefinitionChange, DefinitionChangeKind
from projections.definition.event_rows import KEY, EventForm
from projections.definition.expectations.expectation import Expectation, OnFail, deletes
from projections.definition.views import EVENTS, Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import EventsPlan, HistoryPlan, ViewPlan
from projections.publishing.published_versions import Published
from projections.stores.delta import table_diff
from projections.stores.delta.sink import WarehouseSink
from projections.versions import compare
from projections.versions.compare import VersionDifference, compare_versions
from tests.support.memory_sink import MemorySink

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TABLE = TableSchema(
    TableName("public", "orders"),
    (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        Column("status", ColumnKind.TEXT, "text"),
        Column("total", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
        Column("weight", ColumnKind.FLOAT, "double precision"),
    ),
    ("id",),
)
OLD = ViewPlan(
    "orders", "shop", "shop.public.orders", TABLE, ("id",), frozenset({Store.TABLE, Store.CACHE})
)
NEW = replace(OLD, name="orders.v2", active=False)
PLACED = (deletes("status = 'cancelled'"),)
ROWS = DefinitionChange(DefinitionChangeKind.REBUILD, ("rows",), rows=True)
NOTHING = DefinitionChange(DefinitionChangeKind.NONE)
EARLIER = "earlier states, which its definition computes differently"
HISTORY_COLUMNS = ("valid_from", "valid_to", "is_current", "recorded_from", "recorded_to")


def row(number: int, status: str = "placed", total: str = "1.00") -> dict[str, Any]:
    values = {"status": status, "total": Decimal(total), "weight": number / 2}
    return {"id": number, **values}


def changes(rows: Iterable[dict[str, Any]], since: int = 1) -> list[RowChange]:
    return [
        RowChange((each["id"],), version, each, version * 1000)
        for version, each in enumerate(rows, start=since)
    ]


class Stored:
    """Two versions in their stores, compared there."""

    def __init__(self, home: Path) -> None:
        self.spec = JobSpec(JobConfig.of_tables("shop", home, ()))
        self.tables = WarehouseSink(self.spec.config.addresses.tables)
        self.memory = MemorySink()
        self.boundary = 100

    def write(self, plan: ViewPlan, given: list[RowChange]) -> None:
        for sink in (self.tables, self.memory):
            if sink is self.memory and plan.history is not None:
                continue
            sink.prepare(plan)
            for change in given:
                sink.apply(plan, [change])

    def compared(
        self, old: ViewPlan, new: ViewPlan, change: DefinitionChange, *, still: bool = False
    ) -> VersionDifference:
        published = Published(self.spec.config.addresses.tables, "shop")
        there = [plan for plan in (old, new) if Store.TABLE in plan.to]
        self.boundary += 1
        versions = {plan.name: self.tables.version(plan) for plan in there}
        published.publish(1, self.boundary, versions)
        connection: Any = None
        return compare_versions(connection, self.spec.config, old, new, change, still=still)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    found = Stored(tmp_path)

    def opened(store: Store, _: Any) -> Any:
        return (
            WarehouseSink(found.spec.config.addresses.tables)
            if store is Store.TABLE
            else found.memory
        )

    monkeypatch.setattr(compare, "open_sink", opened)
    monkeypatch.setattr(store_lock, "exclusive", lambda *_: nullcontext())
    return found


def only(plan: ViewPlan, *stores: Store) -> ViewPlan:
    return replace(plan, to=frozenset(stores))


def test_a_mirror_and_its_history_are_compared_by_what_each_key_is_now(stored: Stored) -> None:
    old = only(OLD, Store.TABLE)
    new = replace(old, name="orders.v2", history=HistoryPlan(("status", "total")))
    states = changes([row(1, total="9.00"), row(2), row(3), row(1)])
    stored.write(old, states)
    stored.write(new, states)

    for one, other in ((old, new), (new, old)):
        found = stored.compared(one, other, ROWS)
        assert found.same
        assert {EARLIER: 1, **{f"column {name}": 1 for name in HISTORY_COLUMNS}} == found.explained
        assert ("id",) == found.unexplained.keys

    stored.write(new, changes([row(2, "lost")], since=9))
    changed = stored.compared(old, new, ROWS)
    assert not changed.same
    assert {"status": 1} == dict(changed.unexplained.by_column)
    assert [(2,)] == [each.key for each in changed.unexplained.examples_changed]


def test_a_history_whose_rows_have_times_of_their_own_is_compared_by_what_was_recorded_last(
    stored: Stored,
) -> None:
    at = Column("at", ColumnKind.TIMESTAMPTZ, "timestamptz")
    schema = TableSchema(TABLE.table, (*TABLE.columns, at), TABLE.key)
    old = replace(only(OLD, Store.TABLE), schema=schema)
    new = replace(old, name="orders.v2", history=HistoryPlan(("status",), "at"))
    days = [datetime(2026, 11, day, tzinfo=UTC) for day in (9, 3)]  # the last one is older
    given = changes([{**row(1, str(day.day)), "at": day} for day in days])
    stored.write(old, given)
    stored.write(new, given)

    assert stored.compared(old, new, ROWS).same


def test_histories_with_other_rules_are_compared_by_what_each_key_is_now(stored: Stored) -> None:
    old = replace(only(OLD, Store.TABLE), history=HistoryPlan(("status", "total", "weight")))
    new = replace(old, name="orders.v2", history=HistoryPlan(("status",)))
    given = changes([row(1), row(1, total="2.00"), row(1, total="3.00"), row(2)])
    stored.write(old, given)
    stored.write(new, given)

    found = stored.compared(old, new, ROWS)
    assert (True, {EARLIER: 2}) == (found.same, found.explained)


def test_a_history_that_lets_other_rows_in_is_compared_by_what_each_key_is_now(
    stored: Stored,
) -> None:
    old = replace(only(OLD, Store.TABLE), history=HistoryPlan(("status", "total")))
    new = replace(old, name="orders.v2", expectations=PLACED)
    given = changes([row(1), row(2), row(1, "cancelled")])
    stored.write(old, given)
    stored.write(new, [*given[:2], RowChange((1,), 3, None, 3000)])

    found = stored.compared(old, new, ROWS)
    assert (True, {EARLIER: 2, "rows that orders.v2 excludes: apply_as_deletes": 1}) == (
        found.same,
        found.explained,
    )


def test_versions_that_no_store_has_both_of_are_not_compared(stored: Stored) -> None:
    old, new = only(OLD, Store.CACHE), only(NEW, Store.TABLE)
    stored.write(old, changes([row(1)]))
    stored.write(new, changes([row(1)]))

    found = stored.compared(old, new, NOTHING)
    assert not found.same
    assert (None, "no store has both: cache; table") == (found.store, found.incomparable)


@pytest.mark.parametrize("store", [Store.TABLE, Store.CACHE])
def test_rows_that_one_definition_keeps_out_are_set_apart_in_each_store(
    stored: Stored, store: Store
) -> None:
    old = only(OLD, store)
    new = replace(old, name="orders.v2", expectations=PLACED)
    rows = [row(n, "cancelled" if n % 3 == 0 else "placed") for n in range(1, 10)]
    stored.write(old, changes(rows))
    stored.write(new, changes([each for each in rows if each["status"] == "placed"]))
    said = "rows that orders.v2 excludes: apply_as_deletes"

    assert {said: 3} == stored.compared(old, new, ROWS).explained
    assert stored.compared(old, new, ROWS).same
    back = stored.compared(new, old, ROWS)
    assert (True, {said: 3}) == (back.same, back.explained)
    assert 3 == stored.compared(old, new, NOTHING).unexplained.gone


def test_what_expects_numbers_is_decided_by_exact_values_in_a_store_of_documents(
    stored: Stored,
) -> None:
    old = only(OLD, Store.CACHE)
    heavy = Expectation("light", "weight < 3 AND total >= 0.10", OnFail.DROP)
    new = replace(old, name="orders.v2", expectations=(heavy,))
    rows = [row(n, total="0.09" if n == 1 else "0.10") for n in range(1, 9)]
    stored.write(old, changes(rows))
    stored.write(new, changes(rows[1:5]))

    found = stored.compared(old, new, ROWS)
    assert (True, {"rows that orders.v2 excludes: light": 4}) == (found.same, found.explained)


def test_a_store_of_documents_tells_columns_and_examples_as_a_table_does(stored: Stored) -> None:
    old, new = only(OLD, Store.CACHE), only(NEW, Store.CACHE)
    stored.write(old, changes([row(1), row(2), row(3)]))
    stored.write(new, changes([row(1), row(2, "lost", "2.00"), row(4)]))

    found = stored.compared(old, new, NOTHING).unexplained
    assert (1, 1, 1) == (found.appeared, found.gone, found.changed)
    assert {"status": 1, "total": 1} == dict(found.by_column)
    assert [("4",)] == found.examples_appeared
    assert [("3",)] == found.examples_gone
    (example,) = found.examples_changed
    values = {"status": ("placed", "lost"), "total": ("1.00", "2.00")}
    assert (("2",), values) == (example.key, example.values)


def test_rows_that_nothing_identifies_are_matched_as_often_as_they_are_there(
    stored: Stored,
) -> None:
    old = replace(
        only(OLD, Store.CACHE), schema=TableSchema(TABLE.table, TABLE.columns, ()),
        keys=(ROW_ID_COLUMN,),
    )  # fmt: skip
    narrow = TableSchema(TABLE.table, TABLE.columns[:3], ())
    new = replace(old, name="orders.v2", schema=narrow)
    given = [RowChange((str(n),), n, row(1), n) for n in (1, 2, 3)]
    stored.write(old, given)
    stored.write(new, given[:2])
    change = DefinitionChange(DefinitionChangeKind.REBUILD, ("left out",), frozenset({"weight"}))

    found = stored.compared(old, new, change)
    assert (0, 1) == (found.unexplained.appeared, found.unexplained.gone)
    stored.write(new, given)
    assert stored.compared(old, new, change).same


def event_plan(name: str, types: EventTypes, names: tuple[str, ...], *stores: Store) -> ViewPlan:
    form = EventForm(types, names)
    schema = TableSchema(EVENTS, form.columns, (KEY,))
    topic = EVENTS.topic("shop")
    return ViewPlan(
        name, "shop", topic, schema, (KEY,), frozenset(stores), EventsPlan(form, {topic: schema})
    )


def event_types(total: type) -> EventTypes:
    types = EventTypes()
    for name in ("placed", "paid"):
        made = dataclasses.make_dataclass(name.title(), [("total", total)], frozen=True)
        types.event(f"order.{name}")(made)
    return types


def event_rows(plan: ViewPlan, types: Iterable[str], total: Any) -> list[RowChange]:
    found = []
    for number, name in enumerate(types, start=1):
        values: dict[str, Any] = dict.fromkeys(plan.schema.by_name)
        values |= {"global_position": number, "tenant": "t", "stream": "s", "type": name}
        values |= {"stream_position": number, "event_id": str(UUID(int=number)), "total": total}
        values |= dict.fromkeys(("occurred_at", "recorded_at"), datetime(2026, 1, 1, tzinfo=UTC))
        found.append(RowChange((number,), number, values, number))
    return found


@pytest.mark.parametrize("store", [Store.TABLE, Store.CACHE])
def test_events_of_types_that_only_one_definition_takes_are_set_apart(
    stored: Stored, store: Store
) -> None:
    types = event_types(int)
    old = event_plan("orders", types, ("order.placed",), store)
    new = event_plan("orders.v2", types, ("order.placed", "order.paid"), store)
    rows = event_rows(new, ["order.placed", "order.paid", "order.paid", "order.placed"], 5)
    stored.write(old, [rows[0], rows[3]])
    stored.write(new, rows)
    said = {"rows of order.paid, which orders does not include": 2}

    found = stored.compared(old, new, ROWS)
    assert (True, said) == (found.same, found.explained)
    found = stored.compared(new, old, ROWS)
    assert (True, said) == (found.same, found.explained)
    assert 2 == stored.compared(old, new, NOTHING).unexplained.appeared


@pytest.mark.parametrize("store", [Store.TABLE, Store.CACHE])
def test_a_field_that_has_another_type_is_not_compared(stored: Stored, store: Store) -> None:
    old = event_plan("orders", event_types(int), ("order.placed",), store)
    new = event_plan("orders.v2", event_types(str), ("order.placed",), store)
    stored.write(old, event_rows(old, ["order.placed"] * 3, 5))
    stored.write(new, event_rows(new, ["order.placed"] * 3, "5"))
    change = DefinitionChange(DefinitionChangeKind.REBUILD, ("version",), frozenset({"total"}))

    found = stored.compared(old, new, change)
    assert (True, {"column total: bigint to text": 1}) == (found.same, found.explained)
    assert {"total": 3} == dict(stored.compared(old, new, NOTHING).unexplained.by_column)


def test_a_view_of_events_and_one_of_a_table_are_not_compared(stored: Stored) -> None:
    events = event_plan("orders.v2", event_types(int), ("order.placed",), Store.TABLE)
    stored.write(OLD, changes([row(1)]))
    stored.write(events, [])

    found = stored.compared(OLD, events, ROWS)
    assert not found.same
    assert "one is a view of a table, the other of events" == found.incomparable


@pytest.mark.parametrize("plain", [True, False])
def test_rows_that_are_set_apart_are_counted_once_however_large_the_table_is(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, *, plain: bool
) -> None:
    monkeypatch.setattr(table_diff, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(table_diff, "plain", lambda _: plain)
    new = replace(NEW, expectations=PLACED)
    rows = [row(n, "cancelled" if n % 2 else "placed") for n in range(20)]
    stored.write(OLD, changes(rows))
    stored.write(new, changes([each for each in rows if each["status"] == "placed"]))

    found = stored.compared(OLD, new, ROWS)
    assert found.same
    assert {"rows that orders.v2 excludes: apply_as_deletes": 10} == found.explained
    assert Store.TABLE is found.store
    assert str(Lsn(101)) == found.at

    stored.write(new, changes([row(n, "lost") for n in range(0, 20, 2)], since=30))
    changed = stored.compared(OLD, new, ROWS)
    assert {"status": 10} == dict(changed.unexplained.by_column)
    assert found.explained == changed.explained
