"""The job: one Spark driver that keeps all views of a source in all their stores."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from cdc.broker import topics
from cdc.broker.errors import BrokerError
from projections import loss
from projections.errors import ProjectionError, TopicsMissingError
from projections.fault import Fault
from projections.sinks.lock import WriterLock
from projections.spark.progress import JobState, QueryProgress, write_status
from projections.spark.publisher import Publisher
from projections.spark.query import (
    ARCHIVE,
    committed_offsets,
    prepare_store,
    start_archive,
    start_query,
)
from projections.spark.session import start_session
from projections.spark.supervisor import SupervisedQuery
from projections.view import Store

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from projections.frontier import Offsets
    from projections.spec import JobSpec

TOPICS_WAIT_S: Final = 300.0
_TICK_S: Final = 0.25
_STATUS_S: Final = 0.5
_log = structlog.get_logger(__name__)


def run(spec: JobSpec) -> int:
    """Keeps the views until told to stop by SIGTERM or SIGINT, or until a query is given up.

    Returns:
        0 after SIGTERM, 130 after SIGINT, 1 if a query was given up; the status file says why.

    Raises:
        WriterLockedError: Another job keeps the views of this home.
    """
    with WriterLock(spec.home / "tables" / ".writer.lock", wait=False):
        return _Job(spec).run()


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
        self._queries: dict[str, SupervisedQuery] = {}
        self._error: Fault | None = None

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._tell()
        session = start_session(self._spec)
        publisher = Publisher(self._spec, self._committed)
        try:
            self._await_topics()
            self._define(session)
            publisher.start()
            self._watch()
        except ProjectionError as error:
            self._error = Fault.of(error)
        finally:
            self._stop.set()
            self._state = JobState.FAILED if self._error else JobState.STOPPED
            self._tell()
            publisher.stop()
            for query in self._queries.values():
                query.stop()
            _end(session)
        if self._error is not None:
            _log.error("job gave up", code=self._error.code, what=self._error.message)
            return 1
        return 130 if self._signal == signal.SIGINT else 0

    def _define(self, session: SparkSession) -> None:
        for store in (Store.CACHE, Store.SEARCH, Store.TABLE):
            if self._spec.plans_in(store):
                self._add(store, lambda store=store: self._start_store(session, store))
        self._add(ARCHIVE, lambda: start_archive(session, self._spec))

    def _add(self, name: str, start: Any) -> None:
        self._queries[str(name)] = SupervisedQuery(
            str(name), start, QueryProgress(), lambda: self._loss(name)
        )

    def _loss(self, query: str) -> Fault | None:
        error = loss.find(self._spec, query)
        return None if error is None else Fault.of(error)

    def _start_store(self, session: SparkSession, store: Store) -> StreamingQuery:
        prepare_store(session, self._spec, store)
        return start_query(session, self._spec, store, self._queries[store].progress.record)

    def _watch(self) -> None:
        """Lets every query be tended, and tells how they are, until there is a reason to end."""
        for query in self._queries.values():
            threading.Thread(
                target=query.run, args=(self._stop,), name=query.name, daemon=True
            ).start()
        while not self._stop.wait(_STATUS_S):
            given_up = next((query.fault for query in self._queries.values() if query.fault), None)
            if given_up is not None:
                self._error = given_up
                return
            if self._state is JobState.STARTING and all(
                query.query is not None for query in self._queries.values()
            ):
                self._ready()
            self._tell()

    def _ready(self) -> None:
        self._state = JobState.READY
        if self._spec.ready_file is not None:
            self._spec.ready_file.parent.mkdir(parents=True, exist_ok=True)
            self._spec.ready_file.write_text("ready\n")

    def _await_topics(self) -> None:
        """Waits until the topics exist: Spark refuses a subscription that matches none."""
        wanted = frozenset(topic for plan in self._spec.plans for topic in plan.topics)
        deadline = time.monotonic() + TOPICS_WAIT_S
        while not self._stop.is_set() and not self._exists(wanted):
            if time.monotonic() > deadline:
                raise TopicsMissingError(
                    "topics of the views do not exist",
                    detail=f"{len(wanted)} topics wanted, after {TOPICS_WAIT_S:.0f} s",
                    hint="the connector makes them; headwater source status says how it is",
                )
            self._stop.wait(_TICK_S)

    def _exists(self, wanted: frozenset[str]) -> bool:
        try:
            return wanted <= topics.names(self._spec.bootstrap)
        except BrokerError:
            return False  # the broker may still be starting

    def _committed(self, store: Store) -> Offsets | None:
        supervised = self._queries.get(store)
        query = supervised.query if supervised else None
        return committed_offsets(query) if query is not None else None

    def _tell(self) -> None:
        progress = {}
        for name, query in self._queries.items():
            running = query.query
            query.progress.running = running is not None
            last = running.lastProgress if running is not None else None
            if last is not None:
                query.progress.phases_ms = dict(last.durationMs)
            progress[name] = query.progress
        write_status(self._spec.status_file, self._state, progress, self._error)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signal = number
        self._stop.set()
