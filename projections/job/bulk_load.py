"""Bulk load: fills a view's new table directly from the source, by Spark's tasks.

The rows are those of one database snapshot, taken after the log position of a whole-table snapshot
of the table, and have that snapshot's version. They are therefore ordered like its own records:
every change that the database snapshot does not see has a greater version and arrives by the
stream, from its exact position on; every older change loses. The records of the whole-table
snapshot add nothing that the load lacks, or that the stream does not remove again, so the sink
skips them (the table records which: `headwater.loaded`). The topic and the archive contain them all
the same.

The driver exports a database snapshot, and tasks write the table's files. Their number is that of
the connections to the source. A snapshot holds back the vacuum of the whole source, so it is
renewed after a while: the pieces that are left are copied under another one (see `source_copy`),
and at the end, what has changed since the first one once more. Readers never see a partial load:
the driver adds all files in one commit, beside the table's path, and moves the table there. A load
that was stopped or killed leaves its finished pieces behind, and the next one continues with them,
unless rows may have moved to other blocks.
"""

from __future__ import annotations

import math
import select
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from cdc.position import epoch_of, version_of
from cdc.schema_change import history
from foundation.atomic_file import sync_folder
from projections.common.fault import Fault
from projections.common.file_lock import WriterLock
from projections.common.task_fence import TaskFence
from projections.common.task_files import TaskFiles
from projections.definition.views import Store
from projections.errors import LoadFailedError, ReplayStoppedError, UnholdableValueError
from projections.job.load_state import LoadState, files_of, made_from
from projections.job.load_tasks import LOADED_DDL, LoadRows
from projections.job.loaded_table import CopiedPieces, CopiedRows, make_table
from projections.job.spark.task_runs import POLL_S, TASKS_END_S, TaskRuns, tasks_at_once
from projections.stores.delta.arrow import deletes_schema
from projections.stores.delta.source_copy import oldest_running, pieces_of, shows_changes
from projections.stores.delta.table_format import CONFIGURATION, limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.planning.view_plan import ViewPlan
    from projections.stores.delta.source_copy import SourceCopy, TableFile

LOADING: Final = ".loading"
SNAPSHOT_S: Final = 600.0
"""How long tasks begin to copy pieces under one snapshot of the source."""

_BEGINNINGS_MAX: Final = 3
"""How often a load begins because rows may have moved to other blocks of the table."""

_ATTEMPTS: Final = 2
"""How often Spark's job is run: on one machine, Spark itself does not repeat a task."""


@dataclass(frozen=True, slots=True)
class Load:
    """Source and destination of a load.

    Attributes:
        source: The table, at a position that has been reached.
        root: Folder of the tables.
        connections: Most connections that tasks open to the source, beside the driver's.
        snapshot_s: How long tasks begin to copy pieces under one snapshot, seconds.
    """

    source: SourceCopy
    root: Path
    connections: int = 2
    snapshot_s: float = SNAPSHOT_S

    @property
    def staging(self) -> Path:
        """Returns the folder of its runs."""
        return self.root / f".{self.source.plan.name}{LOADING}"


def load(
    session: SparkSession,
    load: Load,
    stopped: Callable[[], bool] = lambda: False,
    on_progress: Callable[[float], None] = lambda _: None,
) -> int | None:
    """Fills the new table of a view.

    Args:
        session: The job's session.
        load: The load.
        stopped: Returns whether to give it up; asked several times a second.
        on_progress: Receives the copied share of the ranges, 0 to 1; called several times a second.

    Returns:
        The number of rows; None if the view already has a table, which stays unchanged.

    Raises:
        LoadFailedError: The source cannot be read as planned, or the table cannot be written.
        UnholdableValueError: A value has no exact form in a table.
        ReplayStoppedError: It was given up; nothing is shown of it, and the next load continues.
    """
    plan, place = load.source.plan, load.root / load.source.plan.name
    with _named_errors(plan), WriterLock(load.root / f".{plan.name}.lock", wait=True):
        if DeltaTable.is_deltatable(str(place)):
            return None
        for _ in range(_BEGINNINGS_MAX):
            with _continued(load, stopped) as files, suppress(_RowsMovedError):
                return _Run(session, load, files, stopped, on_progress).filled(place)
        raise LoadFailedError(
            f"view {plan.name} cannot be loaded from the source",
            detail="rows of its table move to other blocks again and again",
        )


