"""Background task: a thread of the job beside its queries, during one generation.

Other parts depend on its work: a view reports no position until one is published, and keeps rows
until they are swept. No task may therefore end unnoticed. A task retries known faults itself; after
any other exception it is restarted, and one that cannot continue ends the job, which reports that.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import asdict
from typing import Any, Final

import structlog

from projections.common.fault import Fault, kind_and_place
from projections.errors import AttendantFailedError

FAILURES_MAX: Final = 5
"""Unexpected failures within `CALM_S` after which a task is not restarted."""

CALM_S: Final = 120.0
PAUSE_S: Final = 2.0
_HINT: Final = "headwater logs projections"
_log = structlog.get_logger(__name__)


class BackgroundTask(threading.Thread, ABC):
    """A thread that works until it is stopped.

    Attributes:
        fault: Why it has failed permanently; None if it has not.
        error: The exception before its last restart; None once it has completed a round since.

    Args:
        name: Its name in the log and in the job's status.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.fault: Fault | None = None
        self.error: Fault | None = None
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)
        self._around_at = 0.0
        self._rounds = 0  # since the last restart
        self._stopped = threading.Event()

    @abstractmethod
    def work(self) -> None:
        """Does the work, and calls `rested` between two rounds until that returns true."""

    def run(self) -> None:
        """Works until it is stopped or has failed permanently."""
        while not self._stopped.is_set() and self.fault is None:
            try:
                self.work()
            except Exception as error:  # noqa: BLE001  # the edge of the thread
                self._restart(error)

    def stop(self) -> None:
        """Ends the thread after its present work."""
        self._stopped.set()

    def rested(self, rest_s: float) -> bool:
        """Pauses between two rounds; returns whether to stop."""
        self._around_at = time.time()
        if self._rounds:  # a round is complete
            self.error = None
        self._rounds += 1
        return self._stopped.wait(rest_s)

    def condition(self) -> dict[str, Any]:
        """Returns its state: when it last completed a round, and its error."""
        error = self.fault or self.error
        return {"around_at": self._around_at, "error": None if error is None else asdict(error)}

    def _restart(self, error: Exception) -> None:
        if self._stopped.is_set():
            return  # its resources are closed, too
        self.error = Fault.of(
            AttendantFailedError(
                f"the job's {self.name} fails", detail=kind_and_place(error), hint=_HINT
            )
        )
        self._rounds = 0
        now = time.monotonic()
        self._failures.append(now)
        _log.error("a part of the job is restarted", part=self.name, detail=self.error.detail)
        if len(self._failures) == FAILURES_MAX and now - self._failures[0] < CALM_S:
            self.fault = self.error
            return
        self._stopped.wait(PAUSE_S)
