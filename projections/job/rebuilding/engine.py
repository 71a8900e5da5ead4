"""SparkEngine: folds topics and fills tables with Spark's tasks, for replays of the archive."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.util import inheritable_thread_target

from projections.archive.bulk import BulkFold, Filled
from projections.archive.fold_entries import folded_rows, read_entries, row_numbers
from projections.common.file_lock import WriterLock
from projections.common.task_fence import TaskFence
from projections.definition.views import Store
from projections.errors import ReplayStoppedError, SinkUnavailableError
from projections.job.rebuilding.fill_tasks import FILLED_DDL, FillRows
from projections.job.rebuilding.fold_tasks import DONE, FOLDED_DDL, FoldBlocks, FoldKeys
from projections.job.rebuilding.store_tasks import DELIVERED_DDL, FillStore
from projections.stores.delta.table_sink import COMPACTED_BYTES, HOOKS
from projections.stores.delta.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from projections.archive.bulk import BulkPart, Done
    from projections.archive.fold import FoldedRows
    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter
    from projections.planning.job_config import StoreAddresses
    from projections.planning.view_plan import ViewPlan

    Integers = NDArray[np.int64]

ROWS_MIN: Final = 3_000_000
"""Rows of an archive below which Spark's tasks take longer to begin than they save. Once it has run
in a session, a rebuild of a million changes takes 0.77 of a replay's processor time; the first one
takes five seconds more, until code is compiled and workers have been started."""

POOL: Final = "rebuild"
TASK_ROWS: Final = 100_000
"""Rows of the archive that one task folds, and records that one task decodes, at least."""

KEYS_PER_TASK: Final = 500_000
_POLL_S: Final = 0.2
_TASKS_END_S: Final = 30.0
"""Tasks that were cancelled end within seconds; the next part waits for those that do not."""

_T = TypeVar("_T")


class SparkEngine:
    """Folds topics and fills tables in a session; see `BulkEngine`.

    Args:
        session: The session.
        root: Folder of the tables.
        share: Of their time, how much the tasks of a fold take at most.
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
        self._root = root
        self._share = share
        self._addresses = addresses
        self.rows_min = rows_min

    def ready(self, plan: ViewPlan) -> bool:
        """Tells whether the tables of a view are as they were made; see `BulkEngine`."""
        return Store.TABLE not in plan.to or untouched(self._root, plan)

    def fold(
        self, scan: ArchiveScan, topic: str, left_to_read: int, taken: RecordFilter, done: Done
    ) -> FoldedRows:
        """Finds the newest record of each key; see `BulkEngine`."""
        with TemporaryDirectory() as made:
            folder = Path(made)
            what = BulkFold(scan, topic, left_to_read, taken, self._share)
            return folded_rows(read_entries(self.entries(what, folder, done)))

    def look_up(  # noqa: PLR0913, PLR0917  # as its port has it
        self,
        scan: ArchiveScan,
        topic: str,
        left_to_read: int,
        taken: RecordFilter,
        keys: Collection[str],
        done: Done,
    ) -> Integers:
        """Returns the numbers of the newest records of some keys; see `BulkEngine`."""
        with TemporaryDirectory() as made:
            folder = Path(made)
            what = BulkFold(scan, topic, left_to_read, taken, self._share, frozenset(keys))
            return row_numbers(read_entries(self.entries(what, folder, done)))

    def entries(self, what: BulkFold, folder: Path, done: Done) -> list[Path]:
        """Folds a topic to files of entries; see `BulkEngine.fold`.

        Args:
            what: The topic, and which records of it.
            folder: An empty folder for them.
            done: Told how many more rows were looked at, unless some keys are looked up.
        """
        scan, groups = what.scan, _grouped(what.scan)
        parts = max(1, -(-scan.rows // KEYS_PER_TASK))
        blocks = FoldBlocks(
            scan, what.topic, what.left_to_read, what.taken, groups, parts, folder, what.share
        )

        def work() -> list[str]:
            numbers = self._numbers(len(groups), what.share)
            made = _names(numbers.mapInArrow(blocks.run, FOLDED_DDL))
            keys = FoldKeys(folder, tuple(made), what.named)
            found = _names(self._numbers(parts, what.share).mapInArrow(keys.run, FOLDED_DDL))
            for name in made:
                (folder / name).unlink()
            return found

        rows = scan.rows if what.named is None else 0
        found = self._watched(work, partial(_done, folder, len(groups)), done, rows)
        return [folder / name for name in found]

    def fill(self, scan: ArchiveScan, plan: ViewPlan, part: BulkPart, done: Done) -> Filled:
        """Writes newest records; see `BulkEngine`."""
        folder = self._root / f".{plan.name}.filling"
        work = self._table_filled if Store.TABLE in plan.to else self._store_filled
        fence = TaskFence(folder)
        try:
            with WriterLock(self._root / f".{plan.name}.lock", wait=True):
                while not fence.close(_POLL_S):  # tasks of one that was killed
                    done(0)
                done(0)  # raises if it was stopped: nothing is begun then
                folder.mkdir()
                fence.open()
                try:
                    return work(scan, plan, part, folder, done)
                finally:
                    fence.close(_TASKS_END_S)
        except (PySparkException, Py4JError, DeltaError, OSError, pa.ArrowException) as error:
            # the library's own text can show values
            raise SinkUnavailableError(
                f"view {plan.name}: its version cannot be filled", detail=type(error).__name__
            ) from None

    def _table_filled(
        self, scan: ArchiveScan, plan: ViewPlan, part: BulkPart, folder: Path, done: Done
    ) -> Filled:
        """Has tasks put rows aside, and commits them; deletes first, as every writer does."""
        cuts = _cut(scan, part.rows)
        task = FillRows(scan, plan, part.topic, part.rows, cuts, folder, part.held, part.share)
        said = self._results(task.run, FILLED_DDL, part, cuts, folder, done)
        done(0)  # raises if the request was withdrawn: nothing is written then
        deletes, rows = (
            [folder / name for name in said.filter(pc.greater(said[of], 0))[file].to_pylist()]
            for file, of in (("deletes_file", "deleted"), ("rows_file", "upserted"))
        )
        self._commit(f"{plan.name}.deleted", deletes, part)
        self._commit(plan.name, rows, part)
        return _filled(said)

    def _store_filled(
        self, scan: ArchiveScan, plan: ViewPlan, part: BulkPart, folder: Path, done: Done
    ) -> Filled:
        """Has tasks deliver rows to search or the cache."""
        if self._addresses is None:
            raise SinkUnavailableError(f"view {plan.name}: its store has no address")
        cuts, address = _cut(scan, part.rows), self._addresses
        task = FillStore(
            scan, plan, part.topic, part.rows, cuts, folder, part.held, address, part.share
        )
        return _filled(self._results(task.run, DELIVERED_DDL, part, cuts, folder, done))

    def _results(  # noqa: PLR0913, PLR0917  # the parts of a job
        self,
        run: Any,
        says: str,
        part: BulkPart,
        cuts: Sequence[int],
        folder: Path,
        done: Done,
    ) -> pa.Table:
        """Runs tasks to their end, and returns what they say."""

        def work() -> pa.Table:
            return self._numbers(len(cuts) - 1, part.share).mapInArrow(run, says).toArrow()

        return self._watched(work, partial(_done, folder, len(cuts) - 1), done, len(part.rows))

    def _commit(self, name: str, paths: Sequence[Path], part: BulkPart) -> None:
        """Appends what tasks have put aside in one commit, unless that was done before."""
        table = DeltaTable(str(self._root / name))
        if not paths or (table.transaction_version(part.mark) or 0) >= part.number:
            return
        mark = Transaction(part.mark, part.number)
        write_deltalake(
            table,
            _put_aside(paths),
            mode="append",
            target_file_size=COMPACTED_BYTES,
            commit_properties=CommitProperties(app_transactions=[mark]),
            post_commithook_properties=HOOKS,
        )

    def _numbers(self, parts: int, share: float) -> DataFrame:
        """The parts of some work, for as many tasks as may run at once: others find free slots."""
        tasks = max(1, min(parts, tasks_at_once(self._session, share)))
        return self._session.range(0, parts, 1, tasks)

    def _watched(
        self, work: Callable[[], _T], so_far: Callable[[], float], done: Done, rows: int
    ) -> _T:
        """Does work in Spark, and tells how far it is; what `done` raises cancels it.

        Args:
            work: The work.
            so_far: Tells which part of it is done.
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
                    found: _T = under_way.result(_POLL_S)
                except NotYetError:
                    now = int(rows * so_far())
                    try:
                        done(max(0, now - told))
                    except ReplayStoppedError:
                        _cancel(context, group, under_way)
                        raise
                    told = max(told, now)
                else:
                    done(rows - told)
                    return found


def tasks_at_once(session: SparkSession, share: float) -> int:
    """How many tasks of a rebuild may run at once: one slot at least is left to live batches."""
    slots = session.sparkContext.defaultParallelism
    return max(1, min(slots - 1, round(slots * share)))


def _cancel(context: Any, group: str, under_way: Any) -> None:
    """Cancels a group of jobs until its thread has ended: a job may begin between two calls."""
    ended = threading.Event()
    under_way.add_done_callback(lambda _: ended.set())
    while not ended.is_set():
        with suppress(Py4JError):
            context.cancelJobGroup(group)
        ended.wait(_POLL_S)


def _filled(said: pa.Table) -> Filled:
    left = np.sort(np.asarray(pc.list_flatten(said["left"]).to_numpy(), np.int64))
    upserted, deleted = (pc.sum(said[name]).as_py() or 0 for name in ("upserted", "deleted"))
    return Filled(upserted, deleted, left)


def _names(files: DataFrame) -> list[str]:
    found: list[str] = files.toArrow()["file"].to_pylist()
    return found


def _done(folder: Path, parts: int) -> float:
    """Which part of the work tasks have marked as done."""
    return sum(1 for _ in folder.glob(f"*{DONE}")) / parts if parts else 0.0


def _put_aside(paths: Sequence[Path]) -> pa.RecordBatchReader:
    """Reads files of rows one after the other, a batch at a time."""
    with pa.ipc.open_file(str(paths[0])) as first:
        schema = first.schema

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                yield from (file.get_batch(number) for number in range(file.num_record_batches))

    return pa.RecordBatchReader.from_batches(schema, batches())


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
