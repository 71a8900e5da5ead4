"""Removes what killed jobs and commands left in the folder of the tables."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from projections.archive.bulk import FILLING
from projections.common.file_lock import WriterLock
from projections.common.task_fence import TaskFence
from projections.errors import WriterLockedError
from projections.job.bulk_load import LOADING
from projections.job.load_state import LoadState

if TYPE_CHECKING:
    from pathlib import Path


def remove_abandoned(root: Path) -> None:
    """Removes what was left by jobs and commands that were killed amid a rebuild or load.

    Jobs of other sources may share the folder: what one of them is at has its writer's lock, or a
    task that still holds its fence. A load that can be continued stays.
    """
    for suffix in (FILLING, LOADING):
        for folder in root.glob(f".*{suffix}"):
            lock = root / f"{folder.name.removesuffix(suffix)}.lock"
            with suppress(WriterLockedError, OSError), WriterLock(lock, wait=False):
                if not any(map(LoadState.of, folder.iterdir())):
                    TaskFence.close_all(folder)
