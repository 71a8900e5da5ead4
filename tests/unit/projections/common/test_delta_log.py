"""A torn Delta log is told by the file that tears it, and nothing is written to its table."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from projections.changes.row_change import RowChange
from projections.common.delta_log import torn
from projections.errors import TableTornError
from projections.stores.delta.sink import WarehouseSink
from projections.stores.identity import Marked
from tests.fix_log import PLAN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def change(number: int) -> RowChange:
    row = {"id": number, "note": "n", "big": "b"}
    return RowChange((number,), number * 8, row, number)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    sink = WarehouseSink(tmp_path)
    sink.prepare(PLAN)
    for number in range(1, 4):
        sink.apply(PLAN, [change(number)])
    return tmp_path


def _cut(commit: Path) -> None:
    commit.write_bytes(commit.read_bytes()[:100])


@pytest.mark.parametrize(
    ("place", "damage", "what"),
    [
        (-1, _cut, "cannot be read"),
        (-1, lambda commit: commit.write_bytes(b""), "cannot be read"),
        (-1, lambda commit: commit.write_bytes(b"\x00\xff\n"), "cannot be read"),
        (1, lambda commit: commit.unlink(), "is missing"),
        (0, lambda commit: commit.unlink(), "is missing"),
    ],
    ids=["cut", "empty", "garbage", "gap", "beginning"],
)
def test_a_torn_log_is_named_and_takes_nothing(
    root: Path, place: int, damage: Callable[[Path], object], what: str
) -> None:
    commit = sorted((root / PLAN.name / "_delta_log").glob("*.json"))[place]
    damage(commit)
    sink = WarehouseSink(root)

    with pytest.raises(TableTornError) as caught:
        sink.prepare(PLAN)

    assert caught.value.detail == f"{PLAN.name}/_delta_log: {commit.name} {what}"
    assert caught.value.hint
    assert f"move tables/{PLAN.name} " in caught.value.hint


def test_a_log_that_is_torn_while_it_is_written_is_told_from_a_disk_that_is_away(
    root: Path,
) -> None:
    sink = WarehouseSink(root)
    sink.prepare(PLAN)
    log = root / PLAN.name / "_delta_log"
    sorted(log.glob("*.json"))[1].write_bytes(b"{")

    with pytest.raises(TableTornError, match="damaged"):
        WarehouseSink(root).apply(PLAN, [change(9)])


def test_what_lies_behind_a_checkpoint_is_no_loss(root: Path) -> None:
    table = DeltaTable(str(root / PLAN.name))
    table.create_checkpoint()
    for commit in sorted((root / PLAN.name / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()

    assert torn(root / PLAN.name, every=True) is None


def test_a_table_that_was_taken_away_is_another_one_when_it_is_made_again(root: Path) -> None:
    sink = WarehouseSink(root)
    before = sink.mark(PLAN)
    for name in (PLAN.name, f"{PLAN.name}.deleted"):
        shutil.rmtree(root / name)
    gone = WarehouseSink(root).mark(PLAN)
    again = WarehouseSink(root)
    again.prepare(PLAN)

    assert isinstance(sink, Marked)
    assert before is not None
    assert gone is None
    assert again.mark(PLAN) not in {None, before}
