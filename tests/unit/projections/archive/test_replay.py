"""A replay of the archive comes to what live delivery of the same records comes to.

The source, its log and its reads are those of `fix_log`; they are archived in batches of any size,
compacted or not, and replayed in parts of a few records.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.lsn import Lsn
from cdc.snapshot.reads import Read
from cdc.table import TableSchema
from projections.archive import ordered, replay, scan
from projections.archive.task import ReplayOptions, ReplayState, ReplayTarget
from projections.changes.applier import TaskApplier
from projections.changes.record import Record
from projections.changes.row_change import _LENT, Applied
from projections.changes.task_outcome import BlockedKeys
from projections.common.table_pins import pinned, pinned_versions
from projections.common.throttle import Throttle
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.expectations.expectation import expect
from projections.errors import ArchiveIncompleteError, ReplayStoppedError
from projections.planning.view_plan import HistoryPlan
from tests.fix_archive import SENT_AT, archived, compacted
from tests.fix_log import LEAN, PLAN, TABLE, TOPIC, Source, envelope, numbered, sources, topics
from tests.fix_seeds import examples
from tests.support.memory_sink import MemorySink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from projections.archive.progress import ReplayProgress
    from projections.changes.row_change import RowChange
    from projections.changes.task_outcome import UnappliedRecord
    from projections.planning.view_plan import ViewPlan

HISTORY = replace(PLAN, history=HistoryPlan(("note", "big")))
KEYLESS = replace(PLAN, schema=TableSchema(TABLE.table, TABLE.columns, ()), keys=(ROW_ID_COLUMN,))
CHOOSY = replace(PLAN, expectations=(expect("low", "id < 3", on_fail="quarantine"),))


class EveryChange(MemorySink):
    """Keeps every change that it is given, as a history does."""

    def __init__(self) -> None:
        super().__init__()
        self.given: set[Any] = set()

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:  # noqa: ARG002
        for change in changes:
            row = None if change.row is None else tuple(sorted(change.row.items(), key=str))
            self.given.add((change.key, change.version, row, change.unchanged_columns, change.base))
        return Applied(upserted=len(changes))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 3)
    monkeypatch.setattr(ordered, "SAMPLED_EVERY", 1)
    monkeypatch.setattr(scan, "BATCH_ROWS", 4)


def with_reads_and_repeats(source: Source, data: st.DataObject) -> list[Record]:
    """The topic of a source, read meanwhile, with parts of it sent again."""
    records = list(source.topic)
    for _ in range(data.draw(st.integers(0, 2))):
        began = data.draw(st.integers(0, len(source.states) - 1))
        seen = data.draw(st.integers(began, len(source.states) - 1))
        since = sum(_lsn(record) < source.states[began][0] for record in source.topic)
        for row in source.read(began, seen):
            records.insert(data.draw(st.integers(min(since, len(records)), len(records))), row)
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(records) - 1))
        records += records[start:]
    return numbered(records)


def _lsn(record: Record) -> int:
    found: int = orjson.loads(record.value or b"{}")["source"]["lsn"]
    return found


def fill(folder: Path, records: Sequence[Record], data: st.DataObject) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=4)))
    for start, end in zip([0, *ends], [*ends, len(records)], strict=True):
        archived(folder, TOPIC, records[start:end])
        if data.draw(st.integers(0, 3)) == 0 and end > 0:
            compacted(folder)


def live(plan: ViewPlan, records: Sequence[Record], sink: MemorySink) -> set[str]:
    """Takes records as the job does, all in one batch; returns the keys that wait."""
    sink.prepare(plan)
    delivery = TaskApplier([plan], lambda: sink)
    with closing(delivery):
        delivery.take(TOPIC, records)
        delivery.finish()
    return {each.key for each in delivery.waiting}


def state_of(sink: MemorySink, plan: ViewPlan, but: set[str]) -> Any:
    view = sink.views.get(plan.name)
    if view is None:
        return {}
    # what a truncate has removed is not told apart from what was never there; nor is whether a kept
    # value was taken from the record that has it or from a row that was read, of which a batch of
    # all records sees more than parts of three
    return {
        key: (version & ~_LENT, row)
        for key, (version, row) in view.rows.items()
        if version >= view.floor and orjson.dumps({"id": key[0]}).decode() not in but
    }


def rows_of(sink: MemorySink, plan: ViewPlan = PLAN) -> dict[Any, Any]:
    return {row["id"]: row for row in sink.documents(plan)}


@settings(max_examples=examples(40), deadline=None)
@given(source=sources(), data=st.data())
def test_a_mirror_ends_as_its_source(source: Source, data: st.DataObject) -> None:
    records = with_reads_and_repeats(source, data)
    sink = MemorySink()
    with tempfile.TemporaryDirectory() as place:
        fill(Path(place) / "shop", records, data)
        found = replay.replay(Path(place) / "shop", [ReplayTarget((PLAN,), lambda: sink)])

    assert {(TOPIC, 0): len(records)} == found.ends
    read_again(source, records, {each.key for each in found.waiting[0]}, sink)
    assert source.rows == rows_of(sink)


@settings(max_examples=examples(40), deadline=None)
@given(records=topics(), data=st.data())
def test_a_mirror_comes_to_what_live_delivery_makes_of_the_same_records(
    records: list[Record], data: st.DataObject
) -> None:
    plan = data.draw(st.sampled_from([PLAN, LEAN, CHOOSY]))
    expected, sink = MemorySink(), MemorySink()
    waits = live(plan, records, expected)
    with tempfile.TemporaryDirectory() as place:
        fill(Path(place) / "shop", records, data)
        found = replay.replay(Path(place) / "shop", [ReplayTarget((plan,), lambda: sink)])

    waits |= {each.key for each in found.waiting[0]}
    assert state_of(expected, plan, waits) == state_of(sink, plan, waits)


@settings(max_examples=examples(25), deadline=None)
@given(records=topics(), data=st.data())
def test_a_history_is_given_every_change_and_a_table_without_a_key_every_row(
    records: list[Record], data: st.DataObject
) -> None:
    plan = data.draw(st.sampled_from([HISTORY, KEYLESS]))
    if plan is KEYLESS:
        records = numbered([r for r in records if r.value and b'"op":"c"' in r.value])
    expected, sink = EveryChange(), EveryChange()
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        # what is parted may need what was stored, which this store cannot tell
        patch.setattr(replay, "PART_RECORDS", 1000)
        live(plan, records, expected)
        fill(Path(place) / "shop", [*records, unread(len(records))], data)
        replay.replay(Path(place) / "shop", [ReplayTarget((plan,), lambda: sink)])

    assert expected.given == sink.given


@settings(max_examples=examples(15), deadline=None)
@given(source=sources(), data=st.data())
def test_a_replay_that_is_killed_anywhere_goes_on_and_ends_the_same(
    source: Source, data: st.DataObject
) -> None:
    records = with_reads_and_repeats(source, data)
    sink = MemorySink()
    lacking: set[str] = set()

    def set_aside(waiting: Sequence[UnappliedRecord], _: Mapping[str, int]) -> None:
        lacking.update(each.key for each in waiting)

    def target() -> ReplayTarget:
        # who goes on knows what waits: an older row must lend it no values
        held = {PLAN.name: BlockedKeys(frozenset(lacking))}
        return ReplayTarget((PLAN,), lambda: sink, held, set_aside)

    with tempfile.TemporaryDirectory() as place:
        archive = Path(place) / "shop"
        fill(archive, records, data)
        noted: list[ReplayState] = []
        for _ in range(50):
            steps_left = data.draw(st.integers(1, 4))
            resume = ReplayState.from_json(noted[-1].to_json()) if noted else None
            killed = Killed(steps_left, noted)
            try:
                options = ReplayOptions(note=killed.note, resume=resume)
                found = replay.replay(archive, [target()], options)
                break
            except KilledError:
                archived(archive, TOPIC, numbered([*records, records[0]])[len(records) :])
        else:
            found = replay.replay(archive, [target()], ReplayOptions(resume=noted[-1]))

    assert {(TOPIC, 0): len(records)} == found.ends
    read_again(source, records, lacking, sink)
    assert source.rows == rows_of(sink)


def read_again(
    source: Source, records: Sequence[Record], lacking: set[str], sink: MemorySink
) -> None:
    """Delivers the rows of keys that wait as they are now, as a repair does."""
    reread = [source.read_now(int(key.removeprefix('{"id":')[:-1])) for key in sorted(lacking)]
    live(PLAN, numbered([*records, *reread])[len(records) :], sink)


class KilledError(Exception):
    """Stands for a kill."""


class Killed:
    """Ends a replay when it notes where it is for the n-th time."""

    def __init__(self, steps: int, noted: list[ReplayState]) -> None:
        self._left = steps
        self._noted = noted

    def note(self, state: ReplayState) -> None:
        self._noted.append(state)
        self._left -= 1
        if self._left <= 0:
            raise KilledError


def unread(offset: int) -> Record:
    return Record(None, None, "1", 0, offset)


def orders(count: int, epoch: str = "1") -> list[Record]:
    rows = [{"id": n % 7, "note": f"n{n}", "big": "b"} for n in range(count)]
    return [
        Record(
            orjson.dumps({"id": row["id"]}),
            envelope("c" if n < 7 else "u", 0x1000 + 8 * n, row, order=1),
            epoch,
            0,
            n,
        )
        for n, row in enumerate(rows)
    ]


def test_files_that_compaction_put_in_another_order_are_read_in_that_of_the_topic(
    tmp_path: Path,
) -> None:
    records, archive = orders(60), tmp_path / "shop"
    for start, end in ((0, 5), (5, 45), (45, 50), (50, 60)):
        archived(archive, TOPIC, records[start:end])
    compacted(archive)  # the largest file comes first
    sink = Order()

    replay.replay(archive, [ReplayTarget((HISTORY,), lambda: sink)])

    rows = DeltaTable(archive).to_pyarrow_table().column("offset").to_pylist()
    assert rows != sorted(rows)
    assert [record.offset for record in records] == sink.order


class Order(MemorySink):
    """Notes in which order changes come."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        self.order += sorted((c.version & 0xFFFFFF) - 0x1000 >> 3 for c in changes)
        return super().apply(plan, changes)


