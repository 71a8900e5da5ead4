"""Spark's daemon of Python workers, with tasks of bulk work that halt where a test wants them to.

A full disk is one that takes no byte: what such a task writes goes to `/dev/full`.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import daemon

from projections.archive.rebuilding.fold_tasks import FoldBlocks, FoldKeys
from projections.archive.rebuilding.plain_rows import PlainRowDecoder
from projections.archive.rebuilding.store_tasks import TaskDelivery
from projections.common.task_files import TaskFiles
from projections.job.comparison_tasks import HashedParts
from projections.job.spark import worker_daemon
from projections.job.stored_runs import RunFile
from tests.support.task_halts import TaskHalts

if TYPE_CHECKING:
    from collections.abc import Iterator

HALTS = "HEADWATER_TEST_HALTS"
STAGES = {
    "backlog": (RunFile, "add"),  # some records are stored, and not all
    "comparison": (HashedParts, "hashed"),  # hashes are written, and not noted yet
    "fold": (FoldBlocks, "group"),  # entries are written, and not noted yet
    "second fold": (FoldKeys, "_folded"),  # entries were read, and nothing is written yet
    "store": (TaskDelivery, "delivered"),  # some rows are in the store, and not all
}


def install(halts: TaskHalts) -> None:
    """Makes tasks halt after what they do at each stage."""
    parts = PlainRowDecoder.parts

    def halting_parts(own: PlainRowDecoder, *what: Any) -> Iterator[Any]:
        for part in parts(own, *what):
            yield part
            halts.reach("fill")  # some rows are written, and not all

    PlainRowDecoder.parts = halting_parts  # type: ignore[method-assign]
    for stage, (owner, name) in STAGES.items():
        setattr(owner, name, _halting(getattr(owner, name), halts, stage))
    drafted = TaskFiles._drafted

    @contextmanager
    def full(own: TaskFiles, path: Path) -> Iterator[Path]:
        with drafted(own, path) as draft:
            yield Path("/dev/full") if halts.full(Path.cwd()) else draft

    TaskFiles._drafted = full  # type: ignore[method-assign]


def _halting(step: Any, halts: TaskHalts, stage: str) -> Any:
    @wraps(step)
    def halting(*what: Any, **more: Any) -> Any:
        made = step(*what, **more)
        halts.reach(stage)
        return made

    return halting


if __name__ == "__main__":
    worker_daemon.load()
    install(TaskHalts(Path(os.environ[HALTS])))
    daemon.manager()
