"""A view of events filled by tasks has the rows of one that is filled record by record.

The replay without an engine is the oracle, over the same archive.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.archive import replay
from projections.archive.progress import ReplayProgress
from projections.archive.task import ReplayOptions, ReplayState
from projections.definition.event_rows import EventForm
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.views import ChangeTime
from projections.errors import BulkLostError
from projections.job.spark_tasks import SparkTasks
from projections.stores.delta.table_sink import TableSink
from tests.fix_seeds import examples
from tests.support.event_logs import PLAN, logs, placed
from tests.support.replays import (
    OWN,
    Kill,
    KilledError,
    Tables,
    alike,
    blocked,
    drawn_tasks,
    filled,
    replay_killed,
    use_small_parts,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from projections.archive.rebuilding.tasks import TaskRunner
    from projections.changes.record import Record
    from projections.planning.view_plan import ViewPlan

TIMES = (("told_at", ChangeTime.COMMIT), ("sent_at", ChangeTime.BROKER))
TIMED = replace(PLAN, times=TIMES)
CHECKED = replace(
    PLAN,
    expectations=(
        Expectation("quiet", "global_position <> 1", OnFail.WARN),
        Expectation("early", "global_position <> 2", OnFail.DROP),
        Expectation("known", "global_position <> 3", OnFail.QUARANTINE),
    ),
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)


@settings(max_examples=examples(40), deadline=None)
@given(log=logs(), data=st.data())
def test_the_same_archive_leaves_the_same_rows(
    log: dict[str, list[Record]], data: st.DataObject
) -> None:
    keys = data.draw(st.sets(st.sampled_from(['{"global_position":1}']), max_size=1))
    held = blocked(data, keys)
    ahead = data.draw(st.sampled_from([0, 0, (1 << 56) + 0x1028]))
    plan = replace(data.draw(st.sampled_from([PLAN, CHECKED])), left_to_read=ahead)
    plan = replace(plan, times=data.draw(st.sampled_from([(), TIMES])))
    whole = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        if whole:
            patch.setattr(replay, "PART_RECORDS", 1_000)
        archive = filled(Path(place) / "shop", log, data)
        one = Tables(Path(place) / "one", plan, held=held)
        other = Tables(Path(place) / "other", plan, drawn_tasks(data), held)

        alike(archive, one, other, whole=whole)


@settings(max_examples=examples(20), deadline=None)
@given(log=logs(), data=st.data())
def test_a_replay_that_is_killed_anywhere_goes_on_and_leaves_the_same(
    log: dict[str, list[Record]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        archive = filled(Path(place) / "shop", log, data)
        plan = data.draw(st.sampled_from([PLAN, TIMED]))
        one, other = (
            Tables(Path(place) / "one", plan),
            Tables(Path(place) / "other", plan, drawn_tasks(data)),
        )
        replay.replay(archive, [one.target()])

        replay_killed(archive, lambda bulk: other.target(bulk=bulk), patch, data, 8)

        waiting = one.waiting() | other.waiting()
        assert one.left(waiting)[0] == other.left(waiting)[0]


@pytest.mark.parametrize("plan", [PLAN, TIMED], ids=["plain", "timed"])
def test_tasks_write_all_events_that_stand_by_themselves(
    tasks: TaskRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: ViewPlan
) -> None:
    told = list[ReplayProgress]()
    archive = placed(tmp_path / "shop", 11)
    one, other = Tables(tmp_path / "one", plan), Tables(tmp_path / "other", plan, tasks)
    replay.replay(archive, [one.target()])
    monkeypatch.setattr(TableSink, "apply", None)  # no record is delivered by itself

    replay.replay(archive, [other.target()], ReplayOptions(progress=told.append))

    assert one.left() == other.left()
    assert 11 == other.of_bulk()
    assert told[-1].delivered == told[-1].to_deliver


def test_a_replay_that_is_killed_at_each_of_its_steps_delivers_every_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = placed(tmp_path / "shop", 30)
    one = Tables(tmp_path / "one", PLAN)
    replay.replay(archive, [one.target()])
    ended, steps, committed = False, 0, set[int]()
    while not ended:  # killed after one more step each time, until it ends before that
        steps += 1
        other = Tables(tmp_path / f"killed-{steps}", PLAN, OWN)
        noted: list[ReplayState] = []
        with monkeypatch.context() as patch:
            killed = Kill(patch, noted)
            killed.after(steps)
            try:
                replay.replay(archive, [other.target()], ReplayOptions(note=killed.note))
                ended = True
            except KilledError:
                committed.add(other.of_bulk())
        if not ended:
            state = ReplayState.from_json(noted[-1].to_json())
            replay.replay(archive, [other.target()], ReplayOptions(resume=state))
        assert one.left() == other.left()

    assert len(committed) > 3  # some kills were between two parts


def test_tasks_with_other_classes_of_the_events_write_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = placed(tmp_path / "shop", 11)
    other = Tables(tmp_path / "other", PLAN, SparkTasks(spark))
    monkeypatch.setattr(EventForm, "code", "edited")  # in this process, and not in the tasks'

    with pytest.raises(BulkLostError) as refused:
        replay.replay(archive, [other.target()])

    assert "other classes" in (refused.value.detail or "")
    assert 0 == other.of_bulk()
