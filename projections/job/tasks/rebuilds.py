"""Rebuilds: bulk work that commands request from the job's Spark, mostly to fill a version.

See `BulkRequests`. One request is processed at a time, in its own scheduler pool with the least
weight, so that batches of live views come first. If the job stops during a request, the next job
begins it again; a request that ended the job twice is returned to the command.
"""

from __future__ import annotations

import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from projections.archive.bulk import BulkFold
from projections.archive.rebuilding.engine import TaskEngine
from projections.common.background_task import PAUSE_S, BackgroundTask
from projections.common.fault import kind_and_place
from projections.errors import ProjectionError, ReplayStoppedError, WriterLockedError
from projections.job.abandoned_files import remove_abandoned
from projections.job.comparison import TableComparison, comparing_folder
from projections.job.spark.task_runs import slots_of, tasks_at_once
from projections.job.spark_tasks import SparkTasks
from projections.job.version_comparison import VersionComparison
from projections.versions.bulk_requests import (
    ATTEMPTS_MAX,
    FORM,
    KEYS_FILE,
    BulkAnswer,
    BulkComparison,
    BulkFill,
    BulkProgress,
    BulkRequests,
    BulkServer,
    BulkVersions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from projections.planning.job_config import JobConfig
    from projections.versions.bulk_requests import BulkTopicsFill

_TICK_S: Final = 0.25
_REPORT_EVERY_S: Final = 0.5
_SLOTS_EVERY_S: Final = 5.0
_ENDED_THE_JOB: Final = f"the job has ended {ATTEMPTS_MAX} times while it was at it"
_log = structlog.get_logger(__name__)


class RebuildServer(BackgroundTask):
    """Processes the requests of commands while it holds the server's lock."""

    def __init__(self, session: SparkSession, config: JobConfig) -> None:
        super().__init__("rebuild server")
        self._session = session
        self._config = config
        self._requests = BulkRequests(config)
        self._served: BulkServer | None = None
        self._looked_at: float | None = None

    def work(self) -> None:
        """Processes requests until stopped."""
        while not self.rested(_TICK_S):
            try:
                with self._requests.serving():
                    self._serve()
            except WriterLockedError:
                continue  # a command probes the lock, or the previous job still holds it

    def _serve(self) -> None:
        remove_abandoned(self._config.addresses.tables)
        shutil.rmtree(comparing_folder(self._config), ignore_errors=True)
        self._served = self._looked_at = None
        while not self.rested(_TICK_S):
            try:
                self._report_slots()
                self._requests.clear()
                for physical_name, id_ in self._requests.open():
                    if self._stopped.is_set():
                        return
                    self._do(physical_name, id_)
            except OSError as error:  # usually the disk is full: live views still need the job
                _log.warning("a rebuild cannot be answered", kind=kind_and_place(error))
                self._stopped.wait(PAUSE_S)

    def _report_slots(self) -> None:
        """Reports periodically how many tasks Spark runs at once, since executors come and go."""
        now = time.monotonic()
        if self._looked_at is not None and now - self._looked_at < _SLOTS_EVERY_S:
            return
        self._looked_at = now
        try:
            server = BulkServer(slots_of(self._session), FORM, tasks_at_once(self._session))
        except (Py4JError, AttributeError):
            return  # the session is ending; others say why
        if server != self._served:
            self._requests.serve(server)
            self._served = server

    def _do(self, physical_name: str, id_: str) -> None:
        requests = self._requests
        if requests.answered(physical_name, id_) is None:
            try:
                answer = _Work(
                    self._session, self._config, requests, physical_name, id_, self
                ).done()
            except ReplayStoppedError:
                if self._stopped.is_set() and requests.counts(physical_name, id_):
                    return  # the next job, or turn of this one, does it
                answer = BulkAnswer(id_, "the command has cancelled it, or has ended")
            except Exception as error:  # noqa: BLE001  # one piece of work must not end the job
                if self._stopped.is_set():
                    return  # Spark ends, too
                _log.warning("a command goes on without Spark", view=physical_name, why=_why(error))
                code = error.code if isinstance(error, ProjectionError) else None
                answer = BulkAnswer(id_, _why(error), code)
            requests.answer(physical_name, answer)
        requests.close(physical_name, id_)

    @property
    def stopping(self) -> bool:
        """Whether it must end."""
        return self._stopped.is_set()


class _Work:
    """One requested piece of work."""

    def __init__(  # noqa: PLR0913, PLR0917  # what it is, where it is done, and for whom
        self,
        session: SparkSession,
        config: JobConfig,
        requests: BulkRequests,
        physical_name: str,
        id_: str,
        server: RebuildServer,
    ) -> None:
        addresses = config.addresses
        self._engine = TaskEngine(
            SparkTasks(session), addresses.tables, physical_name, addresses=addresses
        )
        self._comparison = TableComparison(session, config)
        self._versions = VersionComparison(session, config)
        self._requests = requests
        self._physical_name = physical_name
        self._id = id_
        self._server = server
        self._attempts = requests.progress(physical_name, id_).attempts
        self._rows = 0
        self._reported_at = 0.0

    def done(self) -> BulkAnswer:
        """Does the work; returns the result."""
        if self._attempts >= ATTEMPTS_MAX:
            return BulkAnswer(self._id, _ENDED_THE_JOB)
        self._note(self._attempts + 1)
        try:
            work = self._requests.read(self._physical_name, self._id).work
            if isinstance(work, BulkFold):
                return self._folded(work)
            if isinstance(work, BulkComparison):
                return self._compared(work)
            return self._same(work) if isinstance(work, BulkVersions) else self._filled(work)
        except Exception as error:
            if self._server.stopping or isinstance(error, ReplayStoppedError):
                self._note(self._attempts)  # it did not end the job
            raise

    def _folded(self, work: BulkFold) -> BulkAnswer:
        folder = self._requests.folder(self._physical_name, self._id)
        shutil.rmtree(folder, ignore_errors=True)  # of a job that was killed
        paths = self._engine.entries(work, folder, self._report_progress)
        names = tuple(path.relative_to(folder).as_posix() for path in paths)
        return BulkAnswer(self._id, files=names)

    def _compared(self, work: BulkComparison) -> BulkAnswer:
        found = self._comparison.compared(
            work.plan, work.rows_expected, partial(self._report_progress, 0)
        )
        folder = self._requests.folder(self._physical_name, self._id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / KEYS_FILE).write_bytes(msgspec.json.encode(found.keys))
        return BulkAnswer(
            self._id, files=(KEYS_FILE,), compared=found.rows, withheld=found.withheld
        )

    def _same(self, work: BulkVersions) -> BulkAnswer:
        found = self._versions.compared(work, partial(self._report_progress, 0))
        return BulkAnswer(self._id, differing=found.differing, excluded=dict(found.excluded))

    def _filled(self, work: BulkFill | BulkTopicsFill) -> BulkAnswer:
        if isinstance(work, BulkFill):
            filled = self._engine.fill(work.scan, work.plan, work.part, self._report_progress)
        else:
            filled = self._engine.fill_from_all(
                work.scan, work.plan, work.topics, self._report_progress
            )
        return BulkAnswer(
            self._id,
            upserted=filled.upserted,
            deleted=filled.deleted,
            left=np.asarray(filled.left, np.int64).tobytes(),
            filtered=filled.filtered,
        )

    def _report_progress(self, rows: int) -> None:
        """Records the progress; stops the work if the job stops, or the request was cancelled.

        With 0 rows it always checks, since a write is about to begin.

        Raises:
            ReplayStoppedError: The work must end.
        """
        self._rows += rows
        if rows and time.monotonic() - self._reported_at < _REPORT_EVERY_S:
            return
        if self._server.stopping or not self._requests.counts(self._physical_name, self._id):
            raise ReplayStoppedError("a rebuild's part was stopped", hint="it is begun again")
        if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._note(self._attempts + 1)

    def _note(self, attempts: int) -> None:
        self._reported_at = time.monotonic()
        self._requests.note(self._physical_name, BulkProgress(self._id, attempts, self._rows))


def _why(error: Exception) -> str:
    """Describes an error without any value of a row."""
    if isinstance(error, ProjectionError):
        return ": ".join(filter(None, (error.message, error.detail)))
    return kind_and_place(error)
