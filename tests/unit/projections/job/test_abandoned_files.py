"""What killed jobs and commands have left in the folder of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.common.file_lock import WriterLock
from projections.common.task_fence import TaskFence
from projections.common.task_files import TaskFiles
from projections.job.abandoned_files import remove_abandoned

if TYPE_CHECKING:
    from pathlib import Path


def test_what_killed_jobs_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("dead", "written", "worked"):
        TaskFence(TaskFiles.made(tmp_path / f".{name}.filling").folder).open()
    (tmp_path / ".dead.filling" / "of an older release").touch()
    (tmp_path / "view").mkdir()
    (run,) = (tmp_path / ".worked.filling").iterdir()

    with WriterLock(tmp_path / ".written.lock", wait=False), TaskFence(run).task():
        remove_abandoned(tmp_path)
        left = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
        assert [".worked.filling", ".written.filling", "view"] == left
    remove_abandoned(tmp_path)

    assert ["view"] == [path.name for path in tmp_path.iterdir() if path.is_dir()]
