"""A large batch ends as small ones, whatever its runs are cut into and wherever it is killed."""

from __future__ import annotations

import errno
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.values import UNCHANGED_PLACEHOLDER
from projections.changes.applier import TaskApplier
from projections.changes.quarantine.table import BEHIND, UNRESOLVED
from projections.changes.task_outcome import BlockedKeys
from projections.common.fault import Fault, FaultError
from projections.common.task_files import TaskFiles
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.expectations.expectation import expect
from projections.definition.views import ChangeTime
from projections.errors import BacklogSpaceError, FolderNotSharedError
from projections.job import backlog_reader, backlog_writer, batch_writer
from projections.job.backlog_reader import BacklogReader
from projections.job.backlog_writer import BacklogWriter
from projections.job.plain_topic import PendingRows, PlainRun, PlainTopic
from projections.job.record_runs import PIECE, RECORD_COLUMNS
from projections.job.stored_runs import RunFile, StoredRun, StoredRuns
from projections.planning.view_plan import HistoryPlan
from projections.publishing.boundary import UnpublishedProgress, divide
from projections.publishing.published_versions import Published
from projections.stores.delta.arrow import decoded_rows
from projections.stores.delta.sink import WarehouseSink
from tests.fix_log import PLAN, TABLE, TOPIC, envelope, numbered, orders, sources, topics
from tests.fix_seeds import examples
from tests.support.memory_sink import MemorySink
from tests.support.table_batches import OF_TABLE, config_of_tables, write_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from projections.changes.record import Record
    from projections.changes.task_outcome import UnappliedRecord
    from projections.job.backlog_writer import BacklogRun
    from projections.planning.job_config import JobConfig
    from tests.fix_log import Source


class Killed(Exception):  # noqa: N818  # no error: ends a batch
    """The process ends here."""


class Job:
    """Large batches of one view, as a job writes them, into real tables."""

    def __init__(self, folder: Path) -> None:
        self.published = Published(folder, PLAN.source)
        self.sink = WarehouseSink(folder)
        self.sink.prepare(OF_TABLE)
        self.waiting: dict[int, UnappliedRecord] = {}

    @property
    def held(self) -> dict[str, BlockedKeys]:
        return {PLAN.name: BlockedKeys(frozenset(each.key for each in self.waiting.values()))}

    def take(self, runs: Sequence[BacklogRun], *, killed_at: int | None = None) -> bool:
        """Writes a batch; a killed one ends before one of its runs, or before it is settled.

        Returns:
            Whether it could be written from runs that were read before.
        """
        held = self.held
        delivery = TaskApplier([OF_TABLE], lambda: self.sink, held, changes_per_write=3)
        with closing(delivery):
            backlog = BacklogWriter([OF_TABLE], held, delivery, self.published, lambda: self.sink)
            try:
                if not backlog.write(_until(runs, killed_at)):
                    return False
            except Killed:
                return True
        if killed_at is not None:
            return True
        counted = delivery.counts[PLAN.name]
        assert counted.records == counted.applied + counted.quarantined + counted.filtered
        for each in delivery.waiting:
            self.waiting.setdefault(each.record.offset, each)
        backlog.settle()
        return True

    def rows(self) -> dict[int, Any]:
        return {row["id"]: row for row in self.sink.documents(OF_TABLE)}


def _until(runs: Sequence[BacklogRun], killed_at: int | None) -> Iterator[BacklogRun]:
    for number, run in enumerate(runs):
        if number == killed_at:
            raise Killed
        yield run


def _cut(data: st.DataObject, records: Sequence[Record]) -> list[Sequence[Record]]:
    ends = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=6)))
    parts = [records[a:b] for a, b in zip([0, *ends], [*ends, len(records)], strict=True)]
    return [part for part in parts if part]


def _read_by_tasks(
    data: st.DataObject, folder: Path, job: Job, records: Sequence[Record]
) -> list[BacklogRun]:
    """Reads a batch by several tasks, some of them twice; returns their runs."""
    pieces = list(enumerate(_cut(data, records)))
    tasks = data.draw(st.integers(1, 3))
    shares = [data.draw(st.permutations(pieces[task::tasks])) for task in range(tasks)]
    files = TaskFiles.made(folder / ".backlog")
    reader = BacklogReader([OF_TABLE], job.held, files)
    stored: list[StoredRun] = []
    for share in shares:
        batches = [_columns(number, run) for number, piece in share for run in _cut(data, piece)]
        for _ in range(data.draw(st.integers(1, 2))):  # the last one counts
            read = list(_stored(reader, batches))
        stored += read
    return list(StoredRuns(files.folder, tuple(data.draw(st.permutations(stored)))).read())


