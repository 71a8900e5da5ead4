"""A part of a view is made anew beside a store that lives: what is outside stays as it is.

A store is kept by live delivery and loses rows. What a bounded replay of the archive, up to where
the store has been brought, makes of that is the store that has lost nothing, within the bounds.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from fix_archive import SENT_AT, archived
from fix_log import PLAN, TABLE, TOPIC, Source, envelope, numbered, sources
from fix_seeds import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableSchema, Treatment
from projections.archive import replay
from projections.archive import scan as archive_scan
from projections.archive.bounds import Bounds
from projections.archive.scan import ArchiveScan
from projections.archive.selection import count, select
from projections.archive.survey import RecordFilter
from projections.archive.task import ReplayOptions, ReplayTarget
from projections.changes.applier import TaskApplier
from projections.changes.record import Record
from projections.definition.columns import ROW_ID_COLUMN
from projections.errors import BoundsError
from projections.planning.view_plan import HistoryPlan
from projections.stores.memory import MemorySink

if TYPE_CHECKING:
    from collections.abc import Sequence

HISTORY = replace(PLAN, history=HistoryPlan(("note", "big")))
KEYLESS = replace(PLAN, schema=TableSchema(TABLE.table, TABLE.columns, ()), keys=(ROW_ID_COLUMN,))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 3)
    monkeypatch.setattr(archive_scan, "BATCH_ROWS", 4)


def plan_of(*columns: Column, key: tuple[str, ...] = ("id",)) -> Any:
    return replace(PLAN, schema=TableSchema(TABLE.table, columns, key), keys=key)


def orders(count: int) -> list[Record]:
    """Seven rows, changed one after the other: the n-th change is at 1000 + 0x1000 + 8 n us."""
    rows = [{"id": n % 7, "note": f"n{n}", "big": "b"} for n in range(count)]
    return [
        Record(
            orjson.dumps({"id": row["id"]}),
            envelope("c" if n < 7 else "u", 0x1000 + 8 * n, row, order=1),
            "1",
            0,
            n,
        )
        for n, row in enumerate(rows)
    ]


def deliver(records: Sequence[Record], sink: MemorySink) -> set[str]:
    """Takes records as the job does; returns the keys that wait."""
    delivery = TaskApplier([PLAN], lambda: sink)
    delivery.take(TOPIC, records)
    delivery.finish()
    return {each.key for each in delivery.waiting}


def rows_of(sink: MemorySink) -> dict[Any, Any]:
    return {row["id"]: row for row in sink.documents(PLAN)}


def mended(archive: Path, sink: MemorySink, bounds: Bounds, through: int) -> set[str]:
    """Replays what is within bounds; returns the keys that wait."""
    options = ReplayOptions(bounds=bounds, through={(TOPIC, 0): through})
    found = replay.replay(archive, [ReplayTarget((PLAN,), lambda: sink)], options)
    assert found.chosen is not None
    return {each.key for each in found.waiting[0]}


def texts(*numbers: int) -> frozenset[str]:
    return frozenset(f'{{"id": {number}}}' for number in numbers)


@settings(max_examples=examples(60), deadline=None)
@given(source=sources(), data=st.data())
def test_rows_that_a_store_has_lost_are_again_what_they_were_and_all_others_stay(
    source: Source, data: st.DataObject
) -> None:
    records = numbered(source.topic)
    through = data.draw(st.integers(1, len(records)))
    keys = data.draw(st.sets(st.integers(1, 6), min_size=1))
    whole, sink = MemorySink(), MemorySink()
    waits = deliver(records[:through], whole) | deliver(records[:through], sink)
    kept = sink.views[PLAN.name].rows
    lost = data.draw(st.sets(st.sampled_from(sorted(kept)))) if kept else set()
    for key in lost:  # deletes that were remembered are lost like rows
        del kept[key]
    before = dict(kept)
    with tempfile.TemporaryDirectory() as place:
        archived(Path(place) / "shop", TOPIC, records)  # it is ahead of the store
        waits |= mended(Path(place) / "shop", sink, Bounds(keys=texts(*keys)), through)
        # rows that came under other keys count as one
        chosen = set(_chosen(Path(place) / "shop", Bounds(keys=texts(*keys)), through))
    assert {orjson.dumps({"id": key}).decode() for key in keys} <= chosen

    now, expected = sink.views[PLAN.name].rows, whole.views[PLAN.name].rows
    for key in now.keys() | expected.keys() | before.keys():
        text = orjson.dumps({"id": key[0]}).decode()
        if text in waits:
            continue
        if text not in chosen:
            assert before.get(key) == now.get(key), "what is outside is neither written nor removed"
        else:
            row, other = now.get(key, (0, None)), expected.get(key, (0, None))
            assert other[1] == row[1], "a row is what it was, or there is none"
    # and the job goes on as if nothing had happened
    waits |= deliver(records[through:], sink) | deliver(records[through:], whole)
    for key, row in source.rows.items():
        text = orjson.dumps({"id": key}).decode()
        if text in chosen and text not in waits:
            assert row == rows_of(sink)[key]


def _chosen(archive: Path, bounds: Bounds, through: int) -> list[str]:
    scan, taken = ArchiveScan(archive, {TOPIC}), RecordFilter({(TOPIC, 0): through})
    found: list[str] = select(scan, PLAN, bounds, taken).keys.to_pylist()
    return found


def test_a_row_is_within_bounds_by_any_of_its_changes_and_comes_to_the_newest(
    tmp_path: Path,
) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))

    def within(**said: Any) -> dict[int, str]:
        sink = MemorySink()
        mended(tmp_path / "shop", sink, Bounds(**said), 20)
        return {row["id"]: row["note"] for row in rows_of(sink).values()}

    committed_us = [1000 + 0x1000 + 8 * n for n in range(20)]
    assert {3: "n17", 5: "n19"} == within(keys=texts(3, 5))
    assert {} == within(keys=texts(77))
    assert {2: "n16"} == within(where=("note", "n16"))
    assert {2: "n16"} == within(where=("note", "n2")), "it had that value"
    assert {4: "n18", 5: "n19"} == within(since_us=committed_us[18])
    assert {0: "n14", 1: "n15"} == within(until_us=committed_us[2])
    assert {3: "n17"} == within(since_us=committed_us[3], until_us=committed_us[4])
    assert {3: "n17"} == within(since_us=committed_us[3], keys=texts(3), where=("note", "n10"))
    assert {} == within(keys=texts(3), where=("note", "n4"))


def test_a_deleted_row_is_within_bounds_by_what_it_was(tmp_path: Path) -> None:
    gone = Record(b'{"id":2}', envelope("d", 0x9000, None, key=2), "1", 0, 20)
    archived(tmp_path / "shop", TOPIC, [*orders(20), gone])
    sink = MemorySink()
    deliver(orders(20), sink)  # the store has lost the delete

    mended(tmp_path / "shop", sink, Bounds(where=("note", "n2")), 21)

    assert {0, 1, 3, 4, 5, 6} == rows_of(sink).keys()


def test_a_row_that_was_read_changed_when_that_was_sent(tmp_path: Path) -> None:
    row = {"id": 9, "note": "read", "big": "b"}
    read = Record(b'{"id":9}', envelope("r", 0x9001, row), "1", 0, 20)
    archived(tmp_path / "shop", TOPIC, [*orders(20), read])
    sent_us = round(SENT_AT.timestamp() * 1e6)

    since = Bounds(since_us=sent_us, until_us=sent_us + 1)

    assert ['{"id":9}'] == _chosen(tmp_path / "shop", since, 21)
    assert [] == _chosen(tmp_path / "shop", since, 20), "it had not come by then"


def test_records_of_chosen_rows_are_counted(tmp_path: Path) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    scan = ArchiveScan(tmp_path / "shop", {TOPIC})

    found = select(scan, PLAN, Bounds(keys=texts(3, 77)), RecordFilter())

    assert (20, ['{"id":3}', '{"id":77}']) == (found.records, sorted(found.keys.to_pylist()))
    assert 3 == count(scan, PLAN, found.keys, RecordFilter())
    assert 2 == count(scan, PLAN, found.keys, RecordFilter({(TOPIC, 0): 17}))


@pytest.mark.parametrize(
    ("plan", "bounds", "said"),
    [
        (PLAN, Bounds(where=("strange", "1")), "has no column strange"),
        (PLAN, Bounds(where=("id", "one")), "a value is none of column id"),
        (PLAN, Bounds(keys=frozenset(['{"number":3}'])), "is not one of view things"),
        (PLAN, Bounds(keys=frozenset(['{"id":3,"note":"x"}'])), "is not one of view things"),
        (PLAN, Bounds(keys=frozenset(['{"id":"3"}'])), "is not one of view things"),
        (PLAN, Bounds(keys=frozenset(['{"id":true}'])), "is not one of view things"),
        (PLAN, Bounds(keys=frozenset(["3"])), "is not one of view things"),
        (PLAN, Bounds(keys=frozenset(["{"])), "is not one of view things"),
        (PLAN, Bounds(since_us=5, until_us=5), "no time lies between since and until"),
        (HISTORY, Bounds(since_us=5), "cannot be rebuilt in part"),
        (KEYLESS, Bounds(since_us=5), "cannot be rebuilt in part"),
        (
            plan_of(Column("id", ColumnKind.NUMERIC, "numeric")),
            Bounds(since_us=5),
            "cannot be rebuilt in part",
        ),
        (
            plan_of(Column("id", ColumnKind.DATE, "date")),
            Bounds(keys=frozenset(['{"id":"2026-01-01"}'])),
            "cannot be told by their key",
        ),
        (
            plan_of(TABLE.columns[0], Column("at", ColumnKind.DATE, "date")),
            Bounds(where=("at", "2026-01-01")),
            "cannot be told by column at",
        ),
        (
            plan_of(
                TABLE.columns[0],
                Column("note", ColumnKind.TEXT, "text", treatment=Treatment()),
            ),
            Bounds(where=("note", "x")),
            "cannot be told by column note",
        ),
    ],
)
def test_bounds_that_a_view_does_not_have_are_refused(plan: Any, bounds: Bounds, said: str) -> None:
    with pytest.raises(BoundsError, match=said) as refused:
        bounds.check(plan)
    assert "HW-P140" == refused.value.code


def test_a_key_is_looked_for_in_every_order_in_which_records_may_have_it() -> None:
    plan = plan_of(
        Column("a", ColumnKind.UUID, "uuid"),
        Column("b", ColumnKind.BOOLEAN, "boolean"),
        key=("b", "a"),
    )
    key = '{"a": "0A11F5E4-0B1C-4D8E-9D5E-3F2A1B0C9D8E", "b": true}'

    found = {*Bounds(keys=frozenset([key])).key_texts(plan)}

    uuid = "0a11f5e4-0b1c-4d8e-9d5e-3f2a1b0c9d8e"
    assert {f'{{"b":true,"a":"{uuid}"}}', f'{{"a":"{uuid}","b":true}}'} == found


def test_bounds_are_said_without_values_of_rows() -> None:
    bounds = Bounds(texts(1, 2), ("tenant", "secret"), 0, 60_000_000)

    assert (
        "2 keys",
        "one value of tenant",
        "changed since 1970-01-01 00:00:00+00:00 changed before 1970-01-01 00:01:00+00:00",
    ) == bounds.said()
