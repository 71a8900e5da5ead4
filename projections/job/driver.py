"""The job: one Spark driver that maintains all views of a source in all their stores."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from cdc.broker.errors import BrokerError
from cdc.broker.topics import topics
from cdc.errors import CdcError
from projections.common import spark_checkpoint
from projections.common.driver_lock import sole_driver
from projections.common.fault import Fault
from projections.definition.views import Store
from projections.errors import ProjectionError, TopicsMissingError
from projections.job import backfill, store_recovery
from projections.job.generation import Generation
from projections.job.schema_watch import TableWatch
from projections.job.spark import cluster
from projections.job.spark.session import hold, start_session
from projections.job.status import JobState, JobStatus
from projections.versions import handover

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pyspark.sql import SparkSession

    from projections.job.status import QueryProgress
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec

TOPICS_WAIT_S: Final = 300.0
_TICK_S: Final = 0.25
_STATUS_S: Final = 0.5
_BIND_S: Final = 2.0
_log = structlog.get_logger(__name__)


def begin(config: JobConfig) -> SparkSession:
    """Starts Spark; `run` joins it. The status file reports a failed start.

    Raises:
        ClusterError: The cluster cannot be used.
    """
    before = JobStatus.error_in(config.status_file)
    JobStatus(JobState.STARTING, before).write(config.status_file)
    try:
        return start_session(config)
    except ProjectionError as error:
        JobStatus(JobState.FAILED, Fault.of(error)).write(config.status_file)
        raise


def run(spec: JobSpec) -> int:
    """Maintains the views until SIGTERM or SIGINT, or until a query fails for good.

    Returns:
        0 after SIGTERM, 130 after SIGINT, 1 if a query failed; the status file says why.

    Raises:
        WriterLockedError: Another driver maintains the views of this home, or a process that it
            left behind might still write.
        ClusterError: The cluster cannot be used.
    """
    with sole_driver(
        spec.config.home, spec.config.source if spec.config.shares_home else None
    ) as driver_token:
        spec.config.derived_file.unlink(
            missing_ok=True
        )  # the previous job may have maintained other views
        return _Job(replace(spec, driver_token=driver_token)).run()


def _end(session: SparkSession) -> None:
    # a signal to the whole process group may have ended the JVM before us
    with contextlib.suppress(Py4JError, OSError):
        session.stop()


class _Job:
    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._stop = threading.Event()
        self._signal = 0
        self._state = JobState.STARTING
        self._progress: dict[str, QueryProgress] = {}
        self._tables = TableWatch(spec)
        self._epoch = store_recovery.epoch_of(spec.config)
        self._generation: Generation | None = None
        self._error: Fault | None = None
        self._held: object = None
        self._executors: cluster.ExecutorWatch | None = None
        self._mark: str | None = None

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        session = begin(self._spec.config)
        try:
            # held until this process ends
            self._held = (
                None if self._spec.driver_token is None else hold(session, self._spec.driver_token)
            )
            self._meet_executors(session)
            while not self._stop.is_set() and self._error is None:
                self._run_generation(session)
        except ProjectionError as error:
            self._error = Fault.of(error)
        finally:
            self._stop.set()
            self._state = JobState.FAILED if self._error else JobState.STOPPED
            self._report()
            if self._generation is not None:
                self._generation.end()
            self._tables.close()
            self._epoch.close()
            _end(session)
        if self._error is not None:
            _log.error("job gave up", code=self._error.code, reason=self._error.message)
            return 1
        return 130 if self._signal == signal.SIGINT else 0

    def _meet_executors(self, session: SparkSession) -> None:
        """Checks executors on other machines, now and while the job runs."""
        config = self._spec.config
        if config.local:
            return
        self._mark = cluster.shared(session, config.addresses.tables, config.source)
        self._executors = cluster.ExecutorWatch(session)

    def _run_generation(self, session: SparkSession) -> None:
        """Maintains the views until the job ends, or until they must be bound again."""
        spec = self._patiently(self._tables.bind)
        if spec is None:
            return
        self._await_topics(spec)
        spec = self._patiently(partial(self._admitted, spec))
        if spec is None:
            return
        epoch = self._epoch if spec.plans_in(Store.CACHE) else None
        spec = replace(spec, mark=self._mark)
        generation = self._generation = Generation(
            session, spec, self._tables, self._progress, epoch
        )
        generation.start()
        self._watch(generation)
        if not self._stop.is_set() and self._error is None:
            generation.end()
            generation.wait()

    def _admitted(self, spec: JobSpec) -> JobSpec:
        with spec.writing():
            spark_checkpoint.adopt(spec.config.checkpoint(Store.TABLE).parent)
            spec = handover.checked(spec)
            spec = store_recovery.prepared(store_recovery.recovered(spec, self._epoch))
            return backfill.admitted(spec)

    def _patiently(self, bind: Callable[[], JobSpec]) -> JobSpec | None:
        """Binds the views once the source answers; returns None if the job stops before."""
        while not self._stop.is_set():
            try:
                return bind()
            except (psycopg.Error, CdcError) as error:
                _log.warning("views cannot be bound yet", error=type(error).__name__)
                self._stop.wait(_BIND_S)
        return None

    def _watch(self, generation: Generation) -> None:
        """Writes the status of the queries, until there is a reason to end the generation."""
        while not self._stop.wait(_STATUS_S):
            self._error = generation.fault
            if self._error is not None:
                return
            if self._spec.driver_token is not None:
                self._spec.driver_token.check()
            if self._state is JobState.STARTING and generation.running:
                self._ready()
            self._report()
            if self._executors is not None:
                self._executors.check()
            if self._tables.look():
                _log.info("tables have changed, views are bound again")
                return
            if self._epoch.lost.is_set():
                return

    def _ready(self) -> None:
        self._state = JobState.READY
        if self._spec.config.ready_file is not None:
            self._spec.config.ready_file.parent.mkdir(parents=True, exist_ok=True)
            self._spec.config.ready_file.write_text("ready\n")

    def _await_topics(self, spec: JobSpec) -> None:
        """Waits until the topics exist: Spark refuses a subscription that matches none."""
        wanted = frozenset(topic for plan in spec.plans for topic in plan.topics)
        deadline = time.monotonic() + TOPICS_WAIT_S
        while not self._stop.is_set() and not self._exists(wanted):
            if time.monotonic() > deadline:
                raise TopicsMissingError(
                    "topics of the views do not exist",
                    detail=f"{len(wanted)} topics wanted, after {TOPICS_WAIT_S:.0f} s",
                    hint="the connector creates them: headwater source status shows its state",
                )
            self._stop.wait(_TICK_S)

    def _exists(self, wanted: frozenset[str]) -> bool:
        try:
            return wanted <= topics.names(self._spec.config.bootstrap)
        except BrokerError:
            return False  # the broker may still be starting

    def _report(self) -> None:
        queries = {} if self._generation is None else self._generation.queries
        for name, progress in self._progress.items():
            if name not in queries:  # all its views are paused
                progress.running, progress.error = False, None
                progress.backlog.clear()
        for query in queries.values():
            running = query.query
            query.progress.running = running is not None
            if running is None:
                query.progress.backlog.clear()  # the time until it runs again is no rate
            # expensive: Spark converts all offsets to text, which is parsed here
            wanted = running is not None and query.progress.phases_wanted
            last = running.lastProgress if running is not None and wanted else None
            if last is not None:
                query.progress.time_spent(last)
        generation = self._generation
        status = JobStatus(
            self._state,
            self._error,
            self._progress,
            paused=() if generation is None else generation.spec.paused,
            attendants={}
            if generation is None
            else {a.name: a.condition() for a in generation.background_tasks},
        )
        status.write(self._spec.config.status_file)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signal = number
        self._stop.set()
