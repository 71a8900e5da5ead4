"""What the archive has got since it was replayed is replayed in laps, as live delivery takes it."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.archive import ordered, replay
from projections.archive import scan as archive_scan
from projections.archive.task import Had, ReplayOptions, ReplayState, ReplayTarget
from projections.changes.applier import TaskApplier
from projections.changes.record import Record
from projections.changes.task_outcome import BlockedKeys
from projections.errors import ArchiveIncompleteError
from projections.stores.delta.sink import WarehouseSink
from tests.fix_archive import archived, compacted
from tests.fix_log import LEAN, PLAN, TOPIC, Source, envelope, numbered, sources, topics
from tests.fix_seeds import examples
from tests.support.memory_sink import MemorySink
from tests.unit.projections.archive.test_replay import (
    CHOOSY,
    HISTORY,
    EveryChange,
    Killed,
    KilledError,
    live,
    orders,
    read_again,
    rows_of,
    state_of,
    whole_read,
    with_reads_and_repeats,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from projections.archive.scan import Block
    from projections.archive.task import ReplayResult
    from projections.changes.sink import Sink
    from projections.changes.task_outcome import UnappliedRecord
    from projections.planning.view_plan import ViewPlan


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 3)
    monkeypatch.setattr(ordered, "SAMPLED_EVERY", 1)
    monkeypatch.setattr(archive_scan, "BATCH_ROWS", 4)


class Filled:
    """A view that is filled in laps, and what of it waits meanwhile."""

    def __init__(self, archive: Path, plan: ViewPlan, open_sink: Callable[[], Sink]) -> None:
        self.lacking: set[str] = set()
        self.had: Had | None = None
        self._archive = archive
        self._plan = plan
        self._open_sink = open_sink

    def lap(self, **options: Any) -> ReplayResult:
        """Takes what the archive has got since the last one."""
        # who waits is known to the next lap: an older row must lend it no values
        held = {self._plan.name: BlockedKeys(frozenset(self.lacking))}
        target = ReplayTarget((self._plan,), self._open_sink, held, self._set_aside)
        found = replay.replay(self._archive, [target], ReplayOptions(had=self.had, **options))
        ends = [(topic, number, end) for (topic, number), end in found.ends.items()]
        self.had = Had(ends, tuple(found.archive))
        return found

    def _set_aside(self, waiting: Sequence[UnappliedRecord], _: Mapping[str, int]) -> None:
        self.lacking.update(each.key for each in waiting)


def grown(
    archive: Path, records: Sequence[Record], data: st.DataObject, most: int = 4
) -> Iterator[int]:
    """Archives records batch after batch, put together now and then; a lap may follow each."""
    ends = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=most)))
    for start, end in zip([0, *ends], [*ends, len(records)], strict=True):
        archived(archive, TOPIC, records[start:end])
        if not end:
            continue
        if data.draw(st.integers(0, 2)) == 0:
            compacted(archive)
        if end == len(records) or data.draw(st.booleans()):
            yield end


@settings(max_examples=examples(40), deadline=None)
@given(source=sources(), data=st.data())
def test_a_mirror_that_is_filled_in_laps_ends_as_its_source(
    source: Source, data: st.DataObject
) -> None:
    records = with_reads_and_repeats(source, data)
    sink = MemorySink()
    with tempfile.TemporaryDirectory() as place:
        filled = Filled(Path(place) / "shop", PLAN, lambda: sink)
        for end in grown(Path(place) / "shop", records, data):
            assert {(TOPIC, 0): end} == filled.lap().ends

    read_again(source, records, filled.lacking, sink)
    assert source.rows == rows_of(sink)


@settings(max_examples=examples(40), deadline=None)
@given(records=topics(), data=st.data())
def test_laps_come_to_what_one_replay_and_live_delivery_of_the_same_batches_come_to(
    records: list[Record], data: st.DataObject
) -> None:
    plan = data.draw(st.sampled_from([PLAN, LEAN, CHOOSY]))
    batched, once, sink = MemorySink(), MemorySink(), MemorySink()
    waits, begin = set[str](), 0
    with tempfile.TemporaryDirectory() as place:
        archive = Path(place) / "shop"
        filled = Filled(archive, plan, lambda: sink)
        for end in grown(archive, records, data):
            filled.lap()
            waits |= live_behind(plan, records[begin:end], batched, waits)
            begin = end
        if records:
            found = replay.replay(archive, [ReplayTarget((plan,), lambda: once)])
            waits |= {each.key for each in found.waiting[0]} | filled.lacking

    assert state_of(batched, plan, waits) == state_of(sink, plan, waits)
    assert state_of(once, plan, waits) == state_of(sink, plan, waits)


def live_behind(
    plan: ViewPlan, records: Sequence[Record], sink: MemorySink, waits: set[str]
) -> set[str]:
    """Takes one batch, as the job does, behind what waits."""
    held = {plan.name: BlockedKeys(frozenset(waits))}
    with closing(TaskApplier([plan], lambda: sink, held)) as delivery:
        delivery.take(TOPIC, records)
        delivery.finish()
    return {each.key for each in delivery.waiting}


@settings(max_examples=examples(20), deadline=None)
@given(records=topics(), data=st.data())
def test_a_history_is_given_every_change_once_in_its_order(
    records: list[Record], data: st.DataObject
) -> None:
    expected, sink = EveryChange(), EveryChange()
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        # what is parted may need what was stored, which this store cannot tell
        patch.setattr(replay, "PART_RECORDS", 1000)
        filled = Filled(Path(place) / "shop", HISTORY, lambda: sink)
        begin, waits = 0, set[str]()
        for end in grown(Path(place) / "shop", records, data):
            given_before = len(sink.given)
            filled.lap()
            waits |= live_behind(HISTORY, records[begin:end], expected, waits)
            assert expected.given == sink.given
            assert len(sink.given) >= given_before
            begin = end


@settings(max_examples=10, deadline=None)
@given(source=st.one_of(sources(), sources(whole_rows=True)), data=st.data())
def test_a_history_in_a_table_has_the_states_that_live_delivery_gives_it(
    source: Source, data: st.DataObject
) -> None:
    records = with_reads_and_repeats(source, data)
    # A read sends the rows of a later moment than its position. A change between the two that omits
    # a large value takes it from the row that was read, if both are in one batch, and from the row
    # before it otherwise: only the newest state does not depend on where batches end.
    read = any(b'"op":"r"' in (record.value or b"") for record in records)
    states = states_of if source.whole_rows or not read else last_states_of
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        filled = Filled(folder / "shop", HISTORY, lambda: WarehouseSink(folder / "laps"))
        for _ in grown(folder / "shop", records, data, 2):
            filled.lap()
        waits = live(HISTORY, records, WarehouseSink(folder / "live"))  # type: ignore[arg-type]
        waits |= filled.lacking
        assert states(folder / "live", waits) == states(folder / "laps", waits)


def last_states_of(tables: Path, but: set[str]) -> list[Any]:
    """The rows that the newest states have, without their times."""
    states = [row for row in states_of(tables, but) if row["is_current"]]
    return [(row["id"], row["note"], row["big"]) for row in states]


def states_of(tables: Path, but: set[str]) -> list[Any]:
    rows = DeltaTable(tables / HISTORY.name).to_pyarrow_table()
    if not rows.num_rows:
        return []
    order = [("id", "ascending"), ("valid_from", "ascending"), ("recorded_from", "ascending")]
    found = rows.sort_by(order).to_pylist()
    return [row for row in found if orjson.dumps({"id": row["id"]}).decode() not in but]


@settings(max_examples=examples(20), deadline=None)
@given(source=sources(), data=st.data())
def test_a_lap_that_is_killed_anywhere_goes_on_within_it(
    source: Source, data: st.DataObject
) -> None:
    records = with_reads_and_repeats(source, data)
    sink = MemorySink()
    with tempfile.TemporaryDirectory() as place:
        archive = Path(place) / "shop"
        filled = Filled(archive, PLAN, lambda: sink)
        for end in grown(archive, records[:-1], data):
            noted: list[ReplayState] = []
            for steps in [*data.draw(st.lists(st.integers(1, 3), max_size=3)), 1000]:
                resume = ReplayState.from_json(noted[-1].to_json()) if noted else None
                try:
                    found = filled.lap(note=Killed(steps, noted).note, resume=resume)
                except KilledError:
                    if data.draw(st.booleans()):
                        compacted(archive)
            # what came meanwhile is not for this one
            assert {(TOPIC, 0): end} == found.ends
            assert {noted[0].archive_version} == {each.archive_version for each in noted}
        archived(archive, TOPIC, records[-1:])
        filled.lap()

    read_again(source, records, filled.lacking, sink)
    assert source.rows == rows_of(sink)


def test_a_lap_opens_no_file_that_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, sink, records = tmp_path / "shop", MemorySink(), orders(60)
    filled = Filled(archive, PLAN, lambda: sink)
    looked_into: list[int] = []
    blocks: Any = vars(archive_scan.ArchiveScan)["blocks"].fget

    def counted(scan: archive_scan.ArchiveScan) -> list[Block]:
        found = blocks(scan)
        looked_into.append(sum(block.rows for block in found))
        return found

    monkeypatch.setattr(archive_scan.ArchiveScan, "blocks", property(counted))
    archived(archive, TOPIC, records[:40])
    assert 40 == filled.lap().records
    assert {40} == set(looked_into)
    looked_into.clear()
    archived(archive, TOPIC, records[40:50])
    assert 10 == filled.lap().records
    assert {10} == set(looked_into)
    looked_into.clear()
    archived(archive, TOPIC, records[50:])
    compacted(archive)  # all of them are in a file that nobody has read

    assert 10 == filled.lap().records
    assert {60} == set(looked_into)
    assert {n: f"n{max(range(n, 60, 7))}" for n in range(7)} == {
        key: row["note"] for key, row in rows_of(sink).items()
    }


def test_a_lap_over_an_archive_that_was_put_back_looks_into_all_of_it(tmp_path: Path) -> None:
    archive, sink, records = tmp_path / "shop", MemorySink(), orders(30)
    archived(archive, TOPIC, records[:20])
    filled = Filled(archive, PLAN, lambda: sink)
    filled.lap()
    before = filled.had
    assert before is not None
    # the same number, and other files
    other = tmp_path / "other"
    archived(other, TOPIC, records)
    assert (DeltaTable(archive).version(), DeltaTable(other).version()) == (1, 1)
    filled = Filled(other, PLAN, lambda: sink)
    filled.had = before

    assert 10 == filled.lap().records
    assert {(TOPIC, 0): 30} == {(t, n): end for t, n, end in filled.had.ends}


def test_a_read_that_begins_before_a_lap_and_ends_in_it_removes_what_it_has_not_found(
    tmp_path: Path,
) -> None:
    source, order = Source(), Random(1)  # noqa: S311
    source.together([[("copy", 1, 2, 3)]], order)
    known = len(source.topic)
    source.together([[("delete", 2)]], order)
    del source.topic[known:]  # nobody has captured it
    began = len(source.states) - 1
    read = source.read(began, began)
    records = numbered([*source.topic, *read])
    archive, sink = tmp_path / "shop", MemorySink()
    ends = {0: len(records)}
    whole = {TOPIC: whole_read(source.states[began][0] - 1, rows=len(read), ends=ends)}
    filled = Filled(archive, PLAN, lambda: sink)

    archived(archive, TOPIC, records[: known + 1])
    assert [] == filled.lap(whole=whole).swept
    assert {1, 2, 3} == rows_of(sink).keys()
    archived(archive, TOPIC, records[known + 1 :])
    assert [1] == [swept.removed for swept in filled.lap(whole=whole).swept]
    assert source.rows == rows_of(sink)


def test_a_lap_over_days_that_are_gone_is_refused(tmp_path: Path) -> None:
    archive, sink, records = tmp_path / "shop", MemorySink(), orders(30)
    filled = Filled(archive, PLAN, lambda: sink)
    archived(archive, TOPIC, records[:10])
    filled.lap()
    archived(archive, TOPIC, records[12:20])

    # the archive has older records of the partition: the topic itself has skipped two
    assert 8 == filled.lap().records
    DeltaTable(archive).delete()
    archived(archive, TOPIC, records[25:])
    with pytest.raises(ArchiveIncompleteError) as refused:
        filled.lap()
    assert "partition 0 has nothing from 20 to 25" == refused.value.detail
    DeltaTable(archive).delete()
    with pytest.raises(ArchiveIncompleteError) as refused:
        filled.lap(archived={(TOPIC, 0): 30})
    assert "partition 0 has nothing from 20 to 30" == refused.value.detail


def test_a_partition_of_which_a_view_has_nothing_begins_with_its_first_record(
    tmp_path: Path,
) -> None:
    archive, sink = tmp_path / "shop", MemorySink()
    filled = Filled(archive, PLAN, lambda: sink)
    archived(archive, TOPIC, orders(5))
    filled.lap()
    others = [r._replace(partition=1) for r in numbered(orders(7)[5:])]
    archived(archive, TOPIC, others)

    assert {(TOPIC, 0): 5, (TOPIC, 1): 2} == filled.lap().ends
    assert set(range(7)) == rows_of(sink).keys()
    late = [r._replace(partition=2) for r in orders(7)[5:]]
    archived(archive, TOPIC, late)
    with pytest.raises(ArchiveIncompleteError, match="came since"):
        filled.lap()


@pytest.mark.parametrize("first_known", [True, False], ids=["a change before", "nothing before"])
def test_of_a_row_that_a_read_has_sent_twice_the_first_counts_in_whatever_batches(
    tmp_path: Path, *, first_known: bool
) -> None:
    """As a read does that was killed before it had noted what it has sent, and began there anew."""
    key = orjson.dumps({"id": 1})
    sent = [("u", 0x1010, "changed")] if first_known else []
    sent += [("r", 0x0FFF, "read"), ("r", 0x0FFF, "read again"), ("u", 0x1020, "changed again")]
    records = numbered(
        [
            Record(key, envelope(op, lsn, {"id": 1, "note": note, "big": "b"}), "1", 0, 0)
            for op, lsn, note in sent
        ]
    )
    for cut in range(len(records) + 1):
        sink = WarehouseSink(tmp_path / str(cut))
        for batch in (records[:cut], records[cut:]):
            assert set() == live(HISTORY, batch, sink)  # type: ignore[arg-type]
        states = states_of(tmp_path / str(cut), set())
        assert ["read", *(note for op, _, note in sent if op == "u")] == [
            state["note"] for state in states
        ]
