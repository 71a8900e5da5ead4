"""A view of a table without a key, filled by tasks, has the rows of one filled by record.

The replay without an engine is the oracle, over the same archive.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.archive import replay
from projections.archive.progress import ReplayProgress
from projections.archive.task import ReplayOptions
from projections.changes.task_outcome import BlockedKeys
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.views import ChangeTime
from projections.stores.delta.table_sink import TableSink
from tests.fix_archive import archived
from tests.fix_log import numbered
from tests.fix_seeds import examples
from tests.support.keyless_logs import CODES, PLAN, TOPIC, logs, record
from tests.support.replays import (
    OWN,
    Tables,
    alike,
    drawn_tasks,
    fill,
    replay_killed,
    use_small_parts,
)

if TYPE_CHECKING:
    from projections.archive.rebuilding.tasks import TaskRunner
    from projections.changes.record import Record
    from projections.planning.view_plan import ViewPlan

TIMED = replace(PLAN, times=(("came_at", ChangeTime.FIRST_COMMIT), ("sent_at", ChangeTime.BROKER)))
CHECKED = replace(
    PLAN,
    expectations=(
        Expectation("quiet", "note <> 'n3'", OnFail.WARN),
        Expectation("early", "note <> 'n4'", OnFail.DROP),
        Expectation("known", "note <> 'n5' AND note <> 'n6'", OnFail.QUARANTINE),
    ),
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)


class Rows(Tables):
    """The rows of a view without a key, which remembers no deletes."""

    def left(self, but: Any = ()) -> Any:
        """Rows, but for those of some codes; settings and schema."""
        table = self._table()
        rows = [row for row in table.to_pyarrow_table().to_pylist() if row["code"] not in but]
        rows.sort(key=lambda row: row[ROW_ID_COLUMN])
        return rows, table.metadata().configuration, table.schema()

    def waiting(self) -> set[object]:
        """The codes of records with keys that wait; others wait alone."""
        texts = [b for each in self.waits if (b := _text(each)) is not None]
        return {code for code in CODES if any(str(code) in text for text in texts)}


def _text(key: str) -> str | None:
    if key.startswith(TOPIC):
        return None
    return bytes.fromhex(key[4:]).decode("latin-1") if key.startswith("hex:") else key


@settings(max_examples=examples(50), deadline=None)
@given(records=logs(), data=st.data())
def test_the_same_archive_leaves_the_same_rows(records: list[Record], data: st.DataObject) -> None:
    held = BlockedKeys(
        data.draw(st.frozensets(st.sampled_from(['{"code":1}', f"{TOPIC}/0/1"]), max_size=2))
    )
    ahead = data.draw(st.sampled_from([0, 0, (1 << 56) + 0x1028]))
    plan = replace(data.draw(st.sampled_from([PLAN, TIMED, CHECKED])), left_to_read=ahead)
    whole = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        if whole:
            patch.setattr(replay, "PART_RECORDS", 1_000)
        archive = Path(place) / "shop"
        fill(archive, TOPIC, records, data)
        one = Rows(Path(place) / "one", plan, held=held)
        other = Rows(Path(place) / "other", plan, drawn_tasks(data), held)

        alike(archive, one, other, whole=whole)


@settings(max_examples=examples(20), deadline=None)
@given(records=logs(), data=st.data())
def test_a_replay_that_is_killed_anywhere_goes_on_and_leaves_the_same(
    records: list[Record], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        archive = Path(place) / "shop"
        fill(archive, TOPIC, records, data)
        one, other = (
            Rows(Path(place) / "one", PLAN),
            Rows(Path(place) / "other", PLAN, drawn_tasks(data)),
        )
        replay.replay(archive, [one.target()])

        replay_killed(archive, lambda bulk: other.target(bulk=bulk), patch, data, 8)

        waiting = one.waiting() | other.waiting()
        assert one.left(waiting) == other.left(waiting)


@pytest.mark.parametrize("plan", [PLAN, TIMED], ids=["plain", "timed"])
def test_tasks_write_each_row_once(
    tasks: TaskRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: ViewPlan
) -> None:
    told = list[ReplayProgress]()
    rows = [
        record("c", 0x1000 + 8 * (n // 3), {"code": n % 5 or None, "note": f"n{n}"}, order=n)
        for n in range(30)
    ]
    for number, each in enumerate(numbered([*rows, *rows[:20]])):
        archived(tmp_path / "shop", TOPIC, [each._replace(offset=number)])
    one, other = Rows(tmp_path / "one", plan), Rows(tmp_path / "other", plan, tasks)
    replay.replay(tmp_path / "shop", [one.target()])
    monkeypatch.setattr(TableSink, "apply", None)  # no record is delivered by itself

    replay.replay(tmp_path / "shop", [other.target()], ReplayOptions(progress=told.append))

    assert one.left() == other.left()
    assert 30 == other.of_bulk() == len(other.left()[0])
    assert told[-1].delivered == told[-1].to_deliver


def test_a_row_that_cannot_be_read_waits_and_the_rest_is_written(tmp_path: Path) -> None:
    rows = [record("c", 0x1000 + 8 * n, {"code": n, "note": f"n{n}"}) for n in range(12)]
    value = (rows[5].value or b"").replace(b'"code":5', b'"code":"five"')
    rows[5] = rows[5]._replace(value=value)
    archived(tmp_path / "shop", TOPIC, numbered(rows))
    one, other = Rows(tmp_path / "one", PLAN), Rows(tmp_path / "other", PLAN, OWN)

    for tables in (one, other):
        replay.replay(tmp_path / "shop", [tables.target()])

    assert one.left() == other.left()
    assert one.waits == other.waits == {f"{TOPIC}/0/5"}
    assert 11 == len(other.left()[0])