def remove_unfinished(root: Path, source: str) -> None:
    """Removes loads of a source that are not continued, as its only driver.

    Args:
        root: Folder of the tables.
        source: The source.
    """
    for staging in root.glob(f".*{LOADING}"):
        with suppress(FileNotFoundError):  # a job of another source has removed its own
            states = map(LoadState.of, [*staging.iterdir()])
            if any(state is not None and state.source == source for state in states):
                TaskFence.close_all(staging)


class _RowsMovedError(Exception):
    """Rows may be in other blocks than when the load began."""


@contextmanager
def _continued(load: Load, stopped: Callable[[], bool]) -> Iterator[TaskFiles]:
    """Yields the files of the load that was stopped or killed last; else those of a new one."""
    plan, staging = load.source.plan, load.staging
    runs = [folder for folder in staging.iterdir() if folder.is_dir()] if staging.is_dir() else []
    wanted = made_from(load.source)
    known = {folder: LoadState.of(folder) for folder in runs}
    kept = next((f for f, state in known.items() if state and state.made_from == wanted), None)
    while not TaskFence.close_all(staging, POLL_S, keep=kept):  # tasks of a killed driver
        _check(plan, stopped)
    _check(plan, stopped)
    files = TaskFiles.made(staging) if kept is None else TaskFiles(kept)
    stays: Path | None = None
    try:
        TaskFence(files.folder).open()
        yield files
    except ReplayStoppedError:
        stays = files.folder
        raise
    finally:
        TaskFence.close_all(staging, TASKS_END_S, keep=stays)


