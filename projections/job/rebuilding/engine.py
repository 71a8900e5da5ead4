"""SparkEngine: folds topics and fills tables with Spark's tasks, for replays of the archive."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.util import inheritable_thread_target

from projections.archive.bulk import FoldedRows
from projections.common.file_lock import WriterLock
from projections.errors import ReplayStoppedError, SinkUnavailableError
from projections.job.rebuilding import fold_tasks
from projections.job.rebuilding.fill_tasks import FillRows
from projections.job.rebuilding.fold_tasks import ENTRY_DDL, FoldBlocks, FoldKeys
from projections.stores.delta.table_sink import LOADED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from projections.archive.bulk import Done, Part
    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter
    from projections.planning.view_plan import ViewPlan

    Integers = NDArray[np.int64]

ROWS_MIN: Final = 200_000
"""Rows of an archive below which Spark's start of tasks takes longer than they save."""

POOL: Final = "rebuild"
TASK_ROWS: Final = 100_000
"""Rows of the archive that one task folds, and records that one task decodes, at least."""

KEYS_PER_TASK: Final = 500_000
_POLL_S: Final = 0.2
_FLOOR: Final = "headwater.floor"
_T = TypeVar("_T")


class SparkEngine:
    """Folds topics and fills tables in a session; see `BulkEngine`.

    Args:
        session: The session.
        root: Folder of the tables.
        share: Of their time, how much the tasks of a fold take at most.
        rows_min: See `BulkEngine`.
    """

    def __init__(
        self,
        session: SparkSession,
        root: Path,
        *,
        share: float = 1.0,
        rows_min: int = ROWS_MIN,
    ) -> None:
        self._session = session
        self._root = root
        self._share = share
        self.rows_min = rows_min

    def ready(self, plan: ViewPlan) -> bool:
        """Tells whether the tables of a view are as they were made; see `BulkEngine`."""
        for name in (plan.name, f"{plan.name}.deleted"):
            path = str(self._root / name)
            if not DeltaTable.is_deltatable(path):
                continue
            table = DeltaTable(path)
            if table.file_uris() or {LOADED, _FLOOR} & table.metadata().configuration.keys():
                return False
        return True

    def fold(
        self, scan: ArchiveScan, topic: str, left_to_read: int, taken: RecordFilter, done: Done
    ) -> FoldedRows:
        """Finds the newest record of each key; see `BulkEngine`."""
        groups = _grouped(scan)
        task = FoldBlocks(scan, topic, left_to_read, taken, groups, self._share)
        parts = max(1, -(-scan.rows // KEYS_PER_TASK))

        def folded(named: frozenset[str] | None = None) -> pa.Table:
            entries = self._numbers(len(groups)).mapInArrow(task.run, ENTRY_DDL)
            keyed = entries.repartition(parts, "key")
            return keyed.mapInArrow(FoldKeys(named).run, ENTRY_DDL).toArrow()

        def look_up(keys: Collection[str]) -> Integers:
            found = self._watched(partial(folded, frozenset(keys)), done, 0)
            return np.asarray(found["row"].to_numpy(), np.int64)

        return _folded_rows(self._watched(folded, done, scan.rows), look_up)

    def fill(self, scan: ArchiveScan, plan: ViewPlan, part: Part, done: Done) -> Integers:
        """Writes newest records; deletes first, as every writer does; see `BulkEngine`."""
        left: list[Integers] = []
        try:
            with WriterLock(self._root / f".{plan.name}.lock", wait=True):
                for deletes in (True, False):
                    rows = part.rows[part.deletes == deletes]
                    if len(rows):
                        left.append(self._filled(scan, plan, part, rows, done, deletes=deletes))
        except (PySparkException, Py4JError, DeltaError, OSError) as error:
            # the library's own text can show values
            raise SinkUnavailableError(
                f"view {plan.name}: its table cannot be filled", detail=type(error).__name__
            ) from None
        return np.sort(np.concatenate([*left, part.rows[:0]]))

    def _filled(
        self,
        scan: ArchiveScan,
        plan: ViewPlan,
        part: Part,
        rows: Integers,
        done: Done,
        *,
        deletes: bool,
    ) -> Integers:
        """Commits records of one kind; returns the numbers of those that no task could write."""
        cuts = _cut(scan, rows)
        task = FillRows(scan, plan, part.topic, rows, cuts, deletes, part.held, part.share)
        path = str(self._root / (f"{plan.name}.deleted" if deletes else plan.name))
        written = None
        if (DeltaTable(path).transaction_version(part.mark) or 0) < part.number:
            written = self._watched(partial(self._append, path, task, part), done, len(rows))
        if written == len(rows):
            return rows[:0]
        tasks = replace(task, share=part.share)
        numbers = self._numbers(len(cuts) - 1).mapInArrow(tasks.left, "row bigint")
        found = self._watched(numbers.toArrow, done, 0)
        return np.sort(np.asarray(found["row"].to_numpy(), np.int64))

    def _append(self, path: str, task: FillRows, part: Part) -> int:
        """Appends what tasks give in one commit; returns how many rows that are."""
        schema = self._session.read.format("delta").load(path).schema
        count = Observation()
        rows = self._numbers(len(task.cuts) - 1).mapInArrow(task.run, schema)
        (
            rows.observe(count, F.count(F.lit(1)).alias("rows"))
            .write.format("delta")
            .mode("append")
            .option("txnAppId", part.mark)
            .option("txnVersion", part.number)
            .save(path)
        )
        return int(count.get["rows"])

    def _numbers(self, tasks: int) -> DataFrame:
        return self._session.range(0, tasks, 1, tasks)

    def _watched(self, work: Callable[[], _T], done: Done, rows: int) -> _T:
        """Does work in Spark, and tells how far it is; what `done` raises cancels it.

        Args:
            work: The work.
            done: Told how many more of the rows are done.
            rows: How many the work has.
        """
        context: Any = self._session.sparkContext
        group, told = f"rebuild {uuid4()}", 0

        def run() -> _T:
            context.setLocalProperty("spark.scheduler.pool", POOL)
            context.setJobGroup(group, "rebuild", interruptOnCancel=True)
            return work()

        with ThreadPoolExecutor(1, "rebuild") as pool:
            under_way = pool.submit(inheritable_thread_target(self._session)(run))
            while True:
                try:
                    found = under_way.result(_POLL_S)
                except NotYetError:
                    now = int(rows * _done(context, group))
                    try:
                        done(max(0, now - told))
                    except ReplayStoppedError:
                        _cancel(context, group, under_way)
                        raise
                    told = max(told, now)
                else:
                    done(rows - told)
                    return found


def _cancel(context: Any, group: str, under_way: Any) -> None:
    """Cancels a group of jobs until its thread has ended: a job may begin between two calls."""
    ended = threading.Event()
    under_way.add_done_callback(lambda _: ended.set())
    while not ended.is_set():
        with suppress(Py4JError):
            context.cancelJobGroup(group)
        ended.wait(_POLL_S)


def _done(context: Any, group: str) -> float:
    """About which part of the tasks of a group have ended."""
    tracker = context.statusTracker()
    tasks = ended = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in () if info is None else info.stageIds:
            found = tracker.getStageInfo(stage)
            if found is not None:
                tasks += found.numTasks
                ended += found.numCompletedTasks
    return ended / tasks if tasks else 0.0


def _grouped(scan: ArchiveScan) -> tuple[tuple[int, int], ...]:
    """Blocks that a task folds: neighbours, of so many rows that they are worth one."""
    groups, first, rows = [], 0, 0
    for number, block in enumerate(scan.blocks):
        rows += block.rows
        if rows >= TASK_ROWS:
            groups.append((first, number + 1))
            first, rows = number + 1, 0
    if first < len(scan.blocks):
        groups.append((first, len(scan.blocks)))
    return tuple(groups)


def _cut(scan: ArchiveScan, rows: Integers) -> tuple[int, ...]:
    """Where tasks begin: at blocks, each of which is read by one task only."""
    cuts, looked_at = [0], 0
    for block in scan.blocks:
        looked_at += block.rows
        end = int(np.searchsorted(rows, block.first + block.rows))
        if looked_at >= TASK_ROWS and end > cuts[-1]:
            cuts.append(end)
            looked_at = 0
    if cuts[-1] < len(rows):
        cuts.append(len(rows))
    return tuple(cuts)


def _folded_rows(entries: pa.Table, look_up: Callable[[Collection[str]], Integers]) -> FoldedRows:
    by_kind = {
        kind: entries.filter(pc.equal(entries["kind"], kind))
        for kind in (
            fold_tasks.CHANGE,
            fold_tasks.UNREAD,
            fold_tasks.LOOSE,
            fold_tasks.TRUNCATE,
        )
    }
    changes = by_kind[fold_tasks.CHANGE].sort_by("row")
    kept = changes.filter(changes["kept"])
    truncates = by_kind[fold_tasks.TRUNCATE].to_pylist()
    # of equal ones the first, as in a survey
    newest = max(truncates, key=lambda each: (each["version"], -each["row"]), default=None)
    return FoldedRows(
        np.asarray(changes["row"].to_numpy(), np.int64),
        np.asarray(changes["version"].to_numpy(), np.int64),
        np.asarray(changes["deletes"].to_numpy(), np.bool_),
        dict(zip(kept["key"].to_pylist(), kept["version"].to_pylist(), strict=True)),
        set(by_kind[fold_tasks.UNREAD]["key"].to_pylist()),
        by_kind[fold_tasks.LOOSE]["row"].to_pylist(),
        0 if newest is None else newest["version"],
        -1 if newest is None else newest["row"],
        look_up,
    )
