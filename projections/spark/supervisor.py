"""Supervision of one query: started, watched, started again, and given up after a bound."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from projections.fault import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

    from projections.spark.progress import QueryProgress

FAILURES_MAX: Final = 8
"""Failures in a row after which a query is given up: about a minute and a half of trying."""

_WAITS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_UNKNOWN_CODE: Final = "HW-P025"


@dataclass(slots=True)
class SupervisedQuery:
    """A query and what became of it.

    Attributes:
        name: Its name: a store, or `archive`.
        start: Starts it.
        progress: Its batches so far.
        query: It, while it runs.
        fault: Why it is given up; None while it is not.
    """

    name: str
    start: Callable[[], StreamingQuery]
    progress: QueryProgress
    query: StreamingQuery | None = None
    fault: Fault | None = None
    _failures: int = 0
    _due_at: float = 0.0
    _batches_at_start: int = field(default=-1)

    def tend(self) -> bool:
        """Starts the query if it is due, notices whether it has failed.

        Returns:
            Whether something changed that is worth telling.
        """
        if self.fault is not None:
            return False
        if self.query is None:
            return time.monotonic() >= self._due_at and self._start()
        if self.progress.batches > self._batches_at_start:
            self._failures = 0
            self.progress.error = None
        if self.query.isActive:
            return False
        error = self.query.exception()
        self.query = None
        self._failed(str(error))
        return True

    def stop(self) -> None:
        """Stops the query; what it was at is done again at the next start."""
        if self.query is None:
            return
        # one that does not stop in time is stopped by the end of the JVM
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            self.query.stop()
        self.query = None

    def _start(self) -> bool:
        self._batches_at_start = self.progress.batches
        try:
            self.query = self.start()
        except PySparkException as error:
            self._failed(str(error))
        return True

    def _failed(self, text: str) -> None:
        self._failures += 1
        fault = Fault.find(text) or Fault(
            _UNKNOWN_CODE, f"query {self.name} fails", _first_line(text), "see the job's log", True
        )
        self.progress.error = fault
        if not fault.retriable or self._failures >= FAILURES_MAX:
            self.fault = fault
        self._due_at = time.monotonic() + _WAITS_S[min(self._failures, len(_WAITS_S)) - 1]


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else ""
