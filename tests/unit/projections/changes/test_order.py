"""One order: whatever comes twice, late or in any order, the view ends as its source.

The source, its log and its reads are those of `fix_log`; what is written is what a job writes,
with a store in memory.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.values import UNCHANGED_PLACEHOLDER, encoder
from projections.changes.applier import TaskApplier
from projections.changes.quarantine.retry import retry_keys
from projections.changes.quarantine.table import BEHIND, UNEXPECTED, UNRESOLVED, RetriedRecord
from projections.changes.task_outcome import BlockedKeys, UnappliedRecord
from projections.definition.expectations.expectation import expect
from tests.fix_log import LEAN, PLAN, TABLE, TOPIC, Source, groups, numbered, sources
from tests.fix_seeds import examples
from tests.oracles.sink_contract import SinkContract
from tests.support.memory_sink import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from projections.changes.record import Record
    from projections.changes.sink import Sink
    from projections.planning.view_plan import ViewPlan


class TestMemory(SinkContract):
    @pytest.fixture
    def open_sink(self) -> Callable[[], Sink]:
        views: dict[str, Any] = {}
        return lambda: MemorySink(views)


class Job:
    """Batches of one view, and what waits of it, as the job and its ledger have them."""

    def __init__(self, changes_per_write: int = 2, plan: ViewPlan = PLAN) -> None:
        self.plan = plan
        self.sink = MemorySink()
        self.changes_per_write = changes_per_write
        self.seen_lsn = 1 << 50  # where the log ends when something is set apart
        self.waiting: dict[int, UnappliedRecord] = {}

    def take(self, records: Sequence[Record], *, forgetful: bool = False) -> None:
        """Takes a batch; a forgetful job is killed before it can write down what waits."""
        held = BlockedKeys(frozenset(each.key for each in self.waiting.values()))
        delivery = TaskApplier(
            [self.plan],
            lambda: self.sink,
            {PLAN.name: held},
            changes_per_write=self.changes_per_write,
            overlapped=len(records) % 2 == 0,  # it makes no difference
        )
        with closing(delivery):
            for start in range(0, len(records), 2):
                delivery.take(TOPIC, records[start : start + 2])
            delivery.finish()
        if forgetful:
            return
        counted = delivery.counts[PLAN.name]
        assert len(records) == counted.records
        assert counted.records == counted.applied + counted.quarantined + counted.filtered
        for each in delivery.waiting:
            self.waiting.setdefault(each.record.offset, each)
        behind = {each.key for each in delivery.waiting if each.error.code == BEHIND}
        self.retry({key for key in behind if self._waits_for_a_value(key)})
        if delivery.truncated:
            self.retry({each.key for each in self.waiting.values()})

    def retry(self, keys: set[str]) -> None:
        cases = [
            RetriedRecord(PLAN.name, each.key, TOPIC, each.record, each.version, self.seen_lsn)
            for offset, each in sorted(self.waiting.items())
            if each.key in keys
        ]
        for verdict in retry_keys(self.plan, cases, lambda: self.sink, {}):
            offset = verdict.case.record.offset
            if verdict.error is None:
                del self.waiting[offset]
            else:
                self.waiting[offset] = replace(self.waiting[offset], error=verdict.error)

    def rows(self) -> dict[int, Any]:
        return {row["id"]: row for row in self.sink.documents(self.plan)}

    def _waits_for_a_value(self, key: str) -> bool:
        codes = {each.error.code for each in self.waiting.values() if each.key == key}
        return codes <= {BEHIND, UNRESOLVED, UNEXPECTED}


def expected(source: Source) -> dict[int, Any]:
    encode = encoder(TABLE)
    return {key: encode(row) for key, row in source.rows.items()}


def batches(data: st.DataObject, records: Sequence[Record]) -> list[Sequence[Record]]:
    ends = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=5)))
    starts = [0, *ends]
    return [records[a:b] for a, b in zip(starts, [*ends, len(records)], strict=True)]


@settings(max_examples=examples(200), deadline=None)
@given(source=sources(whole_rows=True), data=st.data())
def test_whole_rows_end_as_the_source_in_any_order(source: Source, data: st.DataObject) -> None:
    last = len(source.states) - 1
    reads = source.read(data.draw(st.integers(0, last)), data.draw(st.integers(0, last)))
    records = source.topic + reads
    again = data.draw(st.lists(st.sampled_from(records), max_size=8)) if records else []
    shuffled = numbered(data.draw(st.permutations(records + again)))
    job = Job()

    for batch in batches(data, shuffled):
        job.take(batch)

    assert (expected(source), {}) == (job.rows(), job.waiting)


@settings(max_examples=examples(250), deadline=None)
@given(source=sources(), data=st.data())
def test_rows_with_unchanged_values_end_as_the_source_in_the_order_of_their_partition(
    source: Source, data: st.DataObject
) -> None:
    records = _topic(source, data)
    job = Job(data.draw(st.sampled_from([2, 100])))

    for batch in batches(data, records):
        if data.draw(st.booleans()):
            job.take(batch[: data.draw(st.integers(0, len(batch)))], forgetful=True)
        job.take(batch)
        assert UNCHANGED_PLACEHOLDER not in {row["big"] for row in job.rows().values()}
    lacking = sorted({each.key for each in job.waiting.values()})
    reread = [source.read_now(int(key.removeprefix('{"id":')[:-1])) for key in lacking]
    job.take(numbered([*records, *reread])[len(records) :])

    assert {UNRESOLVED, BEHIND} >= {each.error.code for each in job.waiting.values()}
    assert (expected(source), {}) == (job.rows(), job.waiting)


@settings(max_examples=examples(200), deadline=None)
@given(source=sources(), data=st.data())
def test_a_whole_topic_taken_again_changes_nothing(source: Source, data: st.DataObject) -> None:
    records = _topic(source, data)
    job = Job(data.draw(st.sampled_from([2, 100])))
    for batch in batches(data, records):
        job.take(batch)
    before = dict(job.sink.views[PLAN.name].rows) if job.sink.views else {}
    waiting = {each.key for each in job.waiting.values()}

    for batch in batches(data, records):
        job.take(batch)

    after = dict(job.sink.views[PLAN.name].rows) if job.sink.views else {}
    # a row that waits may find its value now, or show an older state; nothing is ever undone
    changed = {key for key, row in after.items() if before.get(key) != row}
    assert {f'{{"id":{key}}}' for (key,) in changed} <= waiting
    assert before.keys() <= after.keys()
    assert all(after[key][0] > before[key][0] for key in changed & before.keys())


@settings(max_examples=examples(200), deadline=None)
@given(source=sources(), data=st.data())
def test_what_cannot_be_read_holds_up_its_own_key_until_the_row_is_read(
    source: Source, data: st.DataObject
) -> None:
    records = _topic(source, data)
    for place in data.draw(st.lists(st.integers(0, len(records) - 1), max_size=3)):
        records[place] = records[place]._replace(value=b"{")
    job = Job(data.draw(st.sampled_from([2, 100])))
    job.seen_lsn = source.lsn

    for batch in batches(data, records):
        job.take(batch)

    waiting = {each.key for each in job.waiting.values()}
    flowing = {key for key in range(1, 6) if f'{{"id":{key}}}' not in waiting}
    if any(record.key is None and record.value == b"{" for record in records):
        return  # a truncate that nobody can read: its place waits, and no key
    wanted, found = expected(source), job.rows()
    assert {k: wanted.get(k) for k in flowing} == {k: found.get(k) for k in flowing}
    subsets = st.sets(st.sampled_from(sorted(waiting))) if waiting else st.just(set())
    for some in data.draw(st.lists(subsets, max_size=2)):
        job.retry(some)
        waiting = {each.key for each in job.waiting.values()}
        found = job.rows()
        flowing = {key for key in range(1, 6) if f'{{"id":{key}}}' not in waiting}
        assert {k: wanted.get(k) for k in flowing} == {k: found.get(k) for k in flowing}
    reread = [source.read_now(int(key.removeprefix('{"id":')[:-1])) for key in sorted(waiting)]
    job.take(numbered([*records, *reread])[len(records) :])
    job.retry(waiting)
    assert (expected(source), {}) == (job.rows(), job.waiting)


@settings(max_examples=examples(200), deadline=None)
@given(source=sources(), data=st.data())
def test_a_read_of_the_whole_table_repairs_what_was_lost(
    source: Source, data: st.DataObject
) -> None:
    before = len(source.states)
    order = data.draw(st.randoms(use_true_random=False))
    source.lose(groups(data.draw), order)
    for _ in range(data.draw(st.integers(0, 3))):
        source.together(groups(data.draw), order)
    began = data.draw(st.integers(before, len(source.states) - 1))
    records = [*source.topic]
    since = next((n for n, r in enumerate(records) if r.epoch == "2"), len(records))
    for row in source.read(began, data.draw(st.integers(began, len(source.states) - 1))):
        records.insert(data.draw(st.integers(since, len(records))), row)
    job = Job(data.draw(st.sampled_from([2, 100])))

    for batch in batches(data, numbered(records)):
        job.take(batch)
    job.sink.sweep(PLAN, 2 << 56 | source.states[began][0] - 1)
    job.retry({each.key for each in job.waiting.values()})

    waiting = {each.key for each in job.waiting.values()}
    reread = [source.read_now(int(key.removeprefix('{"id":')[:-1])) for key in sorted(waiting)]
    job.take(numbered([*records, *reread])[len(records) :])
    assert (expected(source), {}) == (job.rows(), job.waiting)


CHOOSY = replace(
    PLAN,
    expectations=(
        expect("even", "note LIKE '%2' OR note LIKE '%4' OR id = 1", on_fail="drop"),
        expect("low", "id < 3 OR note IS NULL", on_fail="quarantine"),
        expect("short", "length(big) < 3"),
    ),
)


def left_out(key: int, row: Any) -> bool:
    return not (row["note"][-1] in "24" or key == 1)


@settings(max_examples=examples(300), deadline=None)
@given(source=sources(whole_rows=True), data=st.data())
def test_a_view_has_the_newest_row_of_a_key_if_that_is_as_expected(
    source: Source, data: st.DataObject
) -> None:
    last = len(source.states) - 1
    reads = source.read(data.draw(st.integers(0, last)), data.draw(st.integers(0, last)))
    records = source.topic + reads
    again = data.draw(st.lists(st.sampled_from(records), max_size=8)) if records else []
    job = Job(plan=CHOOSY)

    for batch in batches(data, numbered(data.draw(st.permutations(records + again)))):
        job.take(batch)

    every = expected(source)
    wanted = {key: row for key, row in every.items() if key < 3 and not left_out(key, row)}
    assert wanted == job.rows()
    assert {f'{{"id":{key}}}' for key in every if key >= 3} == {
        each.key for each in job.waiting.values()
    }
    # once such rows are wanted, what waits is enough to have them
    job.plan = replace(CHOOSY, expectations=CHOOSY.expectations[:1])
    job.retry({each.key for each in job.waiting.values()})
    wanted = {key: row for key, row in every.items() if not left_out(key, row)}
    assert (wanted, {}) == (job.rows(), job.waiting)


@settings(max_examples=examples(300), deadline=None)
@given(source=sources(), data=st.data())
def test_rows_that_were_left_out_come_back_whole(source: Source, data: st.DataObject) -> None:
    records = _topic(source, data)
    on_big = expect("odd", "big LIKE '%1%' OR big LIKE '%3%' OR big LIKE '%5%'", on_fail="drop")
    some = data.draw(st.sampled_from([CHOOSY.expectations[:1], (on_big,)]))
    job = Job(data.draw(st.sampled_from([2, 100])), replace(PLAN, expectations=some))

    for batch in batches(data, records):
        if data.draw(st.booleans()):
            job.take(batch[: data.draw(st.integers(0, len(batch)))], forgetful=True)
        job.take(batch)
    lacking = sorted({each.key for each in job.waiting.values()})
    reread = [source.read_now(int(key.removeprefix('{"id":')[:-1])) for key in lacking]
    job.take(numbered([*records, *reread])[len(records) :])

    wanted = {
        key: row
        for key, row in expected(source).items()
        if (not {*"135"}.isdisjoint(row["big"]) if some == (on_big,) else not left_out(key, row))
    }
    assert (wanted, {}) == (job.rows(), job.waiting)


@settings(max_examples=examples(250), deadline=None)
@given(source=sources(), data=st.data())
def test_what_becomes_of_a_column_that_is_left_out_never_matters(
    source: Source, data: st.DataObject
) -> None:
    strange = st.sampled_from(["kept", "gone", 7, None, ["of", "another", "type"]])
    records = [_with_big(record, data.draw(strange)) for record in _topic(source, data)]
    job = Job(data.draw(st.sampled_from([2, 100])), LEAN)

    for batch in batches(data, records):
        job.take(batch)

    # no value of it is looked for, and none is refused
    rows = {key: {"id": key, "note": row["note"]} for key, row in source.rows.items()}
    assert (rows, {}) == (job.rows(), job.waiting)


def test_views_of_one_table_leave_out_each_what_it_says() -> None:
    source, plans, sink = Source(), [PLAN, replace(LEAN, name="lean")], MemorySink()
    source.together([[("insert", 1), ("note", 1)]], Random(1))  # noqa: S311
    delivery = TaskApplier(plans, lambda: sink)

    delivery.take(TOPIC, numbered(source.topic))
    delivery.finish()

    found = [set(row) for plan in plans for row in sink.documents(plan)]
    assert ([{"id", "note", "big"}, {"id", "note"}], []) == (found, delivery.waiting)


def _with_big(record: Record, value: object) -> Record:
    fields = orjson.loads(record.value or b"null")
    if value == "kept" or fields["after"] is None:
        return record
    if value == "gone":
        del fields["after"]["big"]
    else:
        fields["after"]["big"] = value
    return record._replace(value=orjson.dumps(fields))


def _topic(source: Source, data: st.DataObject) -> list[Record]:
    """The log in its order, parts of it sent again, and reads anywhere in between."""
    records = list(source.topic)
    for _ in range(data.draw(st.integers(0, 2))):
        start = data.draw(st.integers(0, len(source.topic)))
        sent = data.draw(st.integers(start, len(source.topic)))
        # a connector that is restarted sends again from a place before, and goes on from there
        records = [*source.topic[:sent], *source.topic[start:]] if sent > start else records
    last = len(source.states) - 1
    for _ in range(data.draw(st.integers(1, 2))):
        began = data.draw(st.integers(0, last))
        for row in source.read(began, data.draw(st.integers(began, last))):
            records.insert(data.draw(st.integers(0, len(records))), row)
    return numbered(records)