def test_a_version_that_is_read_outlives_upkeep(tmp_path: Path, monkeypatch: Any) -> None:
    archive = tmp_path / "shop"
    for record in orders(10):
        archived(archive, TOPIC, [record])
    sink = MemorySink()
    monkeypatch.setattr("projections.archive.table.KEPT_HOURS", 0)
    files = set(archive.rglob("*.parquet"))

    def upkeep(state: ReplayState) -> None:
        compacted(archive)
        compacted(archive)

    replay.replay(archive, [ReplayTarget((PLAN,), lambda: sink)], ReplayOptions(note=upkeep))

    assert 7 == len(rows_of(sink))
    kept = set(archive.rglob("*.parquet"))
    assert files <= kept, "it was read meanwhile"
    compacted(archive)
    assert not files & set(archive.rglob("*.parquet")), "nobody reads it any more"


def test_a_pin_of_a_reader_that_is_gone_counts_no_more(tmp_path: Path) -> None:
    archive = tmp_path / "shop"
    with pinned(archive, 3), pinned(archive, 5):
        assert [3, 5] == pinned_versions(archive)
        for pin in (tmp_path / ".shop.pins").iterdir():
            if pin.name.startswith("3-"):
                os.utime(pin, (0, 0))
        assert [5] == pinned_versions(archive)
    assert [] == pinned_versions(archive)


