"""Kills a component while traffic runs, and measures its recovery."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil

from foundation.waiting import looks
from headwater.demo.errors import ChaosError
from headwater.demo.result import Recovery
from headwater.platform.specs import JOB

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.platform.platform import Platform
    from headwater.runtime import ServiceStatus

_BACK_S: Final = 240.0
_CAUGHT_UP_S: Final = 300.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Chaos:
    """One kill -9.

    Attributes:
        stack: The platform.
        component: `kafka`, `connect`, `spark` (the driver's JVM), or `spark-worker-1` of a cluster.
        say: Reports each step.
    """

    stack: Platform
    component: str
    say: Callable[[str], None]

    def strike(self, traffic_began: float) -> Recovery:
        """Kills the component, then waits until it has restarted and the views have caught up.

        Args:
            traffic_began: Value of `time.monotonic` when traffic began.

        Raises:
            ChaosError: The component does not run, or does not restart.
            UnhealthyError: The views do not catch up.
        """
        before = self._service()
        if before is None or before.pid is None:
            raise ChaosError(f"{self.component} does not run, so it cannot be killed")
        pid = _driver_of(before.pid) if self.component == "spark" else before.pid
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.say(f"[yellow]killed[/]   {self.component}, kill -9 of pid {pid}")
        self._await_back(before)
        back_after_s = time.monotonic() - killed_at
        self.say(f"[yellow]back[/]     {self.component}, after {back_after_s:.1f} s")
        self.stack.await_applied(self.stack.current_lsn(), _CAUGHT_UP_S)
        caught_up_after_s = time.monotonic() - killed_at
        self.say(f"[yellow]caught up[/] after {caught_up_after_s:.1f} s")
        return Recovery(
            self.component,
            pid,
            round(killed_at - traffic_began, 1),
            round(back_after_s, 1),
            round(caught_up_after_s, 1),
        )

    def _service(self) -> ServiceStatus | None:
        found = self.stack.status()
        return (
            found.service(JOB if self.component == "spark" else self.component) if found else None
        )

    def _await_back(self, before: ServiceStatus) -> None:
        for _ in looks(_BACK_S, _POLL_S):
            now = self._service()
            if now is not None and now.restarts > before.restarts and now.state == "ready":
                return
        raise ChaosError(
            f"{self.component} did not restart", detail=f"within {_BACK_S:.0f} s of its kill"
        )


def _driver_of(pid: int) -> int:
    """Returns the child JVM of the job's Python process, which runs Spark's driver."""
    try:
        below = psutil.Process(pid).children(recursive=True)
        found = [child.pid for child in below if child.name() == "java"]
    except psutil.Error:
        found = []
    return found[0] if found else pid