class _Run:
    """One run of a load."""

    def __init__(
        self,
        session: SparkSession,
        load: Load,
        files: TaskFiles,
        stopped: Callable[[], bool],
        on_progress: Callable[[float], None],
    ) -> None:
        self._runs = TaskRuns(session, "load", str(Store.TABLE))
        self._load = load
        self._source = load.source
        self._files = files
        self._stopped = stopped
        self._on_progress = on_progress

    def filled(self, place: Path) -> int:
        """Makes the table, and moves it to its place; returns the number of rows.

        Raises:
            _RowsMovedError: The load has to begin again.
        """
        plan, root = self._source.plan, self._load.root
        copied = None
        while copied is None:
            with self._source.session() as holder:
                copied = self._under_snapshot(holder)
        LoadState.remove(self._files.folder)  # from here on, the files of pieces move
        table, rows = make_table(self._source, copied)
        deleted = str(root / f"{plan.name}.deleted")
        if not DeltaTable.is_deltatable(deleted):
            schema = deletes_schema(plan)
            DeltaTable.create(deleted, schema, configuration=CONFIGURATION | limits(schema))
        _check(plan, self._stopped)
        table.rename(place)
        sync_folder(root)
        return rows

    def _under_snapshot(self, holder: psycopg.Connection[Any]) -> CopiedRows | None:
        """Copies pieces under one snapshot; returns all rows once no piece is left."""
        source, files = self._source, self._files
        source.check_columns(holder)
        tasks = min(self._load.connections, tasks_at_once(self._runs.session))
        table_files = source.table_files(holder)
        state = self._state(holder, table_files, tasks)
        # the session's snapshot is older, so it has nothing that comes after that
        at = version_of(epoch_of(source.version), history.position(holder).value)
        row = holder.execute("SELECT pg_export_snapshot()").fetchone()
        snapshot = str(row[0] if row else "")
        # in tables of other kinds, `xmin` does not show which rows moved to other blocks
        renewed_s = (
            self._load.snapshot_s if all(each.ordinary for each in table_files) else math.inf
        )
        work = LoadRows(source, snapshot, state.pieces, files)
        copied = self._copied(work, tasks, holder, renewed_s)
        changed = None
        if len(copied.made) == len(state.pieces) and state.snapshots > 1:
            changed_files = TaskFiles.made(self._load.staging)
            TaskFence(changed_files.folder).open()
            work = LoadRows(source, snapshot, state.pieces, changed_files, state.since)
            changed = self._copied(work, tasks, holder, math.inf)
        # also shows that the snapshot was there until now, for each task to have read the same
        if files_of(source.table_files(holder)) != state.files:
            raise _RowsMovedError
        left = len(state.pieces) - len(copied.made)
        return None if left else CopiedRows(copied, changed, at)

    def _state(
        self, holder: psycopg.Connection[Any], table_files: Sequence[TableFile], tasks: int
    ) -> LoadState:
        """Returns the state of the load with this snapshot, and stores it."""
        plan, folder = self._source.plan, self._files.folder
        before = LoadState.of(folder)
        if before is None:
            pieces = pieces_of(table_files, tasks)
            # every other piece, so that no task gets all the full ones
            spread = tuple(piece for first in range(tasks) for piece in pieces[first::tasks])
            since, made = oldest_running(holder), made_from(self._source)
            state = LoadState(plan.source, made, files_of(table_files), spread, since)
        elif files_of(table_files) != before.files or not shows_changes(holder, before.since):
            raise _RowsMovedError
        else:
            state = msgspec.structs.replace(before, snapshots=before.snapshots + 1)
        if all(each.ordinary for each in table_files):
            state.store(folder)
        return state

    def _copied(
        self, work: LoadRows, tasks: int, holder: psycopg.Connection[Any], renewed_s: float
    ) -> CopiedPieces:
        """Runs tasks on pieces that are not copied yet; returns all that are copied then.

        Args:
            work: What the tasks do.
            tasks: Their number.
            holder: The session of the snapshot.
            renewed_s: After how long they end with pieces left; all are copied before if infinite.
        """

        def run() -> pa.Table:
            numbers = self._runs.numbers(len(work.pieces), tasks)
            return numbers.mapInArrow(work.run, LOADED_DDL).toArrow()

        lost = select.poll()
        lost.register(holder.fileno(), select.POLLIN)
        deadline = time.monotonic() + renewed_s

        def look() -> None:
            _check(self._source.plan, self._stopped)
            self._on_progress(self._files.done(len(work.pieces)))
            if lost.poll(0):  # the server sent a message: usually that it ends the session
                holder.execute("SELECT 1")
            if time.monotonic() >= deadline:
                work.renew()

        work.begin()
        look()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return CopiedPieces(work.files.folder, self._runs.watched(run, look))
            except (PySparkException, Py4JError) as error:
                fault = Fault.find(str(error))
                again = fault is None or fault.code == LoadFailedError.code
                if attempt == _ATTEMPTS or not again:
                    raise
                look()
        raise AssertionError  # the last attempt returns or raises


def _check(plan: ViewPlan, stopped: Callable[[], bool]) -> None:
    if stopped():
        raise ReplayStoppedError(f"the load of view {plan.name} was stopped")


@contextmanager
def _named_errors(plan: ViewPlan) -> Iterator[None]:
    """Names what Spark, its tasks, the source and Delta report, without the text of any of them."""
    try:
        yield
    except (
        *(PySparkException, Py4JError, DeltaError),
        *(OSError, psycopg.Error, pa.ArrowException),
    ) as error:
        fault = Fault.find(str(error))
        if fault is None:
            detail = getattr(error, "sqlstate", None) or type(error).__name__
        elif fault.code == UnholdableValueError.code:
            raise UnholdableValueError(
                fault.message, detail=fault.detail, hint=fault.hint
            ) from None
        else:
            detail = ": ".join(filter(None, (fault.message, fault.detail)))
        raise LoadFailedError(
            f"view {plan.name} cannot be loaded from the source", detail=detail
        ) from None
