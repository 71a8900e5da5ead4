"""A large batch ends as small ones, whatever its runs are cut into and wherever it is killed."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.changes.applier import TaskApplier
from projections.changes.quarantine.table import BEHIND, UNRESOLVED
from projections.changes.task_outcome import BlockedKeys
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.expectations.expectation import expect
from projections.definition.views import ChangeTime
from projections.job import backlog_writer, batch_writer
from projections.job.backlog_writer import BacklogWriter
from projections.job.plain_topic import PendingRows, PlainTopic
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
    from projections.planning.job_config import JobConfig
    from projections.publishing.boundary import Run
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

    def take(self, runs: Sequence[Run], *, killed_at: int | None = None) -> None:
        """Writes a batch; a killed one ends before one of its runs, or before it is settled."""
        held = {PLAN.name: BlockedKeys(frozenset(each.key for each in self.waiting.values()))}
        delivery = TaskApplier([OF_TABLE], lambda: self.sink, held, changes_per_write=3)
        with closing(delivery):
            backlog = BacklogWriter([OF_TABLE], held, delivery, self.published, lambda: self.sink)
            try:
                backlog.write(_until(runs, killed_at))
            except Killed:
                return
        if killed_at is not None:
            return
        counted = delivery.counts[PLAN.name]
        assert counted.records == counted.applied + counted.quarantined + counted.filtered
        for each in delivery.waiting:
            self.waiting.setdefault(each.record.offset, each)
        backlog.settle()

    def rows(self) -> dict[int, Any]:
        return {row["id"]: row for row in self.sink.documents(OF_TABLE)}


def _until(runs: Sequence[Run], killed_at: int | None) -> Iterator[Run]:
    for number, run in enumerate(runs):
        if number == killed_at:
            raise Killed
        yield run


def _cut(data: st.DataObject, records: Sequence[Record]) -> list[Sequence[Record]]:
    ends = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=6)))
    parts = [records[a:b] for a, b in zip([0, *ends], [*ends, len(records)], strict=True)]
    return [part for part in parts if part]


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
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.multiple(backlog_writer, **sizes),
    ):
        job = Job(Path(folder))
        for batch in _cut(data, records):
            runs: list[Run] = [(TOPIC, run) for run in _cut(data, batch)]
            for _ in range(data.draw(st.integers(0, 2))):
                job.take(runs, killed_at=data.draw(st.integers(0, len(runs))))
            job.take(runs)
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
