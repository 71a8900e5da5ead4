"""KeyedFill: a view filled by tasks from all its records, in commits of some keys each.

The records of the topics are divided once. The tasks of each part then compute the rows of its
keys, and the part is committed; for a history first the changes, then the states, as in live
delivery. Tasks that write to search or the cache commit nothing: each of their writes is guarded by
versions. The keys of a part depend on the archive alone. A fill that begins again after a kill
therefore has the same parts, and skips the commits that exist.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.bulk import Filled
from projections.archive.rebuilding.divide_tasks import DivideRecords
from projections.archive.rebuilding.divided_records import DividedRecords
from projections.archive.rebuilding.history_tasks import FillHistories
from projections.archive.rebuilding.keyless_records import DivideKeyless
from projections.archive.rebuilding.newest_tasks import DeliverNewest, FillNewest
from projections.common.task_fence import TaskFence
from projections.common.task_files import TaskFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from projections.archive.bulk import BulkTopics
    from projections.archive.rebuilding.tasks import RebuildTask
    from projections.archive.scan import ArchiveScan
    from projections.common.throttle import Pace
    from projections.planning.job_config import StoreAddresses
    from projections.planning.view_plan import ViewPlan

BUCKET_ROWS: Final = 100_000
"""Records of the keys that one task makes rows of, about."""

BUCKETS_MAX: Final = 512
"""Parts into which keys are divided at most: each first task writes a batch for each."""

PART_ROWS: Final = 1_000_000
"""Records of the keys that one commit has, about. After a crash between the changes of a history
and its states, a replay without tasks holds the keys of one commit at a time."""

_COUNTED: Final = ("upserted", "deleted", "filtered")


@dataclass(frozen=True, slots=True)
class KeyedTasks:
    """Tasks to run, one for each piece.

    Attributes:
        task: The task; it processes pieces by number.
        pieces: Number of pieces.
        files: Where their results are stored.
        records: Number of records that count as finished with them.
    """

    task: RebuildTask
    pieces: int
    files: TaskFiles
    records: int


@dataclass(frozen=True, slots=True)
class KeyedPart:
    """The rows of one commit.

    Attributes:
        number: Its number, from 1.
        files: Files of rows, by the name of the column in which tasks name them.
        version: For a history, the greatest version of its changes.
        at_us: For a history, the greatest record time of its changes, microseconds since 1970, UTC.
    """

    number: int
    files: Mapping[str, Sequence[Path]]
    version: int = 0
    at_us: int = 0


class KeyedFill:
    """One fill of a view.

    Args:
        scan: The archive.
        plan: The view.
        work: Its records.
        groups: Numbers of the first block of each first task, and of the one after its last.
        folder: A folder that all tasks see.
        pace: How fast tasks work.
        addresses: Address of the store to which tasks deliver; None if they write files of rows.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # the parts of a fill
        self,
        scan: ArchiveScan,
        plan: ViewPlan,
        work: BulkTopics,
        groups: tuple[tuple[int, int], ...],
        folder: Path,
        pace: Pace,
        addresses: StoreAddresses | None = None,
    ) -> None:
        self._scan = scan
        self._plan = plan
        self._work = work
        self._groups = groups
        self._folder = folder
        self._pace = pace
        self._addresses = addresses
        self._buckets = min(BUCKETS_MAX, max(1, -(-scan.rows // BUCKET_ROWS)))
        self._per_part = max(1, self._buckets * PART_ROWS // max(1, scan.rows))

    def run(
        self,
        results: Callable[[KeyedTasks], pa.Table],
        commit: Callable[[KeyedPart], None],
    ) -> Filled:
        """Fills the tables.

        Args:
            results: Runs tasks to their end, and returns their results.
            commit: Writes a part unless it was written before.
        """
        work, files = self._work, self._files()
        kind = DivideKeyless if self._plan.append_only else DivideRecords
        divide = kind(
            scan=self._scan,
            taken=work.taken,
            groups=self._groups,
            buckets=self._buckets,
            files=files,
            pace=self._pace,
            plan=self._plan,
            topics=work.topics,
        )
        half = work.records // 2
        divisions = results(KeyedTasks(divide, len(self._groups), files, half))
        truncated = pc.max(divisions["truncated"]).as_py() or 0
        names = tuple(divisions["file"].to_pylist())
        divided = DividedRecords(files, names, self._buckets, truncated)
        unwritten, counts = [_numbers(divisions)], _counts(divisions)
        for first in range(0, self._buckets, self._per_part):
            end = min(first + self._per_part, self._buckets)
            rest = work.records - half
            records = rest * end // self._buckets - rest * first // self._buckets
            made = self._part(results, commit, divided, range(first, end), records)
            unwritten.append(_numbers(made))
            counts += _counts(made)
        upserted, deleted, filtered = (counts[name] for name in _COUNTED)
        return Filled(upserted, deleted, np.sort(np.concatenate(unwritten)), filtered)

    def _part(
        self,
        results: Callable[[KeyedTasks], pa.Table],
        commit: Callable[[KeyedPart], None],
        divided: DividedRecords,
        buckets: range,
        records: int,
    ) -> pa.Table:
        """Computes and commits the keys of some buckets; returns the results of the tasks."""
        files, number = self._files(), buckets.start // self._per_part + 1
        try:
            task = self._task(divided, buckets.start, number, files)
            table = results(KeyedTasks(task, len(buckets), files, records))
            commit(KeyedPart(number, _files(table, files.folder), **_marks(table)))
        finally:
            if self._addresses is None:
                files.remove()  # otherwise its fence shows when no task writes any more
        return table

    def _task(
        self, divided: DividedRecords, first: int, number: int, files: TaskFiles
    ) -> RebuildTask:
        """Returns the task of a part."""
        work = self._work
        common: dict[str, Any] = {
            "plan": self._plan,
            "topics": work.topics,
            "divided": divided,
            "first": first,
            "files": files,
            "held": work.held,
            "pace": self._pace,
        }
        if self._plan.history is not None:
            return FillHistories(**common, commit=number)
        if self._addresses is None:
            return FillNewest(**common, code=work.digest)
        return DeliverNewest(**common, code=work.digest, addresses=self._addresses)

    def _files(self) -> TaskFiles:
        files = TaskFiles.made(self._folder)
        TaskFence(files.folder).open()
        return files


def _files(results: pa.Table, folder: Path) -> dict[str, list[Path]]:
    """Returns the files of rows that tasks name, without empty ones."""
    both = pc.add(results["upserted"], results["deleted"])
    counts = {"rows_file": results["upserted"], "deletes_file": results["deleted"]}
    return {
        name: [
            folder / file
            for file in results.filter(pc.greater(counts.get(name, both), 0))[name].to_pylist()
        ]
        for name in results.column_names
        if name.endswith("_file")
    }


def _counts(results: pa.Table) -> Counter[str]:
    names = [name for name in _COUNTED if name in results.column_names]
    return Counter({name: pc.sum(results[name]).as_py() or 0 for name in names})


def _marks(results: pa.Table) -> dict[str, int]:
    """Returns the greatest version and record time of a history's changes."""
    names = [name for name in ("version", "at_us") if name in results.column_names]
    return {name: pc.max(results[name]).as_py() or 0 for name in names}


def _numbers(results: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(pc.list_flatten(results["left"]).to_numpy(), np.int64)
