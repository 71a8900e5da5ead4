"""TaskEngine: folds topics and fills tables with tasks, for replays of the archive."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from projections.archive.bulk import FILLING, Filled
from projections.archive.fold_entries import read_folded, read_row_numbers
from projections.archive.rebuilding.fill_tasks import FillRows
from projections.archive.rebuilding.fold_tasks import FoldBlocks, FoldKeys
from projections.archive.rebuilding.keyed_fill import KeyedFill
from projections.archive.rebuilding.row_numbers import RowNumbers
from projections.archive.rebuilding.store_tasks import FillStore
from projections.archive.rebuilding.task_errors import named_errors
from projections.archive.rebuilding.task_ranges import block_groups, hash_parts, row_cuts
from projections.common.file_lock import WriterLock
from projections.common.task_fence import TaskFence
from projections.common.task_files import TaskFiles
from projections.definition.views import Store
from projections.errors import SinkUnavailableError
from projections.stores.delta.history.tables import AT_MARK, COMMIT_MARK, VERSION_MARK, progress_of
from projections.stores.delta.table_format import COMPACTED_BYTES, HOOKS, schema_of, writing
from projections.stores.delta.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from projections.archive.bulk import BulkFold, BulkPart, BulkTopics, OnProgress
    from projections.archive.fold import FoldedRows
    from projections.archive.rebuilding.keyed_fill import KeyedPart, KeyedTasks
    from projections.archive.rebuilding.tasks import RebuildTask, T, TaskRunner
    from projections.archive.scan import ArchiveScan
    from projections.planning.job_config import StoreAddresses
    from projections.planning.view_plan import ViewPlan

    Integers = NDArray[np.int64]

_POLL_S: Final = 0.2
_TASKS_END_S: Final = 30.0
"""Tasks that were stopped end within seconds; the next fill waits for those that do not."""


class TaskEngine:
    """Folds topics for a version and fills it; see `BulkEngine`.

    Args:
        tasks: Runs the tasks.
        root: Folder of the tables.
        place: Name of the version.
        addresses: Where the other stores are; None if there are none.
    """

    def __init__(
        self,
        tasks: TaskRunner,
        root: Path,
        place: str,
        *,
        addresses: StoreAddresses | None = None,
    ) -> None:
        self._tasks = tasks
        self._root = root
        self._place = place
        self._addresses = addresses

    def ready(self, plan: ViewPlan) -> bool:
        """Returns whether the tables of a view exist and are still empty; see `BulkEngine`."""
        return Store.TABLE not in plan.to or untouched(self._root, plan)

    def fold(self, work: BulkFold, on_progress: OnProgress) -> FoldedRows:
        """Finds the newest record of each key; see `BulkEngine`."""
        with self._filling(on_progress) as folder:
            return read_folded(self.entries(work, folder, on_progress))

    def look_up(self, work: BulkFold, on_progress: OnProgress) -> Integers:
        """Returns the numbers of the newest records of the named keys; see `BulkEngine`."""
        with self._filling(on_progress) as folder:
            return read_row_numbers(self.entries(work, folder, on_progress))

    def entries(self, work: BulkFold, folder: Path, on_progress: OnProgress) -> list[Path]:
        """Folds a topic to files of entries; see `BulkEngine.fold`.

        Args:
            work: The topic, and the filter of its records.
            folder: A folder that all tasks see; the files are in a new folder in it.
            on_progress: Receives the number of further rows read, except for a look-up of keys.

        Raises:
            RebuildSpaceError: A disk is full.
            BulkLostError: The tasks fail.
            SinkUnavailableError: The archive or the folder cannot be read or written.
        """
        scan, groups, parts = work.scan, block_groups(work.scan), hash_parts(work.scan)
        with named_errors("its topic cannot be folded", folder):
            folded, files = TaskFiles.made(folder), TaskFiles.made(folder)
            blocks = FoldBlocks(
                scan=scan,
                taken=work.taken,
                groups=groups,
                buckets=parts,
                files=folded,
                pace=self._tasks.pace(work.share),
                topic=work.topic,
                left_to_read=work.left_to_read,
            )

            def run() -> list[str]:
                made = _names(self._tasks.results(blocks, len(groups), work.share))
                keys = FoldKeys(files, folded, tuple(made), work.named)
                return _names(self._tasks.results(keys, parts, work.share))

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
        with self._filling(on_progress) as folder:
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
                return self._tasks.results(tasks.task, tasks.pieces, work.share)

            share_done = partial(tasks.files.done, tasks.pieces)
            return self._watched(run, share_done, on_progress, tasks.records)

        with self._filling(on_progress) as folder:
            pace = self._tasks.pace(work.share)
            fill = KeyedFill(scan, plan, work, block_groups(scan), folder, pace, addresses)
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
    def _filling(self, on_progress: OnProgress) -> Iterator[Path]:
        """Returns the folder of the tasks that fill the version, with its tables locked."""
        folder = self._root / f".{self._place}{FILLING}"
        message = f"view {self._place}: its version cannot be filled"
        with (
            named_errors(message, folder),
            WriterLock(self._root / f".{self._place}.lock", wait=True),
        ):
            while not TaskFence.close_all(folder, _POLL_S):  # tasks of one that was killed
                on_progress(0)
            on_progress(0)  # raises if the replay was stopped, before any task begins
            try:
                yield folder
            finally:
                TaskFence.close_all(folder, _TASKS_END_S)

    def _table_filled(
        self,
        scan: ArchiveScan,
        plan: ViewPlan,
        part: BulkPart,
        files: TaskFiles,
        on_progress: OnProgress,
    ) -> Filled:
        """Has tasks write files of rows, and commits these; deletes first, as every writer does."""
        numbers = RowNumbers.stored(files, part.rows, row_cuts(scan, part.rows))
        pace = self._tasks.pace(part.share)
        task = FillRows(scan, plan, part.topic, numbers, files, part.held, pace)
        results = self._results(task, part, numbers.tasks, files, on_progress)
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
        numbers = RowNumbers.stored(files, part.rows, row_cuts(scan, part.rows))
        address = self._delivers_to(plan)
        pace = self._tasks.pace(part.share)
        task = FillStore(scan, plan, part.topic, numbers, files, part.held, address, pace)
        results = self._results(task, part, numbers.tasks, files, on_progress)
        return _filled(results)

    def _delivers_to(self, plan: ViewPlan) -> StoreAddresses:
        if self._addresses is None:
            raise SinkUnavailableError(f"view {plan.name}: its store has no address")
        return self._addresses

    def _results(
        self,
        task: RebuildTask,
        part: BulkPart,
        pieces: int,
        files: TaskFiles,
        on_progress: OnProgress,
    ) -> pa.Table:
        """Runs tasks to their end, and returns their results."""

        def work() -> pa.Table:
            return self._tasks.results(task, pieces, part.share)

        return self._watched(work, lambda: files.done(pieces), on_progress, len(part.rows))

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

    def _watched(
        self,
        work: Callable[[], T],
        share_done: Callable[[], float],
        on_progress: OnProgress,
        rows: int,
    ) -> T:
        """Does work, and reports its progress; an exception of `on_progress` stops it.

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

        result = self._tasks.watched(work, report)
        on_progress(rows - reported)
        return result


def _filled(results: pa.Table) -> Filled:
    unwritten = np.sort(np.asarray(pc.list_flatten(results["left"]).to_numpy(), np.int64))
    upserted, deleted = (pc.sum(results[name]).as_py() or 0 for name in ("upserted", "deleted"))
    return Filled(upserted, deleted, unwritten)


def _names(results: pa.Table) -> list[str]:
    names: list[str] = results["file"].drop_null().to_pylist()
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
