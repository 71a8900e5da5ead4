"""A replay with tasks leaves the same tables as one without them, of the same archive.

The replay without an engine is the oracle; that it comes to what live delivery makes of the same
records is shown by `tests/unit/projections/archive/test_replay.py`.
"""

from __future__ import annotations

import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.archive import replay
from projections.archive.progress import ReplayProgress
from projections.archive.rebuilding import task_ranges
from projections.archive.rebuilding.engine import TaskEngine
from projections.archive.task import ReplayOptions, ReplayState
from projections.changes.record import Record
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.views import ChangeTime
from projections.errors import ReplayStoppedError, ViewHaltedError
from tests.fix_archive import archived
from tests.fix_log import LEAN, PLAN, TOPIC, envelope, numbered, orders, topics
from tests.fix_seeds import examples
from tests.support.replays import (
    KEYS,
    OWN,
    Kill,
    KilledError,
    Tables,
    drawn_tasks,
    fill,
    keyed,
    replay_killed,
    with_key,
)

if TYPE_CHECKING:
    from cdc.table import Column
    from projections.archive.rebuilding.tasks import TaskRunner

CHECKED = replace(
    PLAN,
    expectations=(
        Expectation("quiet", "note <> 'n3'", OnFail.WARN),
        Expectation("early", "note < 'n6' OR id <> 2", OnFail.DROP),
        Expectation("known", "id <> 3 OR note <> 'n4' AND note <> 'n5'", OnFail.QUARANTINE),
    ),
)
TIMED = replace(PLAN, times=(("changed_at", ChangeTime.COMMIT), ("sent_at", ChangeTime.BROKER)))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 3)
    monkeypatch.setattr(replay, "BULK_RECORDS", 2)
    monkeypatch.setattr(task_ranges, "TASK_ROWS", 4)
    monkeypatch.setattr(task_ranges, "KEYS_PER_TASK", 12)


@settings(max_examples=examples(20), deadline=None)
@given(records=topics(), data=st.data())
def test_the_same_archive_leaves_the_same_tables(
    records: list[Record], data: st.DataObject
) -> None:
    plan = data.draw(st.sampled_from([PLAN, LEAN, TIMED, CHECKED]))
    plan, records, _ = keyed(data, plan, records)
    with tempfile.TemporaryDirectory() as place:
        archive = Path(place) / "shop"
        fill(archive, TOPIC, records, data)
        one = Tables(Path(place) / "one", plan)
        other = Tables(Path(place) / "other", plan, drawn_tasks(data))

        expected = replay.replay(archive, [one.target()])
        found = replay.replay(archive, [other.target()])

        assert (one.left(), one.waits) == (other.left(), other.waits)
        assert expected.ends == found.ends
        assert expected.records == found.records
        counts, others = expected.counts[0][plan.name], found.counts[0][plan.name]
        assert (counts.records, counts.applied) == (others.records, others.applied)
        assert counts.failed == others.failed


