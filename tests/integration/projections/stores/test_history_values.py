"""Histories under changed columns, and unchanged values that their records omit."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cdc.lsn import Lsn
from cdc.schema_change.shape import ColumnShape, ShapeVersion, TableHistory, TableShape
from cdc.table import Column, ColumnKind, TableSchema
from cdc.values import encoder
from projections.changes.applier import TaskApplier
from projections.changes.quarantine.retry import retry_keys
from projections.changes.quarantine.table import RetriedRecord
from projections.changes.record import key_text
from projections.changes.row_change import Applied, RowChange
from projections.changes.task_outcome import BlockedKeys
from projections.errors import NoStoredRowError
from projections.planning.row_upcaster import TableShapes
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.stores.delta.history.check import HistoryCheck
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.schema_migration import reshape
from tests.fix_history import EPOCH, PRICES, gone, price, prices, slowly, stored, unlike
from tests.fix_log import PLAN, TOPIC, Source, numbered, sources
from tests.support.history_records import COLUMNS, deliver, expected, pieces, things

if TYPE_CHECKING:
    from pathlib import Path

    from projections.stores.delta.history.states import HistoryState

pytestmark = pytest.mark.integration


@slowly()
@given(source=sources(), data=st.data())
def test_unchanged_values_are_those_of_the_row_before(
    tmp_path: Path, source: Source, data: st.DataObject
) -> None:
    plan, records = things(("note", "big")), numbered(source.topic)
    sink = HistorySink(tmp_path)
    sink.prepare(plan)

    for batch in pieces(data, records):
        half = batch[: data.draw(st.integers(0, len(batch)))]
        for each in (half, batch):  # a batch that was cut off is given again
            assert [] == deliver(sink, plan, each).waiting

    assert expected(source.topic, ("note", "big")) == stored(tmp_path, plan)
    now = {row["id"]: row for row in sink.documents(plan)}
    assert {key: encoder(PLAN.schema)(row) for key, row in source.rows.items()} == now


def test_unchanged_values_that_no_row_has_wait(tmp_path: Path) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    kept = structs.replace(price(2, "1", 20), unchanged_columns=("note",))

    (refused,) = sink.apply(plan, [kept]).refused

    assert isinstance(refused.error, NoStoredRowError)
    sink.apply(plan, [price(1, "1", 10, note="known")])
    assert Applied(upserted=1) == sink.apply(plan, [kept])
    assert Applied(stale=1) == sink.apply(plan, [kept])
    assert ["known"] == [row["note"] for row in sink.documents(plan)]


@pytest.mark.parametrize("read_s", [15, 25], ids=["read before it", "read later"])
@pytest.mark.parametrize("in_order", [True, False])
def test_unchanged_values_are_never_those_of_a_later_change(
    tmp_path: Path, read_s: int, *, in_order: bool
) -> None:
    """A row that was read stands for an earlier position, and may have what came after it."""
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    kept = structs.replace(price(3, "2", 20), unchanged_columns=("note",))
    read = structs.replace(
        price(2, "1" if read_s < 20 else "3", 0, note="old" if read_s < 20 else "new"),
        version=EPOCH | 23,
        committed_at_us=0,
        read_at_us=read_s * 1_000_000,
    )
    sink.apply(plan, [price(1, "1", 10, note="old")])

    for change in (read, kept) if in_order else (kept, read):
        assert Applied(upserted=1) == sink.apply(plan, [change])
    sink.apply(plan, [price(4, "3", 24, note="new")])

    seen = [(s.row["note"], s.version & 7) for s in stored(tmp_path, plan)[1,]]
    assert [("old", 0), ("old", 0), ("new", 0)] == seen
    assert {} == unlike(tmp_path, plan)


def test_a_row_that_was_truncated_lends_nothing_to_what_its_key_has_become(tmp_path: Path) -> None:
    """What put the new row there waits, or was left out; a row that was read is followed."""
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    truncate = RowChange((), EPOCH | 16, None, 20_000_000)
    kept = structs.replace(price(4, "4", 40), unchanged_columns=("note",))
    read = structs.replace(price(5, "4", 0, note="new"), version=EPOCH | 47, committed_at_us=0)
    following = structs.replace(price(7, "7", 70), unchanged_columns=("note",))
    sink.apply(plan, [price(1, "1", 10, note="old")])
    sink.apply(plan, [truncate])
    sink.apply(plan, [structs.replace(read, read_at_us=50_000_000)])

    (refused,) = sink.apply(plan, [kept]).refused

    assert isinstance(refused.error, NoStoredRowError)
    assert Applied(upserted=1) == sink.apply(plan, [following])
    notes = [state.row["note"] for state in stored(tmp_path, plan)[1,]]
    assert ["old", "new", "new"] == notes


def test_a_whole_row_is_taken_although_the_one_before_it_lacks_values(tmp_path: Path) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    lacking = [
        structs.replace(price(n, str(n), 10 * n), unchanged_columns=("note",)) for n in (1, 2)
    ]
    last = structs.replace(price(4, "4", 40), unchanged_columns=("note",))

    applied = sink.apply(plan, [*lacking, price(3, "3", 30, note="whole"), last])

    assert lacking == [refused.change for refused in applied.refused]
    assert ["whole"] == [row["note"] for row in sink.documents(plan)]


def test_a_history_takes_the_columns_that_its_table_has_now(tmp_path: Path) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, [price(1, "1", 10, note="a"), price(2, "2", 20, note="b")])
    later = _renamed(plan)
    sink.prepare(later)

    row = {"id": 1, "price": Decimal(3), "remark": "c", "colour": "red"}
    sink.apply(later, [RowChange((1,), EPOCH | 24, row, 30_000_000)])
    sink.apply(later, [RowChange((1,), EPOCH | 20, row | {"price": Decimal(5)}, 25_000_000)])

    (states,) = stored(tmp_path, later).values()
    assert [("a", 1), ("b", 2), ("c", 5), ("c", 3)] == [
        (state.row["remark"], state.row["price"]) for state in states
    ]
    assert [10, 20, 25, 30] == [state.valid_from_us // 1_000_000 for state in states]


def _renamed(plan: ViewPlan) -> ViewPlan:
    """The plan after a column got another name, one came and one went."""
    columns = (*PRICES.columns[:2], Column("remark", ColumnKind.TEXT, "text"))
    schema = TableSchema(
        PRICES.table, (*columns, Column("colour", ColumnKind.TEXT, "text")), ("id",)
    )
    shapes = [
        TableShape(
            7, PRICES.table, tuple(ColumnShape(n, name, "") for name, n in named.items()), (1,)
        )
        for named in (
            {"id": 1, "price": 2, "note": 3, "since": 4},
            {"id": 1, "price": 2, "remark": 3, "colour": 5},
        )
    ]
    versions = (
        ShapeVersion(place, Lsn(place), None, shape, "", rewritten=None)
        for place, shape in enumerate(shapes)
    )
    numbers = {"id": 1, "price": 2, "remark": 3, "colour": 5}
    return replace(
        plan,
        schema=schema,
        history=HistoryPlan(("price",)),
        shapes={plan.topic: TableShapes(TableHistory.of(versions), numbers)},
    )


@pytest.mark.parametrize("killed_after", [0, 1, 2, None])
def test_states_that_differed_in_a_column_that_is_gone_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: int | None
) -> None:
    plan, sink = replace(prices(), history=HistoryPlan(("price", "note"))), HistorySink(tmp_path)
    sink.prepare(plan)
    changes = [
        price(1, "1", 10, note="a"),
        price(2, "1", 20, note="b"),
        price(3, "2", 30, note="b"),
        gone(4, 40),
        price(5, "2", 50, note="c", key=2),
    ]
    sink.apply(plan, changes)
    assert [10, 20, 30] == [state.valid_from_us // 1_000_000 for state in _of(tmp_path, plan, 1)]
    columns = tuple(column for column in PRICES.columns if column.name != "note")
    schema = TableSchema(PRICES.table, columns, PRICES.key)
    narrow = replace(plan, schema=schema, history=HistoryPlan(("price",)))

    if killed_after is not None:  # in the middle of what it writes
        writes = iter([*["lets"] * killed_after, "ends"])

        def reshaped(*given: Any) -> bool:
            if next(writes) == "ends":
                raise KeyboardInterrupt
            return reshape(*given)

        monkeypatch.setattr("projections.stores.delta.history.sink.reshape", reshaped)
        monkeypatch.setattr(
            HistorySink, "_recompute_states", lambda *_: next(writes) == "lets" or _end()
        )
        with pytest.raises(KeyboardInterrupt):
            sink.prepare(narrow)
        monkeypatch.undo()
        sink = HistorySink(tmp_path)
        assert [] == list(HistoryCheck(tmp_path, narrow).differing())
    sink.prepare(narrow)

    assert [(10, 30), (30, 40)] == [
        (state.valid_from_us // 1_000_000, (state.valid_to_us or 0) // 1_000_000)
        for state in _of(tmp_path, narrow, 1)
    ]
    assert [{}] == list(HistoryCheck(tmp_path, narrow).differing())
    others = HistorySink(tmp_path / "made now")
    others.prepare(narrow)
    others.apply(narrow, [_without_note(change) for change in changes])
    assert stored(tmp_path / "made now", narrow) == stored(tmp_path, narrow)


def _end() -> None:
    raise KeyboardInterrupt


def _of(root: Path, plan: ViewPlan, key: int) -> list[HistoryState]:
    (states,) = (each for place, each in stored(root, plan).items() if place == (key,))
    return states


def _without_note(change: RowChange) -> RowChange:
    row = {name: value for name, value in (change.row or {}).items() if name != "note"}
    return structs.replace(change, row=row or None)


def test_what_lacks_values_is_left_out_once_its_row_was_read(tmp_path: Path) -> None:
    source = Source()
    source.together([[("insert", 1), ("note", 1), ("note", 1)]], Random(1))  # noqa: S311
    plan, sink = things(COLUMNS), HistorySink(tmp_path)
    sink.prepare(plan)
    kept = numbered([*source.topic[1:], source.read_now(1)])  # the first change was lost
    waiting = deliver(sink, plan, kept[:2]).waiting
    behind = BlockedKeys(frozenset(each.key for each in waiting))
    later = TaskApplier([plan], lambda: sink, {plan.name: behind})
    later.take(TOPIC, kept[2:])
    later.finish()
    cases = [
        RetriedRecord(plan.name, each.key, TOPIC, each.record, each.version, source.lsn - 8)
        for each in [*waiting, *later.waiting]
    ]

    verdicts = retry_keys(plan, cases, lambda: sink, {})

    assert [(True, None), (True, None), (False, None)] == sorted(
        ((verdict.superseded, verdict.error) for verdict in verdicts), reverse=True
    )
    assert [source.rows[1]["note"]] == [row["note"] for row in sink.documents(plan)]


def test_a_record_that_is_kept_to_lend_values_lends_none_to_what_its_key_has_become(
    tmp_path: Path,
) -> None:
    source, chance = Source(), Random(1)  # noqa: S311
    for step in (("insert", 1), ("move", 1, 2), ("insert", 1), ("note", 1)):
        source.together([[step]], chance)
    old, left, came, new, noted = numbered(source.topic)
    plan, sink = things(COLUMNS), HistorySink(tmp_path)
    sink.prepare(plan)
    # what came under the other key waits, and what follows the new row behind something else
    assert [] == deliver(sink, plan, [old, left, new]).waiting
    keys = {record: key_text(TOPIC, record) for record in (old, came, noted)}
    cases = [
        RetriedRecord(plan.name, keys[came], TOPIC, old, None),
        RetriedRecord(plan.name, keys[came], TOPIC, came, 1),
        RetriedRecord(plan.name, keys[noted], TOPIC, noted, 1),
    ]

    verdicts = retry_keys(plan, cases, lambda: sink, {})

    assert [None] * 3 == [verdict.error for verdict in verdicts]
    kept = {row["id"]: row["big"] for row in sink.documents(plan)}
    assert {key: row["big"] for key, row in source.rows.items()} == kept
    assert {"b1-1", "b3-1"} == set(kept.values())
