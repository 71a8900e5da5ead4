"""Bulk load: fills a view's new table directly from the source, by Spark's tasks.

The rows are those of one database snapshot, taken after the log position of a whole-table snapshot
of the table, and have that snapshot's version. They are therefore ordered like its own records:
every change that the database snapshot does not see has a greater version and arrives by the
stream, from its exact position on; every older change loses. The records of the whole-table
snapshot add nothing that the load lacks, or that the stream does not remove again, so the sink
skips them (the table records which: `headwater.loaded`). The topic and the archive contain them all
the same.

The driver exports the database snapshot, and tasks write the table's files. Their number is that of
the connections to the source. Readers never see a partial load: the driver adds all files in one
commit, beside the table's path, and moves the table there. A killed load leaves a folder behind,
which the next one removes once no task works there.
"""

from __future__ import annotations

import select
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from foundation.atomic_file import sync_files, sync_folder
from projections.common.delta_log import TableLog
from projections.common.fault import Fault
from projections.common.file_lock import WriterLock
from projections.common.task_fence import TaskFence
from projections.definition.views import Store
from projections.errors import LoadFailedError, ReplayStoppedError, UnholdableValueError
from projections.job.load_tasks import LOADED_DDL, LoadRows
from projections.job.spark.task_files import TaskFiles
from projections.job.spark.task_runs import POLL_S, TASKS_END_S, TaskRuns, tasks_at_once
from projections.stores.delta.arrow import deletes_schema, table_schema
from projections.stores.delta.table_format import CONFIGURATION, LOADED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.planning.view_plan import ViewPlan
    from projections.stores.delta.source_copy import SourceCopy

LOADING: Final = ".loading"
_TABLE: Final = "table"
_ATTEMPTS: Final = 2
"""How often Spark's job is run: on one machine, Spark itself does not repeat a task."""


@dataclass(frozen=True, slots=True)
class Load:
    """Source and destination of a load.

    Attributes:
        source: The table, at a position that has been reached.
        root: Folder of the tables.
        connections: Most connections that tasks open to the source, beside the driver's.
    """

    source: SourceCopy
    root: Path
    connections: int = 2


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
        ReplayStoppedError: It was given up; nothing is shown of it.
    """
    plan, root = load.source.plan, load.root
    place, staging = root / plan.name, root / f".{plan.name}{LOADING}"
    with _named_errors(plan), WriterLock(root / f".{plan.name}.lock", wait=True):
        if DeltaTable.is_deltatable(str(place)):
            return None
        while not TaskFence.close_all(staging, POLL_S):  # tasks of a driver that was killed
            _check(plan, stopped)
        _check(plan, stopped)
        try:
            files = TaskFiles.made(staging)
            TaskFence(files.folder).open()
            return _Run(session, load, files, stopped, on_progress).filled(place)
        finally:
            TaskFence.close_all(staging, TASKS_END_S)


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
        self._source = load.source
        self._connections = load.connections
        self._root = load.root
        self._files = files
        self._stopped = stopped
        self._on_progress = on_progress

    def filled(self, place: Path) -> int:
        """Makes the table, and moves it to its place; returns the number of rows."""
        source, plan = self._source, self._source.plan
        with source.session() as holder:
            source.check_columns(holder)
            row = holder.execute("SELECT pg_export_snapshot()").fetchone()
            tasks = min(self._connections, tasks_at_once(self._runs.session))
            pieces = source.pieces(holder, tasks)
            # every other piece, so that no task gets all the full ones
            spread = tuple(piece for first in range(tasks) for piece in pieces[first::tasks])
            copied = LoadRows(source, str(row[0] if row else ""), spread, self._files)
            made = self._copied(copied, tasks, holder)
            # each task has read the snapshot that the others have, only if it was there until now
            holder.execute("SELECT 1")
        table = self._added(made["folder"].to_pylist())
        deleted = str(self._root / f"{plan.name}.deleted")
        if not DeltaTable.is_deltatable(deleted):
            DeltaTable.create(deleted, deletes_schema(plan), configuration=dict(CONFIGURATION))
        _check(plan, self._stopped)
        table.rename(place)
        sync_folder(self._root)
        return int(pc.sum(made["rows"]).as_py() or 0)

    def _copied(self, copied: LoadRows, tasks: int, holder: psycopg.Connection[Any]) -> pa.Table:
        """Runs tasks until all pieces are copied; those that are done are not copied again."""

        def work() -> pa.Table:
            numbers = self._runs.numbers(len(copied.pieces), tasks)
            return numbers.mapInArrow(copied.run, LOADED_DDL).toArrow()

        lost = select.poll()
        lost.register(holder.fileno(), select.POLLIN)

        def look() -> None:
            _check(self._source.plan, self._stopped)
            self._on_progress(self._files.done(len(copied.pieces)))
            if lost.poll(0):  # the server sent a message: usually that it ends the session
                holder.execute("SELECT 1")

        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._runs.watched(work, look)
            except (PySparkException, Py4JError) as error:
                fault = Fault.find(str(error))
                again = fault is None or fault.code == LoadFailedError.code
                if attempt == _ATTEMPTS or not again:
                    raise
                look()
        raise AssertionError  # the last attempt returns or raises

    def _added(self, folders: list[str]) -> Path:
        """Makes the table of the files that tasks have written; returns its folder."""
        schema, place = table_schema(self._source.plan), self._files.folder / _TABLE
        properties = {**CONFIGURATION, LOADED: str(self._source.version)}
        table = DeltaTable.create(
            str(place), schema, configuration=properties, raise_if_key_not_exists=False
        )
        added: list[AddAction | RemoveAction] = []
        for folder in folders:
            for add in TableLog(self._files.folder / folder).state(0).files.values():
                (self._files.folder / folder / add["path"]).rename(place / add["path"])
                added.append(
                    AddAction(
                        add["path"], add["size"], {}, add["modificationTime"], True, add["stats"]
                    )
                )
        if added:
            table.create_write_transaction(added, "append", schema)
        sync_files(place / "_delta_log")
        sync_folder(place)
        return place


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