@settings(max_examples=examples(20), deadline=None)
@given(records=topics(), data=st.data())
def test_a_replay_that_is_killed_anywhere_goes_on_and_leaves_the_same(
    records: list[Record], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        archive = Path(place) / "shop"
        fill(archive, TOPIC, records, data)
        one = Tables(Path(place) / "one", PLAN)
        other = Tables(Path(place) / "other", PLAN, drawn_tasks(data))
        replay.replay(archive, [one.target()])

        replay_killed(archive, lambda bulk: other.target(bulk=bulk), patch, data, 6)

        assert one.left()[0] == other.left()[0]
        assert one.waits == other.waits


def test_a_table_that_has_rows_is_filled_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    tables = Tables(tmp_path / "tables", PLAN, OWN)
    replay.replay(tmp_path / "shop", [tables.target()])
    before = tables.left()
    monkeypatch.setattr(TaskEngine, "fill", None)

    replay.replay(tmp_path / "shop", [tables.target()])

    assert 7 == len(before[0])
    assert before == tables.left()


def test_a_replay_in_bulk_is_stopped_and_goes_on(tasks: TaskRunner, tmp_path: Path) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    tables = Tables(tmp_path / "tables", PLAN, tasks)
    stop, noted, told = threading.Event(), list[ReplayState](), list[ReplayProgress]()

    def note(state: ReplayState) -> None:
        noted.append(state)
        if state.part == 1:
            stop.set()

    options = ReplayOptions(note=note, stopped=stop)
    with pytest.raises(ReplayStoppedError):
        replay.replay(tmp_path / "shop", [tables.target()], options)
    rows = len(tables.left()[0])
    replay.replay(
        tmp_path / "shop", [tables.target()], ReplayOptions(resume=noted[-1], progress=told.append)
    )

    assert 0 < rows < 7
    assert [f"n{n}" for n in (14, 15, 16, 17, 18, 19, 13)] == [r["note"] for r in tables.left()[0]]
    assert told[-1].looked_at == told[-1].rows
    assert told[-1].delivered == told[-1].to_deliver


@pytest.mark.parametrize("first", [7, 14])  # the other form is the older one, or the newer one
def test_a_row_under_keys_of_two_forms_is_one_row(tmp_path: Path, first: int) -> None:
    records = orders(20)
    for place in (first, first + 1):
        key = (records[place].key or b"").replace(b":", b": ")
        records[place] = records[place]._replace(key=key)
    archived(tmp_path / "shop", TOPIC, records)
    tables, told = Tables(tmp_path / "tables", PLAN, OWN), list[ReplayProgress]()

    options = ReplayOptions(progress=told.append)
    replay.replay(tmp_path / "shop", [tables.target()], options)

    assert told[-1].delivered == told[-1].to_deliver

    assert [f"n{n}" for n in (14, 15, 16, 17, 18, 19, 13)] == [r["note"] for r in tables.left()[0]]


def test_what_went_on_record_by_record_does_not_go_on_in_bulk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    tables, noted = Tables(tmp_path / "tables", PLAN, OWN), list[ReplayState]()
    killed = Kill(monkeypatch, noted)
    killed.after(2)
    options = ReplayOptions(note=killed.note)
    with pytest.raises(KilledError):  # once three rows are written
        replay.replay(tmp_path / "shop", [tables.target(bulk=False)], options)
    killed.after(1 << 30)

    replay.replay(tmp_path / "shop", [tables.target()], ReplayOptions(resume=noted[-1]))

    assert list(range(7)) == [row["id"] for row in tables.left()[0]]
    fresh = Tables(tmp_path / "fresh", PLAN, OWN)
    killed.after(5)
    with pytest.raises(KilledError):  # once two parts are written in bulk
        replay.replay(tmp_path / "shop", [fresh.target()], options)
    killed.after(1 << 30)
    resumes = ReplayOptions(note=killed.note, resume=noted[-1])
    replay.replay(tmp_path / "shop", [fresh.target(bulk=False)], resumes)
    replay.replay(tmp_path / "shop", [fresh.target()], ReplayOptions(resume=noted[-1]))

    assert tables.left()[:2] == fresh.left()[:2]


@pytest.mark.parametrize("column", [*KEYS][:-1], ids=lambda column: column.type_name)
def test_tasks_write_the_rows_of_every_kind_of_key(tmp_path: Path, column: Column) -> None:
    plan, records = with_key(PLAN, column, orders(20))
    archived(tmp_path / "shop", TOPIC, records)
    tables = Tables(tmp_path / "tables", plan, OWN)

    replay.replay(tmp_path / "shop", [tables.target()])

    assert (7, 7) == (len(tables.left()[0]), tables.of_bulk())


def test_a_truncate_ends_what_is_older(tmp_path: Path) -> None:
    records = orders(20)
    gone = Record(None, envelope("t", 0x1000 + 8 * 16 + 4, None), "1", 0, 0)
    archived(tmp_path / "shop", TOPIC, numbered([*records[:17], gone, *records[17:]]))
    tables = Tables(tmp_path / "tables", PLAN, OWN)

    replay.replay(tmp_path / "shop", [tables.target()])

    assert ["n17", "n18", "n19"] == [row["note"] for row in tables.left()[0]]


def test_of_two_records_at_one_position_the_first_counts(tmp_path: Path) -> None:
    rows = [{"id": 1, "note": note, "big": "b"} for note in ("first", "second")]
    read = [Record(orjson.dumps({"id": 1}), envelope("r", 0x2001, row), "1", 0, 0) for row in rows]
    for number, record in enumerate(numbered([*orders(7), *read])):  # each in a file of its own
        archived(tmp_path / "shop", TOPIC, [record._replace(offset=number)])
    tables = Tables(tmp_path / "tables", PLAN, OWN)

    replay.replay(tmp_path / "shop", [tables.target()])

    assert "first" == next(row["note"] for row in tables.left()[0] if row["id"] == 1)


def test_rows_that_do_not_meet_an_expectation_are_left(tmp_path: Path) -> None:
    archived(tmp_path / "shop", TOPIC, orders(20))
    kinds = {OnFail.WARN: 7, OnFail.DROP: 6, OnFail.QUARANTINE: 6}
    for on_fail, rows in kinds.items():
        plan = replace(PLAN, expectations=(Expectation("known", "note <> 'n15'", on_fail),))
        tables = Tables(tmp_path / on_fail, plan, OWN)

        found = replay.replay(tmp_path / "shop", [tables.target()])

        assert (rows, 6) == (len(tables.left()[0]), tables.of_bulk())
        assert {"known": 1} == found.counts[0][plan.name].failed
        assert (on_fail is OnFail.QUARANTINE) == (tables.waits == {'{"id":1}'})
    plan = replace(PLAN, expectations=(Expectation("known", "note <> 'n15'", OnFail.FAIL),))
    with pytest.raises(ViewHaltedError):
        replay.replay(tmp_path / "shop", [Tables(tmp_path / "halted", plan, OWN).target()])
