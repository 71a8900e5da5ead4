"""A view with the times at which its rows were inserted, filled by tasks.

The replay without an engine is the oracle, over the same archive.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cdc.values import UNCHANGED_PLACEHOLDER
from projections.archive import replay
from projections.archive.progress import ReplayProgress
from projections.archive.task import ReplayOptions
from projections.changes.record import Record
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.views import ChangeTime, Store
from projections.stores.delta.table_sink import TableSink
from tests.fix_archive import archived
from tests.fix_log import PLAN, TOPIC, envelope, numbered, orders, topics
from tests.fix_seeds import examples
from tests.support.replays import (
    OWN,
    LiveTables,
    Tables,
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


FIRST = replace(
    PLAN,
    to=frozenset([Store.TABLE]),
    times=(("came_at", ChangeTime.FIRST_COMMIT), ("told_at", ChangeTime.COMMIT)),
)
CHECKED = replace(
    FIRST,
    expectations=(
        Expectation("early", "note < 'n6' OR id <> 2", OnFail.DROP),
        Expectation("known", "id <> 3 OR note <> 'n4' AND note <> 'n5'", OnFail.QUARANTINE),
    ),
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)


def in_log_order(records: Sequence[Record]) -> bool:
    """Whether no record is repeated after a truncate: live delivery takes its insert for new."""
    return not any(record.value and b'"op":"t"' in record.value for record in records)


@settings(max_examples=examples(40), deadline=None)
@given(records=topics(), data=st.data())
def test_the_same_archive_leaves_the_same_times(records: list[Record], data: st.DataObject) -> None:
    assume(in_log_order(records))
    plan, records, word = keyed(data, data.draw(st.sampled_from([FIRST, CHECKED])), records)
    numbers = data.draw(st.sets(st.sampled_from([1, 2]), max_size=1))
    keys = {orjson.dumps({"id": word(number)}).decode() for number in numbers}
    held = blocked(data, keys)
    ahead = data.draw(st.sampled_from([0, 0, (1 << 56) + 0x1028]))
    plan = replace(plan, left_to_read=ahead)
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr(replay, "PART_RECORDS", 1_000)
        archive = Path(place) / "shop"
        fill(archive, TOPIC, records, data)
        one = LiveTables(Path(place) / "one", plan, held=held)
        other = LiveTables(Path(place) / "other", plan, drawn_tasks(data), held)

        alike(archive, one, other, whole=False)


@settings(max_examples=examples(20), deadline=None)
@given(records=topics(), data=st.data())
def test_a_replay_that_is_killed_anywhere_goes_on_and_leaves_the_same(
    records: list[Record], data: st.DataObject
) -> None:
    assume(in_log_order(records))
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        archive = Path(place) / "shop"
        fill(archive, TOPIC, records, data)
        one = LiveTables(Path(place) / "one", FIRST)
        other = LiveTables(Path(place) / "other", FIRST, drawn_tasks(data))
        replay.replay(archive, [one.target()])

        replay_killed(archive, lambda bulk: other.target(bulk=bulk), patch, data, 8)

        waiting = one.waiting() | other.waiting()
        assert one.left(waiting) == other.left(waiting)


def of_key(op: str, lsn: int, note: str = "n") -> Record:
    row = None if op in ("d", "t") else {"id": 1, "note": note, "big": "b"}
    key = None if op == "t" else b'{"id":1}'
    return Record(key, envelope(op, lsn, row, key=1), "1", 0, 0)


LOGS = {
    "updated": [of_key("c", 0x1000), of_key("u", 0x1010)],
    "read": [of_key("r", 0x1007)],
    "read after its insert": [of_key("c", 0x1000), of_key("r", 0x1017)],
    "deleted": [of_key("c", 0x1000), of_key("d", 0x1010)],
    "inserted again": [of_key("c", 0x1000), of_key("d", 0x1010), of_key("c", 0x1020)],
    "read after its delete": [of_key("c", 0x1000), of_key("d", 0x1010), of_key("r", 0x1027)],
    "truncated": [of_key("c", 0x1000), of_key("t", 0x1010)],
    "read after a truncate": [of_key("c", 0x1000), of_key("t", 0x1010), of_key("r", 0x1027)],
    "inserted after a truncate": [of_key("c", 0x1000), of_key("t", 0x1010), of_key("c", 0x1020)],
}


@pytest.mark.parametrize("ahead", [0, 0x1008, 0x1018], ids=hex)
@pytest.mark.parametrize("name", LOGS)
def test_the_insert_of_a_row_is_the_newest_one_since_it_was_gone(
    tmp_path: Path, name: str, ahead: int
) -> None:
    plan = replace(FIRST, left_to_read=ahead and (1 << 56) + ahead)
    archived(tmp_path / "shop", TOPIC, numbered(LOGS[name]))
    one, other = LiveTables(tmp_path / "one", plan), LiveTables(tmp_path / "other", plan, OWN)

    for tables in (one, other):
        replay.replay(tmp_path / "shop", [tables.target()])

    assert one.left() == other.left()


def test_an_insert_that_a_later_read_makes_outdated_shows_when_its_row_began(
    tmp_path: Path,
) -> None:
    """The row had another key before, and the record of that key waits in quarantine."""

    def of(op: str, lsn: int, key: int, big: str = UNCHANGED_PLACEHOLDER) -> Record:
        row = None if op == "d" else {"id": key, "note": "n", "big": big}
        return Record(
            orjson.dumps({"id": key}), envelope(op, 0x1000 + lsn, row, key=key), "1", 0, 0
        )

    moved = of("c", 0x10, 5)._replace(old_key=b'{"id":1}')
    moved_on = of("c", 0x20, 2)._replace(old_key=b'{"id":5}')
    read = [of("r", 0x2F, 1, "b1"), of("r", 0x2F, 2, "b2")]
    log = [*read, of("c", 0, 1, "b1"), of("d", 0x10, 1), moved, of("d", 0x20, 5), moved_on]
    archived(tmp_path / "shop", TOPIC, numbered(log))
    tables = LiveTables(tmp_path / "tables", FIRST, OWN)

    replay.replay(tmp_path / "shop", [tables.target()])

    began_at = {row["id"]: row["came_at"] for row in tables.left()[0]}
    assert {5} == tables.waiting()
    assert datetime(1970, 1, 1, microsecond=1000 + 0x1020, tzinfo=UTC) == began_at[2]


def test_tasks_write_all_rows_that_stand_by_themselves(
    tasks: TaskRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[ReplayProgress]()
    archived(tmp_path / "shop", TOPIC, orders(20))
    one, other = Tables(tmp_path / "one", FIRST), Tables(tmp_path / "other", FIRST, tasks)
    replay.replay(tmp_path / "shop", [one.target()])
    monkeypatch.setattr(TableSink, "apply", None)  # no record is delivered by itself

    replay.replay(tmp_path / "shop", [other.target()], ReplayOptions(progress=told.append))

    assert one.left()[0] == other.left()[0]
    assert all(row["came_at"] < row["told_at"] for row in other.left()[0])
    assert 7 == other.of_bulk()
    assert told[-1].delivered == told[-1].to_deliver
