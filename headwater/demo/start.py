"""The first half of the demo: starts the platform and waits until the job maintains the views."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.markup import escape

from headwater.demo.errors import WorkloadError
from headwater.demo.result import Startup
from headwater.demo.task import Task
from headwater.runtime import ServiceName, ServiceState

if TYPE_CHECKING:
    from headwater.demo.screen import Screen
    from headwater.demo.workload import Workload
    from headwater.platform.platform import Platform
    from headwater.runtime import StatusEvent

_FIRST_CHANGE_S: Final = 120.0
_BUILT_S: Final = 300.0
_JOB_READY_S: Final = 240.0
_POLL_S: Final = 0.2
_MARKS: Final = {
    ServiceState.READY: "[green]●[/]",
    ServiceState.RESTARTING: "[yellow]◐[/]",
    ServiceState.FAILED: "[red]✗[/]",
}


class _AbandonedError(Exception):
    """The start failed, so steps that wait for it end."""


@dataclass(frozen=True, slots=True)
class DemoStart:
    """Starts the servers in parallel; each step of the capture begins as early as possible.

    Attributes:
        stack: The platform.
        workload: The workload to load.
        scale: Its scale.
        screen: Shows each step.
    """

    stack: Platform
    workload: Workload
    scale: float
    screen: Screen

    def run(self) -> Startup:
        """Returns when the job maintains the views.

        Raises:
            HeadwaterError: A service did not start.
            CdcError: The source cannot be captured.
        """
        postgres, connect, abandoned = threading.Event(), threading.Event(), threading.Event()
        seen = {ServiceName.POSTGRES.value: postgres, ServiceName.CONNECT.value: connect}

        def on_event(event: StatusEvent) -> None:
            service = event.service
            if service.state in _MARKS:
                self.screen.say(f"{_MARKS[service.state]} {service.name}")
            if service.state is ServiceState.READY and service.name in seen:
                seen[service.name].set()

        def capture() -> float:
            _await(postgres, abandoned)
            self._load()
            _await(connect, abandoned)
            return self._capture()

        capturing = Task(capture)
        try:
            with self.screen.waiting(
                "Postgres, Kafka, Connect, OpenSearch, Valkey and Spark start"
            ):
                self.stack.start(on_event)
                services_ready_s = self.screen.elapsed_s()
                # an external source causes no event
                postgres.set()
                connect.set()
                first_change_s = capturing.result()
        finally:
            abandoned.set()
        with self.screen.waiting("Spark reads the first changes and builds the views"):
            self.stack.await_job(_JOB_READY_S)
            job_ready_s = self.screen.elapsed_s()
            self.screen.say("[green]●[/] Spark")
            self.stack.await_applied(self.stack.current_lsn(), _BUILT_S)
        self.screen.say("[green]✓[/] every view is built")
        return Startup(round(services_ready_s, 1), round(first_change_s, 1), round(job_ready_s, 1))

    def _load(self) -> None:
        self.stack.ensure_database()
        rows = self.workload.prepare(self.stack.source_dsn, self.scale)
        self.screen.say(f"[cyan]loaded[/] {self.workload.title}, {rows:,} rows")

    def _capture(self) -> float:
        changes = self.stack.apply()
        topics = sum("topic" in change for change in changes)
        count = len(self.stack.project.source.tables)
        self.screen.say(
            f"[cyan]capture[/] of {count} tables: publication, {topics} topics, connector"
        )
        first = self.stack.first_change(_FIRST_CHANGE_S)
        if first is None:
            raise WorkloadError("no change was captured", detail=f"within {_FIRST_CHANGE_S:.0f} s")
        at_s = self.screen.elapsed_s()
        what = "snapshot row" if first.snapshot else first.operation.name.lower()
        self.screen.say(f"[cyan]first change event[/] {what} of {escape(str(first.table))}")
        return at_s


def _await(event: threading.Event, abandoned: threading.Event) -> None:
    while not event.wait(_POLL_S):
        if abandoned.is_set():
            raise _AbandonedError
