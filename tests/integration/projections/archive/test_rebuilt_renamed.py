"""A view of a table that was renamed, filled by tasks from the topics of both its names.

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
from projections.archive.rebuilding import task_ranges
from projections.archive.task import ReplayOptions
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.views import Store
from projections.planning.view_plan import HistoryPlan
from projections.stores.delta.table_sink import TableSink
from tests.fix_archive import archived
from tests.fix_log import LEAN, PLAN, TOPIC, numbered, orders, topics
from tests.fix_seeds import examples
from tests.support.replays import (
    HistoryTables,
    LiveTables,
    Tables,
    alike,
    drawn_tasks,
    filled,
    keyed,
    replay_killed,
    use_small_parts,
)

if TYPE_CHECKING:
    from projections.archive.rebuilding.tasks import TaskRunner
    from projections.changes.record import Record

FORMER = "shop.public.stuff"
RENAMED, NARROW = (replace(plan, former=(FORMER,)) for plan in (PLAN, LEAN))
CHECKED = replace(
    RENAMED,
    expectations=(
        Expectation("early", "note < 'n6' OR id <> 2", OnFail.DROP),
        Expectation("known", "id <> 3 OR note <> 'n4' AND note <> 'n5'", OnFail.QUARANTINE),
    ),
)
HISTORY = replace(
    RENAMED, to=frozenset([Store.TABLE]), history=HistoryPlan(("note",)), expectations=()
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)
    monkeypatch.setattr(task_ranges, "KEYS_PER_TASK", 12)


def parted(records: list[Record], place: int) -> dict[str, list[Record]]:
    """The records of both topics, if the table was renamed at a place."""
    return {FORMER: numbered(records[:place]), TOPIC: numbered(records[place:])}


@settings(max_examples=examples(40), deadline=None)
@given(records=topics(), data=st.data())
def test_the_same_archive_leaves_the_same_tables(
    records: list[Record], data: st.DataObject
) -> None:
    plan, records, _ = keyed(data, data.draw(st.sampled_from([RENAMED, NARROW, CHECKED])), records)
    log = parted(records, data.draw(st.integers(0, len(records))))
    with tempfile.TemporaryDirectory() as place:
        archive = filled(Path(place) / "shop", log, data)
        one = LiveTables(Path(place) / "one", plan)
        other = LiveTables(Path(place) / "other", plan, drawn_tasks(data))

        expected, found = (replay.replay(archive, [each.target()]) for each in (one, other))

        waiting = one.waiting() | other.waiting()
        assert one.left(waiting) == other.left(waiting)
        assert (expected.ends, expected.records) == (found.ends, found.records)


@settings(max_examples=examples(20), deadline=None)
@given(records=topics(), data=st.data())
def test_the_same_archive_leaves_the_same_history(
    records: list[Record], data: st.DataObject
) -> None:
    log = parted(records, data.draw(st.integers(0, len(records))))
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        whole = data.draw(st.booleans())
        if whole:
            patch.setattr(replay, "PART_RECORDS", 1_000)
        archive = filled(Path(place) / "shop", log, data)
        one = HistoryTables(Path(place) / "one", HISTORY)
        other = HistoryTables(Path(place) / "other", HISTORY, drawn_tasks(data))

        alike(archive, one, other, whole=False)


@settings(max_examples=examples(20), deadline=None)
@given(records=topics(), data=st.data())
def test_a_replay_that_is_killed_anywhere_goes_on_and_leaves_the_same(
    records: list[Record], data: st.DataObject
) -> None:
    log = parted(records, data.draw(st.integers(0, len(records))))
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        archive = filled(Path(place) / "shop", log, data)
        one = LiveTables(Path(place) / "one", RENAMED)
        other = LiveTables(Path(place) / "other", RENAMED, drawn_tasks(data))
        replay.replay(archive, [one.target()])

        replay_killed(archive, lambda bulk: other.target(bulk=bulk), patch, data, 8)

        waiting = one.waiting() | other.waiting()
        assert one.left(waiting) == other.left(waiting)


@pytest.mark.parametrize("place", [0, 5, 13, 20])
def test_tasks_write_a_row_from_the_topic_that_has_its_newest_record(
    tasks: TaskRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    told = list[ReplayProgress]()
    for topic, records in parted(orders(20), place).items():
        archived(tmp_path / "shop", topic, records)
    tables = Tables(tmp_path / "tables", RENAMED, tasks)
    monkeypatch.setattr(TableSink, "apply", None)  # no record is delivered by itself

    replay.replay(tmp_path / "shop", [tables.target()], ReplayOptions(progress=told.append))

    assert [f"n{n}" for n in (14, 15, 16, 17, 18, 19, 13)] == [r["note"] for r in tables.left()[0]]
    assert 7 == tables.of_bulk()
    assert told[-1].delivered == told[-1].to_deliver
