"""Supervises one query: starts it, restarts it after failures, and gives it up if nothing helps.

A store that does not answer blocks only its own query: the query is restarted every few seconds
until the store is back. An unknown error is retried only a few times.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psycopg
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from cdc.errors import CdcError
from cdc.postgres.errors import PostgresUnavailableError
from projections.common.fault import Fault, kind_and_place
from projections.errors import (
    ProjectionError,
    QueryFailedError,
    ReplayStoppedError,
    SparkEndedError,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

    from projections.job.status import QueryProgress

FAILURES_MAX: Final = 8
"""Consecutive failures without an error code after which a query is given up."""

_WAITS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_TICK_S: Final = 0.2
_UNKNOWN_CODE: Final = QueryFailedError.code
_SPARK_CODE: Final = SparkEndedError.code
_LOG_HINT: Final = "headwater logs projections"
_ERROR_TEXT: Final = re.compile(
    r"((?:\b[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error))(: \[[A-Z][A-Z0-9_.]+\])?: ?.*"
)
"""A Java error with its condition, and the text that follows."""
_SOURCE_AWAY: Final = "the source does not answer"
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class SupervisedQuery:
    """A query and its state.

    Attributes:
        name: Its name: a store, or `archive`.
        start: Starts it.
        progress: Its batches so far.
        explain: Returns a cause that Spark's message does not contain; None if there is none.
        query: The running query; None while it is down.
        fault: Why it was given up; None if it was not.
    """

    name: str
    start: Callable[[], StreamingQuery]
    progress: QueryProgress
    explain: Callable[[], Fault | None] = lambda: None
    query: StreamingQuery | None = None
    fault: Fault | None = None
    _failures: int = 0
    _due_at: float = 0.0
    _batches_at_start: int = field(default=-1)

    def run(self, stopped: threading.Event) -> None:
        """Supervises the query until stopped, or until it is given up.

        Each query has its own thread, so a slow store delays only its own query.
        """
        try:
            while not stopped.wait(_TICK_S) and self.fault is None:
                self._tend()
        except (Py4JError, OSError) as error:
            if not stopped.is_set():
                self.fault = Fault(_SPARK_CODE, "Spark has ended", _kind(error), _LOG_HINT, True)

    def _tend(self) -> None:
        if self.query is None:
            if time.monotonic() >= self._due_at:
                self._start()
            return
        if self.progress.batches > self._batches_at_start:
            self._failures = 0
            self.progress.error = None
        if not self.query.isActive:
            error = self.query.exception()
            self.query = None
            self._failed(str(error))

    def stop(self) -> None:
        """Stops the query; an unfinished batch is repeated at the next start."""
        if self.query is None:
            return
        # a query that does not stop in time ends with the JVM
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            self.query.stop()
        self.query = None

    def _start(self) -> None:
        self._batches_at_start = self.progress.batches
        try:
            self.query = self.start()
            _log.info("query runs", query=self.name)
        except ReplayStoppedError:
            _log.info("query is not started: its loads were stopped", query=self.name)
        except PySparkException as error:
            self._failed(str(error))
        except (CdcError, ProjectionError) as error:
            self._failed_by(Fault.of(error))
        except psycopg.Error as error:  # the source went away while a connection was in use
            detail = error.sqlstate or _kind(error)
            self._failed_by(Fault.of(PostgresUnavailableError(_SOURCE_AWAY, detail=detail)))
        except (Py4JError, OSError):
            raise  # Spark has ended
        except Exception as error:  # noqa: BLE001  # otherwise the thread would end silently
            self._failed_by(self._unknown(kind_and_place(error)))

    def _failed(self, text: str) -> None:
        self._failed_by(Fault.find(text) or self.explain() or self._unknown(_first_line(text)))

    def _unknown(self, detail: str) -> Fault:
        return Fault(_UNKNOWN_CODE, f"query {self.name} fails", detail, _LOG_HINT, True)

    def _failed_by(self, fault: Fault) -> None:
        self._failures += 1
        self.progress.error = fault
        wait_s = _WAITS_S[min(self._failures, len(_WAITS_S)) - 1]
        self._due_at = time.monotonic() + wait_s
        _log.warning(
            "query failed",
            query=self.name,
            code=fault.code,
            reason=fault.message,
            failures=self._failures,
            again_in_s=wait_s,
        )
        unknown = fault.code == _UNKNOWN_CODE
        if not fault.retriable or (unknown and self._failures >= FAILURES_MAX):
            self.fault = fault


def _kind(error: Exception) -> str:
    return type(error).__name__


def _first_line(text: str) -> str:
    """Returns the first line, without the texts of errors, which may contain a value of a row."""
    lines = [line for line in text.splitlines() if line.strip()]
    return _ERROR_TEXT.sub(r"\1\2", lines[0])[:300] if lines else ""
