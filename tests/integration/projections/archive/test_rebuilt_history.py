"""A history filled by tasks has the same states and changes as one filled record by record.

The replay without an engine is the oracle, over the same archive.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableSchema
from projections.archive import replay
from projections.archive.progress import ReplayProgress
from projections.archive.rebuilding import divided_records
from projections.archive.task import ReplayOptions, ReplayState
from projections.changes.record import Record
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.views import Store
from projections.planning.view_plan import HistoryPlan
from projections.stores.delta.history.sink import HistorySink
from tests.fix_archive import archived
from tests.fix_log import KEYS, LEAN, PLAN, TOPIC, envelope, numbered, orders, topics
from tests.fix_seeds import examples
from tests.support.replays import (
    OWN,
    HistoryTables,
    Kill,
    KilledError,
    alike,
    blocked,
    drawn_tasks,
    fill,
    keyed,
    replay_killed,
    use_small_parts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.archive.rebuilding.tasks import TaskRunner
    from projections.planning.view_plan import ViewPlan

TABLE = frozenset([Store.TABLE])
NOTES = replace(PLAN, to=TABLE, history=HistoryPlan(("note",)))
EVERY = replace(PLAN, to=TABLE, history=HistoryPlan(("id", "note", "big")))
CHECKED = replace(
    EVERY,
    expectations=(
        Expectation("quiet", "note <> 'n3'", OnFail.WARN),
        Expectation("early", "note < 'n6' OR id <> 2", OnFail.DROP),
        Expectation("known", "id <> 3 OR note <> 'n4' AND note <> 'n5'", OnFail.QUARANTINE),
    ),
)
NARROW = replace(LEAN, to=TABLE, history=HistoryPlan(("note",)))


AT = Column("at", ColumnKind.TIMESTAMPTZ, "timestamptz")
BY_TIME = replace(
    PLAN,
    to=TABLE,
    schema=TableSchema(PLAN.schema.table, (*PLAN.schema.columns, AT), PLAN.schema.key),
    history=HistoryPlan(("note", "big"), "at"),
)
BY_HIDDEN_TIME = replace(BY_TIME, schema=PLAN.schema, left_out=(AT,))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)


def drawn_records(data: st.DataObject) -> list[Record]:
    """Records of a topic; rows that a snapshot read are recorded early, late, or both."""
    records = data.draw(topics(whole_rows=data.draw(st.booleans())))
    late = data.draw(st.lists(st.sampled_from([0, 0, -24, 40]), min_size=1, max_size=5))
    return [_shifted(record, late[n % len(late)]) for n, record in enumerate(records)]


def with_times(records: Sequence[Record], *, nulls: bool = True) -> list[Record]:
    """The same records with a time in each row, an earlier one than before at times, or NULL.

    Args:
        records: The records.
        nulls: Whether some are NULL.
    """

    def timed(record: Record) -> Record:
        try:
            fields = orjson.loads(record.value or b"null")
        except orjson.JSONDecodeError:
            return record
        if not fields or not fields["after"]:
            return record
        number = int(fields["after"]["note"][1:])
        at = None if nulls and number % 13 == 12 else f"1970-01-01 00:00:00.00{number * 7 % 10}+00"
        fields["after"]["at"] = at
        return record._replace(value=orjson.dumps(fields))

    return list(map(timed, records))


def _shifted(record: Record, late_us: int) -> Record:
    try:
        fields = orjson.loads(record.value or b"null")
    except orjson.JSONDecodeError:
        return record
    if not fields or fields["op"] != "r":
        return record
    fields["source"]["ts_us"] += late_us
    return record._replace(value=orjson.dumps(fields))


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(
    "plans", [(NOTES, EVERY, NARROW, CHECKED), (BY_TIME, BY_HIDDEN_TIME)], ids=["commit", "own"]
)
def test_the_same_archive_leaves_the_same_history(
    plans: tuple[ViewPlan, ...], data: st.DataObject
) -> None:
    plan, records, word = keyed(data, data.draw(st.sampled_from(plans)), drawn_records(data))
    if plans[0] is BY_TIME:
        records = with_times(records)
    numbers = data.draw(st.sets(st.sampled_from(KEYS), max_size=1))
    keys = {orjson.dumps({"id": word(number)}).decode() for number in numbers}
    held = blocked(data, keys)
    ahead = data.draw(st.sampled_from([0, 0, (1 << 56) + 0x1028]))
    plan = replace(plan, left_to_read=ahead)
    whole = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        if whole:
            patch.setattr(replay, "PART_RECORDS", 1_000)
        archive = Path(place) / "shop"
        fill(archive, TOPIC, records, data)
        one = HistoryTables(Path(place) / "one", plan, held=held)
        other = HistoryTables(Path(place) / "other", plan, drawn_tasks(data), held)

        alike(archive, one, other, whole=whole)
        assert other.marks_hold()


@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_a_history_that_is_killed_anywhere_goes_on_and_leaves_the_same(data: st.DataObject) -> None:
    records = drawn_records(data)
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        archive = Path(place) / "shop"
        fill(archive, TOPIC, records, data)
        one = HistoryTables(Path(place) / "one", NOTES)
        other = HistoryTables(Path(place) / "other", NOTES, drawn_tasks(data))
        replay.replay(archive, [one.target()])

        replay_killed(archive, lambda bulk: other.target(bulk=bulk), patch, data, 8)

        waiting = one.waiting() | other.waiting()
        assert one.left(waiting) == other.left(waiting)
        assert other.marks_hold()


def replayed_both(
    place: Path, plan: ViewPlan, records: Sequence[Record]
) -> tuple[HistoryTables, HistoryTables]:
    """The same records replayed record by record and by tasks."""
    archived(place / "shop", TOPIC, records)
    one, other = HistoryTables(place / "one", plan), HistoryTables(place / "other", plan, OWN)
    for tables in (one, other):
        replay.replay(place / "shop", [tables.target()])
    return one, other


@pytest.mark.parametrize("plan", [EVERY, BY_TIME, BY_HIDDEN_TIME], ids=["commit", "own", "hidden"])
def test_tasks_write_all_records_that_stand_by_themselves(
    tasks: TaskRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: ViewPlan
) -> None:
    records = orders(60)
    gone = Record(orjson.dumps({"id": 3}), envelope("d", 0x1000 + 8 * 60, None, key=3), "1", 0, 0)
    records = numbered([*records, gone, gone._replace(value=None)])
    records = records if plan is EVERY else with_times(records, nulls=False)
    told = list[ReplayProgress]()
    archived(tmp_path / "shop", TOPIC, records)
    one = HistoryTables(tmp_path / "one", plan)
    other = HistoryTables(tmp_path / "other", plan, tasks)
    replay.replay(tmp_path / "shop", [one.target()])
    monkeypatch.setattr(HistorySink, "apply", None)  # no record is delivered by itself

    replay.replay(tmp_path / "shop", [other.target()], ReplayOptions(progress=told.append))

    assert one.left() == other.left()
    assert 61 == other.of_bulk()
    assert told[-1].delivered == told[-1].to_deliver


def test_a_key_with_more_changes_than_a_task_holds_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divided_records, "PORTION_ROWS", 10)
    hot = [
        Record(
            orjson.dumps({"id": 1}),
            envelope("u", 0x9000 + 8 * n, {"id": 1, "note": f"h{n}", "big": "b"}),
            "1",
            0,
            0,
        )
        for n in range(30)
    ]

    one, other = replayed_both(tmp_path, EVERY, numbered([*orders(40), *hot]))

    assert one.left() == other.left()
    assert 70 - 6 - 30 == other.of_bulk()  # the six older changes of the key are left, too


def test_another_form_of_a_key_leaves_the_row_to_the_replay(tmp_path: Path) -> None:
    records = orders(20)
    spaced = [each._replace(key=(each.key or b"").replace(b":", b": ")) for each in records[14:16]]

    one, other = replayed_both(tmp_path, EVERY, [*records[:14], *spaced, *records[16:]])

    assert one.left() == other.left()


def test_a_replay_that_is_killed_amid_the_keys_that_tasks_left_delivers_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = orders(20)
    spaced = [each._replace(key=(each.key or b"").replace(b":", b": ")) for each in records[8:16]]
    archived(tmp_path / "shop", TOPIC, [*records[:8], *spaced, *records[16:]])
    one = HistoryTables(tmp_path / "one", EVERY)
    replay.replay(tmp_path / "shop", [one.target()])
    left, steps = [], 0
    while not left or left[-1]:  # killed after one more step each time, until it ends before that
        steps += 1
        other = HistoryTables(tmp_path / f"killed-{steps}", EVERY, OWN)
        noted: list[ReplayState] = []
        with monkeypatch.context() as patch:
            killed = Kill(patch, noted)
            killed.after(steps)
            try:
                replay.replay(tmp_path / "shop", [other.target()], ReplayOptions(note=killed.note))
                left.append(0)
            except KilledError:
                left.append(len(one.left()[1]) - len(other.left()[1]))
        if left[-1] and noted:
            state = ReplayState.from_json(noted[-1].to_json())
            replay.replay(tmp_path / "shop", [other.target()], ReplayOptions(resume=state))
            assert one.left() == other.left()

    assert len(set(left)) > 2  # some kills were amid the keys that tasks left
