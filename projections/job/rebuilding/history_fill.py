"""HistoryFill: a history filled by tasks, in commits of some keys each.

The records of the topic are divided once. Then the tasks of each part make the changes and states
of its keys, and the part is committed: first the changes, then the states, as live delivery writes
them. Which keys a part has depends on the archive alone, so a fill that begins again after a kill
makes the same parts, and leaves out the commits that are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.bulk import Filled
from projections.common.task_fence import TaskFence
from projections.job.rebuilding.divide_tasks import DIVIDED_DDL, DivideRecords
from projections.job.rebuilding.history_tasks import HISTORIES_DDL, FillHistories
from projections.job.rebuilding.task_files import TaskFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from projections.archive.bulk import BulkHistory
    from projections.archive.scan import ArchiveScan
    from projections.planning.view_plan import ViewPlan

BUCKET_ROWS: Final = 100_000
"""Records of the keys that one task makes states of, about."""

BUCKETS_MAX: Final = 512
"""Parts into which keys are divided at most: each first task writes a batch for each."""

PART_ROWS: Final = 1_000_000
"""Records of the keys that one commit has, about. After a crash between its changes and its
states, a replay without tasks holds the keys of one commit at a time."""


@dataclass(frozen=True, slots=True)
class HistoryTasks:
    """Tasks to run, one for each piece.

    Attributes:
        run: Does pieces by number, in a task.
        says: The columns of what it returns.
        pieces: How many there are.
        files: Where their results are noted.
        records: How many records count as done with them.
    """

    run: Callable[..., Any]
    says: str
    pieces: int
    files: TaskFiles
    records: int


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """The rows of one commit.

    Attributes:
        number: Its number, from 1.
        changes: Files of changes.
        states: Files of states.
        version: Greatest log position of its changes.
        at_us: Greatest time at which one of them was recorded, microseconds since 1970, UTC.
    """

    number: int
    changes: Sequence[Path]
    states: Sequence[Path]
    version: int
    at_us: int


class HistoryFill:
    """One fill of a history.

    Args:
        scan: The archive.
        plan: The history.
        work: Its records.
        groups: Numbers of the first block of each first task, and of the one after its last.
        folder: A folder that the executors share.
    """

    def __init__(
        self,
        scan: ArchiveScan,
        plan: ViewPlan,
        work: BulkHistory,
        groups: tuple[tuple[int, int], ...],
        folder: Path,
    ) -> None:
        self._scan = scan
        self._plan = plan
        self._work = work
        self._groups = groups
        self._folder = folder
        self._buckets = min(BUCKETS_MAX, max(1, -(-scan.rows // BUCKET_ROWS)))
        self._per_part = max(1, self._buckets * PART_ROWS // max(1, scan.rows))

    def run(
        self,
        results: Callable[[HistoryTasks], pa.Table],
        commit: Callable[[HistoryPart], None],
    ) -> Filled:
        """Fills the tables.

        Args:
            results: Runs tasks to their end, and returns what they say.
            commit: Writes a part unless it was written before.
        """
        work, files = self._work, self._files()
        divide = DivideRecords(
            self._scan,
            self._plan,
            work.topic,
            work.taken,
            self._groups,
            self._buckets,
            files,
            work.share,
        )
        half = work.records // 2
        said = results(HistoryTasks(divide.run, DIVIDED_DDL, len(self._groups), files, half))
        names = tuple(said["file"].to_pylist())
        left, upserted, deleted = [_numbers(said)], 0, 0
        for first in range(0, self._buckets, self._per_part):
            end = min(first + self._per_part, self._buckets)
            rest = work.records - half
            records = rest * end // self._buckets - rest * first // self._buckets
            made = self._part(results, commit, files, names, first, end, records)
            left.append(_numbers(made))
            upserted += pc.sum(made["upserted"]).as_py() or 0
            deleted += pc.sum(made["deleted"]).as_py() or 0
        filtered = pc.sum(said["filtered"]).as_py() or 0
        return Filled(upserted, deleted, np.sort(np.concatenate(left)), filtered)

    def _part(  # noqa: PLR0913, PLR0917  # the parts of one commit
        self,
        results: Callable[[HistoryTasks], pa.Table],
        commit: Callable[[HistoryPart], None],
        divided: TaskFiles,
        names: tuple[str, ...],
        first: int,
        end: int,
        records: int,
    ) -> pa.Table:
        """Makes and commits the keys of some buckets; returns what the tasks say."""
        work, files, number = self._work, self._files(), first // self._per_part + 1
        fill = FillHistories(
            self._plan,
            work.topic,
            divided,
            names,
            self._buckets,
            first,
            number,
            files,
            work.held,
            work.share,
        )
        try:
            said = results(HistoryTasks(fill.run, HISTORIES_DDL, end - first, files, records))
            own = said.filter(pc.greater(pc.add(said["upserted"], said["deleted"]), 0))
            changes, states = (
                [files.folder / name for name in own[column].to_pylist()]
                for column in ("changes_file", "states_file")
            )
            version, at_us = (pc.max(own[name]).as_py() or 0 for name in ("version", "at_us"))
            commit(HistoryPart(number, changes, states, version, at_us))
        finally:
            files.remove()
        return said

    def _files(self) -> TaskFiles:
        files = TaskFiles.made(self._folder)
        TaskFence(files.folder).open()
        return files


def _numbers(said: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(pc.list_flatten(said["left"]).to_numpy(), np.int64)