def test_records_beyond_the_offsets_that_are_wanted_are_not_taken(tmp_path: Path) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    sink = MemorySink()

    found = replay.replay(
        tmp_path / "shop",
        [ReplayTarget((PLAN,), lambda: sink)],
        ReplayOptions(through={(TOPIC, 0): 9}),
    )

    assert {(TOPIC, 0): 9} == found.ends
    assert {0: "n7", 1: "n8", 2: "n2"} == {n: rows_of(sink)[n]["note"] for n in range(3)}


def test_an_archive_without_the_first_records_is_refused(tmp_path: Path) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20)[3:])

    with pytest.raises(ArchiveIncompleteError, match="lacks the first records") as refused:
        replay.replay(tmp_path / "shop", [ReplayTarget((PLAN,), MemorySink)])

    assert "partition 0 begins at 3" == refused.value.detail
    archived(tmp_path / "other", TOPIC, orders(5))
    with pytest.raises(ArchiveIncompleteError) as refused:
        replay.replay(
            tmp_path / "other",
            [ReplayTarget((PLAN,), MemorySink)],
            ReplayOptions(archived={(TOPIC, 0): 5, (TOPIC, 1): 7}),
        )
    assert "partition 1 has nothing before 7" == refused.value.detail


def test_an_archive_is_complete_since_a_whole_read_that_it_has_all_rows_of(
    tmp_path: Path,
) -> None:
    source = Source()
    source.together([[("copy", 1, 2, 3)]], Random(1))  # noqa: S311
    source.together([[("note", 1)]], Random(1))  # noqa: S311
    began = len(source.states) - 1
    late = source.topic[-1]
    records = numbered([*source.topic, *source.read(began, began)])[len(source.topic) - 1 :]
    archived(tmp_path / "shop", TOPIC, records)
    sink = MemorySink()
    ends = {0: records[-1].offset + 1}
    read = whole_read(source.states[began][0] - 1, rows=3, ends=ends)

    found = replay.replay(
        tmp_path / "shop", [ReplayTarget((PLAN,), lambda: sink)], ReplayOptions(whole={TOPIC: read})
    )

    assert late.offset == 0
    assert source.rows == rows_of(sink)
    assert [(PLAN.name, 0)] == [(swept.view, swept.removed) for swept in found.swept]
    lacking = replace(read, rows_read=4)
    with pytest.raises(ArchiveIncompleteError):
        replay.replay(
            tmp_path / "shop",
            [ReplayTarget((PLAN,), MemorySink)],
            ReplayOptions(whole={TOPIC: lacking}),
        )


