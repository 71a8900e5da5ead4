"""SparkEngine: folds topics and fills tables with Spark's tasks, for replays of the archive."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from projections.archive.bulk import BulkFold, Filled
from projections.archive.fold_entries import read_folded, read_row_numbers
from projections.common.fault import Fault
from projections.common.file_lock import WriterLock
from projections.common.task_fence import TaskFence
from projections.definition.views import Store
from projections.errors import (
    ArchiveMissingError,
    FolderNotSharedError,
    RebuildSpaceError,
    SinkUnavailableError,
    WriterLockedError,
)
from projections.job.bulk_load import LOADING
from projections.job.load_state import LoadState
from projections.job.rebuilding.fill_tasks import FILLED_DDL, FillRows
from projections.job.rebuilding.fold_tasks import FOLDED_DDL, FoldBlocks, FoldKeys
from projections.job.rebuilding.keyed_fill import KeyedFill
from projections.job.rebuilding.row_numbers import RowNumbers
from projections.job.rebuilding.store_tasks import DELIVERED_DDL, FillStore
from projections.job.spark.task_files import TaskFiles, disk_full, space_error
from projections.job.spark.task_runs import POLL_S, TASKS_END_S, TaskRuns, tasks_at_once
from projections.stores.delta.history.tables import AT_MARK, COMMIT_MARK, VERSION_MARK, progress_of
from projections.stores.delta.table_format import COMPACTED_BYTES, HOOKS, schema_of, writing
from projections.stores.delta.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from projections.archive.bulk import BulkPart, BulkTopics, OnProgress
    from projections.archive.fold import FoldedRows
    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter
    from projections.job.rebuilding.keyed_fill import KeyedPart, KeyedTasks
    from projections.planning.job_config import StoreAddresses
    from projections.planning.view_plan import ViewPlan

    Integers = NDArray[np.int64]

ROWS_MIN: Final = 3_000_000
"""Rows of an archive below which Spark's tasks take longer to begin than they save. Once it has run
in a session, a rebuild of a million changes takes 0.77 of a replay's processor time; the first one
takes five seconds more, until code is compiled and workers have been started. Histories gain from
fewer changes on, but they have the same setting."""

POOL: Final = "rebuild"
TASK_ROWS: Final = 100_000
"""Rows of the archive that one task folds, and records that one task decodes, at least."""

KEYS_PER_TASK: Final = 500_000
FILLING: Final = ".filling"
_FOLDING: Final = ".folding"
_FAULTS: Final = {
    kind.code: kind for kind in (RebuildSpaceError, FolderNotSharedError, ArchiveMissingError)
}

_T = TypeVar("_T")


class SparkEngine:
    """Folds topics and fills tables in a session; see `BulkEngine`.

    Args:
        session: The session.
        root: Folder of the tables.
        share: Greatest share of their time that the tasks of a fold take.
        rows_min: See `BulkEngine`.
        addresses: Where the other stores are; None if there are none.
    """

    def __init__(
        self,
        session: SparkSession,
        root: Path,
        *,
        share: float = 1.0,
        rows_min: int = ROWS_MIN,
        addresses: StoreAddresses | None = None,
    ) -> None:
        self._session = session
        self._runs = TaskRuns(session, "rebuild", POOL)
        self._root = root
        self._share = share
        self._addresses = addresses
        self.rows_min = rows_min

    def ready(self, plan: ViewPlan) -> bool:
        """Returns whether the tables of a view exist and are still empty; see `BulkEngine`."""
        return Store.TABLE not in plan.to or untouched(self._root, plan)

    def fold(
        self,
        scan: ArchiveScan,
        topic: str,
        left_to_read: int,
        taken: RecordFilter,
        on_progress: OnProgress,
    ) -> FoldedRows:
        """Finds the newest record of each key; see `BulkEngine`."""
        work = BulkFold(scan, topic, left_to_read, taken, self._share)
        with self._folding() as folder:
            return read_folded(self.entries(work, folder, on_progress))

    def look_up(  # noqa: PLR0913, PLR0917  # as its port has it
        self,
        scan: ArchiveScan,
        topic: str,
        left_to_read: int,
        taken: RecordFilter,
        keys: Collection[str],
        on_progress: OnProgress,
    ) -> Integers:
        """Returns the numbers of the newest records of some keys; see `BulkEngine`."""
        work = BulkFold(scan, topic, left_to_read, taken, self._share, frozenset(keys))
        with self._folding() as folder:
            return read_row_numbers(self.entries(work, folder, on_progress))

    def entries(self, work: BulkFold, folder: Path, on_progress: OnProgress) -> list[Path]:
        """Folds a topic to files of entries; see `BulkEngine.fold`.

        Args:
            work: The topic, and the filter of its records.
            folder: A folder that the executors share; the files are in a new folder in it.
            on_progress: Receives the number of further rows read, except for a look-up of keys.

        Raises:
            RebuildSpaceError: A disk is full.
            SinkUnavailableError: Spark fails.
        """
        scan, groups = work.scan, grouped(work.scan)
        parts = max(1, -(-scan.rows // KEYS_PER_TASK))
        with named_errors("its topic cannot be folded", folder):
            folded, files = TaskFiles.made(folder), TaskFiles.made(folder)
            blocks = FoldBlocks(
                scan=scan,
                taken=work.taken,
                groups=groups,
                buckets=parts,
                files=folded,
                share=work.share,
                topic=work.topic,
                left_to_read=work.left_to_read,
            )

            def run() -> list[str]:
                numbers = self._numbers(len(groups), work.share)
                made = _names(numbers.mapInArrow(blocks.run, FOLDED_DDL))
                keys = FoldKeys(files, folded, tuple(made), work.named)
                return _names(self._numbers(parts, work.share).mapInArrow(keys.run, FOLDED_DDL))

            rows = scan.rows if work.named is None else 0
            try:
                names = self._watched(run, lambda: folded.done(len(groups)), on_progress, rows)
            except BaseException:
                files.remove()
                raise
            finally:
                folded.remove()
        return [files.folder / name for name in names]

    def fill(
        self, scan: ArchiveScan, plan: ViewPlan, part: BulkPart, on_progress: OnProgress
    ) -> Filled:
        """Writes newest records; see `BulkEngine`."""
        work = self._table_filled if Store.TABLE in plan.to else self._store_filled
        with self._filling(plan, on_progress) as folder:
            files = TaskFiles.made(folder)
            TaskFence(files.folder).open()
            return work(scan, plan, part, files, on_progress)

    def fill_from_all(
        self, scan: ArchiveScan, plan: ViewPlan, work: BulkTopics, on_progress: OnProgress
    ) -> Filled:
        """Writes a view from all records of its topics; see `BulkEngine`."""
        addresses = None if Store.TABLE in plan.to else self._delivers_to(plan)

        def results(tasks: KeyedTasks) -> pa.Table:
            def run() -> pa.Table:
                numbers = self._numbers(tasks.pieces, work.share)
                return numbers.mapInArrow(tasks.run, tasks.result_ddl).toArrow()

            share_done = partial(tasks.files.done, tasks.pieces)
            return self._watched(run, share_done, on_progress, tasks.records)

        with self._filling(plan, on_progress) as folder:
            fill = KeyedFill(scan, plan, work, grouped(scan), folder, addresses)
            return fill.run(results, partial(self._commit_keys, plan, work, on_progress))

    def _commit_keys(
        self, plan: ViewPlan, work: BulkTopics, on_progress: OnProgress, part: KeyedPart
    ) -> None:
        """Commits the rows of some keys; for a history, first changes, then states."""
        on_progress(0)  # raises if the request was withdrawn: nothing is written then
        if Store.TABLE not in plan.to:
            return
        if plan.history is None:
            for name, file in ((f"{plan.name}.deleted", "deletes_file"), (plan.name, "rows_file")):
                self._commit(name, part.files[file], work.mark, part.number)
            return
        states = DeltaTable(str(self._root / plan.name))
        known = progress_of(states)
        progress = {
            VERSION_MARK: max(known.version, part.version),
            AT_MARK: max(known.at_us, part.at_us),
            COMMIT_MARK: part.number,
        }
        of_changes = {COMMIT_MARK: part.number}
        for name, file, numbers in (
            (f"{plan.name}.changes", "changes_file", of_changes),
            (plan.name, "states_file", progress),
        ):
            self._commit(name, part.files[file], work.mark, part.number, numbers)

    @contextmanager
    def _filling(self, plan: ViewPlan, on_progress: OnProgress) -> Iterator[Path]:
        """Returns the folder of the tasks that fill a version, with its tables locked."""
        folder = self._root / f".{plan.name}{FILLING}"
        message = f"view {plan.name}: its version cannot be filled"
        with (
            named_errors(message, folder),
            WriterLock(self._root / f".{plan.name}.lock", wait=True),
        ):
            while not TaskFence.close_all(folder, POLL_S):  # tasks of one that was killed
                on_progress(0)
            on_progress(0)  # raises if the replay was stopped, before any task begins
            try:
                yield folder
            finally:
                TaskFence.close_all(folder, TASKS_END_S)

    def _table_filled(
        self,
        scan: ArchiveScan,
        plan: ViewPlan,
        part: BulkPart,
        files: TaskFiles,
        on_progress: OnProgress,
    ) -> Filled:
        """Has tasks write files of rows, and commits these; deletes first, as every writer does."""
        numbers = RowNumbers.stored(files, part.rows, _cut(scan, part.rows))
        task = FillRows(scan, plan, part.topic, numbers, files, part.held, part.share)
        results = self._results(task.run, FILLED_DDL, part, numbers.tasks, files, on_progress)
        on_progress(0)  # raises if the request was withdrawn: nothing is written then
        deletes, rows = (
            [
                files.folder / name
                for name in results.filter(pc.greater(results[of], 0))[file].to_pylist()
            ]
            for file, of in (("deletes_file", "deleted"), ("rows_file", "upserted"))
        )
        self._commit(f"{plan.name}.deleted", deletes, part.mark, part.number)
        self._commit(plan.name, rows, part.mark, part.number)
        return _filled(results)

    def _store_filled(
        self,
        scan: ArchiveScan,
        plan: ViewPlan,
        part: BulkPart,
        files: TaskFiles,
        on_progress: OnProgress,
    ) -> Filled:
        """Has tasks deliver rows to search or the cache."""
        numbers = RowNumbers.stored(files, part.rows, _cut(scan, part.rows))
        address = self._delivers_to(plan)
        task = FillStore(scan, plan, part.topic, numbers, files, part.held, address, part.share)
        results = self._results(task.run, DELIVERED_DDL, part, numbers.tasks, files, on_progress)
        return _filled(results)

    def _delivers_to(self, plan: ViewPlan) -> StoreAddresses:
        if self._addresses is None:
            raise SinkUnavailableError(f"view {plan.name}: its store has no address")
        return self._addresses

    def _results(  # noqa: PLR0913, PLR0917  # the parts of a job
        self,
        run: Any,
        result_ddl: str,
        part: BulkPart,
        pieces: int,
        files: TaskFiles,
        on_progress: OnProgress,
    ) -> pa.Table:
        """Runs tasks to their end, and returns their results."""

        def work() -> pa.Table:
            return self._numbers(pieces, part.share).mapInArrow(run, result_ddl).toArrow()

        return self._watched(work, lambda: files.done(pieces), on_progress, len(part.rows))

    @contextmanager
    def _folding(self) -> Iterator[Path]:
        """A folder for one fold, without what others have left that were killed."""
        with WriterLock(self._root / f"{_FOLDING}.lock", wait=True):
            folder = self._root / _FOLDING
            shutil.rmtree(folder, ignore_errors=True)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _commit(
        self,
        name: str,
        paths: Sequence[Path],
        mark: str,
        number: int,
        transactions: Mapping[str, int] | None = None,
    ) -> None:
        """Appends the files that tasks have written, in one commit, unless it exists already."""
        if not paths:
            return
        table = DeltaTable(str(self._root / name))
        if (table.transaction_version(mark) or 0) >= number:
            return
        numbers = {mark: number, **(transactions or {})}
        write_deltalake(
            table,
            _put_aside(paths),
            mode="append",
            target_file_size=COMPACTED_BYTES,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(*each) for each in numbers.items()]
            ),
            post_commithook_properties=HOOKS,
            writer_properties=writing(schema_of(table)),
        )

    def _numbers(self, parts: int, share: float) -> DataFrame:
        """The parts of some work, for as many tasks as may run at once: others find free slots."""
        return self._runs.numbers(parts, tasks_at_once(self._session, share))

    def _watched(
        self,
        work: Callable[[], _T],
        share_done: Callable[[], float],
        on_progress: OnProgress,
        rows: int,
    ) -> _T:
        """Does work in Spark, and reports its progress; an exception of `on_progress` cancels it.

        Args:
            work: The work.
            share_done: Returns the finished share of it, 0 to 1.
            on_progress: Receives the number of further finished rows.
            rows: Number of rows of the work.
        """
        reported = 0

        def report() -> None:
            nonlocal reported
            now = int(rows * share_done())
            on_progress(max(0, now - reported))
            reported = max(reported, now)

        result = self._runs.watched(work, report)
        on_progress(rows - reported)
        return result


def remove_abandoned(root: Path) -> None:
    """Removes what jobs left in the folder of the tables that were killed amid a rebuild or load.

    Jobs of other sources may share the folder: what one of them is at has its writer's lock, or a
    task that still holds its fence. A load that can be continued stays.
    """
    for suffix in (FILLING, LOADING):
        for folder in root.glob(f".*{suffix}"):
            lock = root / f"{folder.name.removesuffix(suffix)}.lock"
            with suppress(WriterLockedError, OSError), WriterLock(lock, wait=False):
                if not any(map(LoadState.of, folder.iterdir())):
                    TaskFence.close_all(folder)


@contextmanager
def named_errors(message: str, folder: Path) -> Iterator[None]:
    """Translates errors of Spark, its tasks and Delta, without their texts.

    Raises:
        RebuildSpaceError: A disk is full, here or on an executor.
        FolderNotSharedError: An executor does not see the folder.
        ArchiveMissingError: A file of the archive cannot be read.
        SinkUnavailableError: Anything else.
    """
    try:
        yield
    except (PySparkException, Py4JError, DeltaError, OSError, pa.ArrowException) as error:
        fault = Fault.find(str(error))
        if fault is None and disk_full(error):
            raise space_error(folder) from None
        if fault is None:
            raise SinkUnavailableError(message, detail=type(error).__name__) from None
        kind = _FAULTS.get(fault.code)
        if kind is not None:
            raise kind(fault.message, detail=fault.detail, hint=fault.hint) from None
        detail = ": ".join(filter(None, (fault.message, fault.detail)))
        raise SinkUnavailableError(message, detail=detail, hint=fault.hint) from None


def _filled(results: pa.Table) -> Filled:
    unwritten = np.sort(np.asarray(pc.list_flatten(results["left"]).to_numpy(), np.int64))
    upserted, deleted = (pc.sum(results[name]).as_py() or 0 for name in ("upserted", "deleted"))
    return Filled(upserted, deleted, unwritten)


def _names(files: DataFrame) -> list[str]:
    names: list[str] = files.toArrow()["file"].drop_null().to_pylist()
    return names


def _put_aside(paths: Sequence[Path]) -> pa.RecordBatchReader:
    """Reads files of rows one after the other, a batch at a time."""
    with pa.ipc.open_file(str(paths[0])) as first:
        schema = first.schema

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                yield from (file.get_batch(number) for number in range(file.num_record_batches))

    return pa.RecordBatchReader.from_batches(schema, batches())


def grouped(scan: ArchiveScan) -> tuple[tuple[int, int], ...]:
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