def _columns(piece: int, records: Sequence[Record]) -> pa.RecordBatch:
    columns = {name: [getattr(record, name) for record in records] for name in RECORD_COLUMNS}
    alike = {"topic": [TOPIC] * len(records), PIECE: [piece] * len(records)}
    return pa.RecordBatch.from_pydict(alike | columns)


def _stored(reader: BacklogReader, batches: Sequence[pa.RecordBatch]) -> Iterator[StoredRun]:
    for batch in reader.read(batches):
        yield from (StoredRun(**row) for row in batch.to_pylist())


@settings(max_examples=examples(60), deadline=None)
@given(source=st.booleans().flatmap(lambda whole: sources(whole_rows=whole)), data=st.data())
def test_any_cut_into_large_batches_and_runs_ends_as_the_source_also_if_batches_are_killed(
    source: Source, data: st.DataObject
) -> None:
    records = numbered(source.topic)
    sizes = {
        "PENDING_BYTES_MAX": data.draw(st.sampled_from([1, 200, 1 << 20])),
        "DELIVERED_BYTES_MAX": data.draw(st.sampled_from([1, 1 << 20])),
        "DELIVERED_RECORDS": data.draw(st.sampled_from([1, 4, 1000])),
    }
    of_tasks = {
        "GATHERED_BYTES_MAX": data.draw(st.sampled_from([1, 200, 1 << 20])),
        "DELIVERED_RECORDS": sizes["DELIVERED_RECORDS"],
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.multiple(backlog_writer, **sizes),
        mock.patch.multiple(backlog_reader, **of_tasks),
    ):
        job = Job(Path(folder))
        for batch in _cut(data, records):
            came: list[BacklogRun] = [(TOPIC, run) for run in _cut(data, batch)]
            by_tasks = data.draw(st.booleans())
            runs = _read_by_tasks(data, Path(folder), job, batch) if by_tasks else came
            for _ in range(data.draw(st.integers(0, 2))):
                job.take(runs, killed_at=data.draw(st.integers(0, len(runs))))
            if not job.take(runs):
                assert by_tasks
                assert job.take(came)
        found = job.rows()
        ahead = job.published.beyond().ahead

    # a row whose large value is in a row that an earlier batch deleted is read again
    assert {UNRESOLVED, BEHIND} >= {each.error.code for each in job.waiting.values()}
    assert not (source.whole_rows and job.waiting)
    waiting = {each.key for each in job.waiting.values()}
    flowing = {key for key in range(1, 6) if f'{{"id":{key}}}' not in waiting}
    assert {k: source.rows.get(k) for k in flowing} == {k: found.get(k) for k in flowing}
    whole = divide([(TOPIC, records)], frozenset([TOPIC]), None, UnpublishedProgress())
    assert whole.ahead == ahead


@settings(max_examples=examples(150), deadline=None)
@given(records=topics(), data=st.data())
def test_a_run_is_read_by_columns_as_the_reducer_reads_it_or_refused(
    records: list[Record], data: st.DataObject
) -> None:
    reader = PlainTopic.of([OF_TABLE], TOPIC, {})
    assert reader is not None
    for run in _cut(data, records):
        plain = reader.read(run)
        if plain is None:
            continue
        sink = MemorySink()
        delivery = TaskApplier([OF_TABLE], lambda sink=sink: sink)  # type: ignore[misc]
        delivery.take(TOPIC, run)
        delivery.finish()
        pending = PendingRows(OF_TABLE)
        pending.add(*plain.parts[0])
        newest = pending.taken()

        count = delivery.counts[PLAN.name]
        assert ([], {}) == (delivery.waiting, delivery.truncated)
        assert (count.records, count.filtered) == (plain.records, plain.tombstones)
        rows = {
            (row["id"],): (version, row)
            for row, version in zip(
                decoded_rows(OF_TABLE, newest.rows),
                newest.rows["_version"].to_pylist(),
                strict=True,
            )
        }
        gone = {
            (key,): (version, None)
            for key, version in zip(
                *(newest.deletes[name].to_pylist() for name in ("id", "_version")), strict=True
            )
        }
        assert sink.views[PLAN.name].rows == rows | gone
        lags = [each for each in newest.committed_at_us if each]
        assert len(count.lags_us) == len(lags)