def test_a_replay_that_another_release_began_is_done_again_as_a_whole(tmp_path: Path) -> None:
    archived(tmp_path, TOPIC, orders(20))
    noted, sink = list[ReplayState](), MemorySink()
    replay.replay(tmp_path, [ReplayTarget((PLAN,), MemorySink)], ReplayOptions(note=noted.append))
    state = orjson.loads(noted[-1].to_json())
    assert state.pop("form") > 0

    options = ReplayOptions(resume=ReplayState.from_json(orjson.dumps(state)))
    replay.replay(tmp_path, [ReplayTarget((PLAN,), lambda: sink)], options)

    assert 7 == len(rows_of(sink))


def test_a_replay_that_is_told_to_stop_stops(tmp_path: Path) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    stopped = threading.Event()
    stopped.set()

    with pytest.raises(ReplayStoppedError):
        replay.replay(
            tmp_path / "shop", [ReplayTarget((PLAN,), MemorySink)], ReplayOptions(stopped=stopped)
        )


def test_progress_is_told_and_ends_at_the_whole(tmp_path: Path) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    told: list[ReplayProgress] = []

    replay.replay(
        tmp_path / "shop", [ReplayTarget((PLAN,), MemorySink)], ReplayOptions(progress=told.append)
    )

    last = told[-1]
    assert (20, 20, 7, 7, 7) == (
        last.looked_at,
        last.rows,
        last.delivered,
        last.to_deliver,
        last.written,
    )
    assert 0 == last.seconds_left


def test_a_share_of_the_time_is_kept() -> None:
    throttle = Throttle(0.5)
    began = time.monotonic()
    while time.monotonic() - began < 0.1:
        pass

    throttle.step()

    assert 0.2 <= time.monotonic() - began < 0.4


def test_the_work_of_others_costs_no_pause() -> None:
    throttle = Throttle(0.001)
    began = time.monotonic()
    while time.monotonic() - began < 0.1:
        pass

    throttle.restart()
    throttle.step()

    assert time.monotonic() - began < 1


def test_several_stores_are_filled_from_one_pass(tmp_path: Path) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    one, other = MemorySink(), MemorySink()
    targets = [
        ReplayTarget((PLAN, replace(LEAN, name="lean")), lambda: one),
        ReplayTarget((PLAN,), lambda: other),
    ]

    found = replay.replay(tmp_path / "shop", targets)

    assert rows_of(one) == rows_of(other)
    assert {n: {"id", "note"} for n in range(7)} == {
        n: set(row) for n, row in rows_of(one, replace(LEAN, name="lean")).items()
    }
    assert [7, 7, 7] == [count.applied for counts in found.counts for count in counts.values()]


def whole_read(lsn: int, rows: int, ends: dict[int, int]) -> Read:
    return Read(
        1,
        "shop",
        1,
        TABLE.table,
        TABLE.table.topic("shop"),
        None,
        None,
        "done",
        Lsn(lsn),
        rows,
        rows,
        None,
        ends,
        None,
        SENT_AT,
        SENT_AT,
        SENT_AT,
        SENT_AT,
        0,
    )
