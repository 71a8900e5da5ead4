"""KeyedFill: a history or a view of events filled by tasks, in commits of some keys each.

The records of the topics are divided once. Then the tasks of each part make the rows of its keys,
and the part is committed; of a history first the changes, then the states, as live delivery writes
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
from projections.job.rebuilding.divided_records import DividedRecords
from projections.job.rebuilding.event_tasks import EVENTS_DDL, FillEvents
from projections.job.rebuilding.history_tasks import HISTORIES_DDL, FillHistories
from projections.job.rebuilding.task_files import TaskFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from projections.archive.bulk import BulkTopics
    from projections.archive.scan import ArchiveScan
    from projections.planning.view_plan import ViewPlan

BUCKET_ROWS: Final = 100_000
"""Records of the keys that one task makes rows of, about."""

BUCKETS_MAX: Final = 512
"""Parts into which keys are divided at most: each first task writes a batch for each."""

PART_ROWS: Final = 1_000_000
"""Records of the keys that one commit has, about. After a crash between the changes of a history
and its states, a replay without tasks holds the keys of one commit at a time."""


@dataclass(frozen=True, slots=True)
class KeyedTasks:
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
class KeyedPart:
    """The rows of one commit.

    Attributes:
        number: Its number, from 1.
        files: Files of rows, by the name of the column in which tasks name them.
        version: Of a history, the greatest log position of its changes.
        at_us: Of a history, the greatest time at which one of them was recorded, microseconds since
            1970, UTC.
    """

    number: int
    files: Mapping[str, Sequence[Path]]
    version: int = 0
    at_us: int = 0


class KeyedFill:
    """One fill of a view.

    Args:
        scan: The archive.
        plan: The view: a history, or one of events.
        work: Its records.
        groups: Numbers of the first block of each first task, and of the one after its last.
        folder: A folder that the executors share.
    """

    def __init__(
        self,
        scan: ArchiveScan,
        plan: ViewPlan,
        work: BulkTopics,
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
        results: Callable[[KeyedTasks], pa.Table],
        commit: Callable[[KeyedPart], None],
    ) -> Filled:
        """Fills the tables.

        Args:
            results: Runs tasks to their end, and returns what they say.
            commit: Writes a part unless it was written before.
        """
        work, files = self._work, self._files()
        divide = DivideRecords(
            scan=self._scan,
            taken=work.taken,
            groups=self._groups,
            buckets=self._buckets,
            files=files,
            share=work.share,
            plan=self._plan,
            topics=work.topics,
        )
        half = work.records // 2
        said = results(KeyedTasks(divide.run, DIVIDED_DDL, len(self._groups), files, half))
        divided = DividedRecords(files, tuple(said["file"].to_pylist()), self._buckets)
        left, upserted, deleted = [_numbers(said)], 0, 0
        for first in range(0, self._buckets, self._per_part):
            end = min(first + self._per_part, self._buckets)
            rest = work.records - half
            records = rest * end // self._buckets - rest * first // self._buckets
            made = self._part(results, commit, divided, range(first, end), records)
            left.append(_numbers(made))
            upserted += pc.sum(made["upserted"]).as_py() or 0
            deleted += pc.sum(made["deleted"]).as_py() or 0
        filtered = pc.sum(said["filtered"]).as_py() or 0
        return Filled(upserted, deleted, np.sort(np.concatenate(left)), filtered)

    def _part(
        self,
        results: Callable[[KeyedTasks], pa.Table],
        commit: Callable[[KeyedPart], None],
        divided: DividedRecords,
        buckets: range,
        records: int,
    ) -> pa.Table:
        """Makes and commits the keys of some buckets; returns what the tasks say."""
        files, number = self._files(), buckets.start // self._per_part + 1
        try:
            run, says = self._tasks(divided, buckets.start, number, files)
            said = results(KeyedTasks(run, says, len(buckets), files, records))
            own = said.filter(pc.greater(pc.add(said["upserted"], said["deleted"]), 0))
            made = {
                name: [files.folder / file for file in own[name].to_pylist()]
                for name in own.column_names
                if name.endswith("_file")
            }
            marks = [name for name in ("version", "at_us") if name in own.column_names]
            commit(KeyedPart(number, made, **{n: pc.max(own[n]).as_py() or 0 for n in marks}))
        finally:
            files.remove()
        return said

    def _tasks(
        self, divided: DividedRecords, first: int, number: int, files: TaskFiles
    ) -> tuple[Callable[..., Any], str]:
        """The tasks of a part, and the columns of what they return."""
        plan, work = self._plan, self._work
        given = files, work.held, work.share
        if plan.events is not None:
            of_events = FillEvents(plan, work.topics, divided, first, work.digest, *given)
            return of_events.run, EVENTS_DDL
        (topic,) = work.topics
        return FillHistories(plan, topic, divided, first, number, *given).run, HISTORIES_DDL

    def _files(self) -> TaskFiles:
        files = TaskFiles.made(self._folder)
        TaskFence(files.folder).open()
        return files


def _numbers(said: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(pc.list_flatten(said["left"]).to_numpy(), np.int64)