@pytest.mark.parametrize(
    "plan",
    [
        replace(OF_TABLE, history=HistoryPlan(("note", "big"))),
        replace(
            OF_TABLE, schema=TABLE.__class__(TABLE.table, TABLE.columns, ()), keys=(ROW_ID_COLUMN,)
        ),
        replace(OF_TABLE, expectations=(expect("low", "id < 3", on_fail="quarantine"),)),
        replace(OF_TABLE, times=(("at", ChangeTime.COMMIT),)),
        replace(OF_TABLE, left_to_read=7),
        replace(OF_TABLE, former=("shop.public.articles",)),
    ],
)
def test_a_view_that_shows_more_than_the_newest_rows_is_delivered_record_by_record(
    plan: Any,
) -> None:
    assert PlainTopic.of([OF_TABLE], TOPIC, {}) is not None
    assert PlainTopic.of([OF_TABLE, plan], TOPIC, {}) is None


def test_a_view_with_quarantined_keys_is_delivered_record_by_record() -> None:
    held = {PLAN.name: BlockedKeys(frozenset(['{"id":1}']))}

    assert PlainTopic.of([OF_TABLE], TOPIC, held) is None


def test_a_run_that_was_read_is_refused_once_a_record_of_its_view_is_quarantined(
    tmp_path: Path,
) -> None:
    job, (first, *later) = Job(tmp_path), orders(20)
    row = {"id": 0, "note": "n", "big": UNCHANGED_PLACEHOLDER}
    lacking = first._replace(value=envelope("u", 0x1000, row))
    others = [record for record in later if record.key != first.key]
    files = TaskFiles.made(tmp_path / ".backlog")
    reader = BacklogReader([OF_TABLE], {}, files)
    stored = [
        run
        for number, piece in enumerate([[lacking], others])
        for run in _stored(reader, [_columns(number, piece)])
    ]
    runs = list(StoredRuns(files.folder, tuple(stored)).read())
    came: list[BacklogRun] = [(TOPIC, [lacking]), (TOPIC, others)]

    assert not job.take(runs)
    assert {} == job.waiting
    assert job.take(came)
    assert [UNRESOLVED] == [each.error.code for each in job.waiting.values()]
    assert set(range(1, 7)) == job.rows().keys()


def test_several_runs_of_a_piece_are_stored_as_one_with_the_newest_rows(tmp_path: Path) -> None:
    files, records = TaskFiles.made(tmp_path), orders(20)
    reader = BacklogReader([OF_TABLE], {}, files)

    runs = list(_stored(reader, [_columns(3, records[:9]), _columns(3, records[9:])]))

    assert [(TOPIC, 0, 0, 2, 20)] == [
        (run.topic, run.partition, run.offset, run.tables, run.records) for run in runs
    ]
    ((topic, read),) = StoredRuns(files.folder, tuple(runs)).read()
    assert TOPIC == topic
    assert isinstance(read, PlainRun)
    assert (7, 0) == tuple(table.num_rows for table in read.parts[0])


def test_a_task_whose_batch_has_ended_finds_no_folder_and_makes_none(tmp_path: Path) -> None:
    files = TaskFiles.made(tmp_path / "backlog")
    files.remove()

    with pytest.raises(FaultError, match=FolderNotSharedError.code):
        list(BacklogReader([OF_TABLE], {}, files).read([_columns(0, orders(3))]))

    assert not files.folder.exists()


def test_a_full_disk_is_named_and_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TaskFiles.made(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(RunFile, "add", full)
    with pytest.raises(FaultError) as ended:
        list(BacklogReader([OF_TABLE], {}, files).read([_columns(0, orders(3))]))

    found = Fault.find(str(ended.value))
    assert found is not None
    assert (BacklogSpaceError.code, True) == (found.code, found.retriable)
    assert [] == list(files.folder.iterdir())


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    return config_of_tables(tmp_path)


def test_a_batch_is_large_by_its_bytes_as_well(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "LARGE_BYTES", 1000)
    tables = config.addresses.tables
    WarehouseSink(tables).prepare(OF_TABLE)
    row = {"id": 1, "note": "n", "big": "b" * 2000}
    (record,) = numbered([orders(1)[0]._replace(value=envelope("c", 0x2000, row, order=1))])

    write_batch(config, [record])

    # a small one would have left it waiting for a boundary
    assert [] == Published(tables, PLAN.source).beyond().waiting
    assert [row] == list(WarehouseSink(tables).documents(OF_TABLE))
