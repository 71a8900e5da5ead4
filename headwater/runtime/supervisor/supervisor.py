"""The supervisor: a separate process that keeps the services of one home folder running.

It reads its plan from standard input. That pipe remains open as its lifeline: if the starter ends
without having written ``detach``, the pipe closes and the supervisor stops everything. It inherits
the exclusive lock on the home folder from the starter, so no second supervisor can start meanwhile.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import structlog

from foundation.atomic_file import write_atomically
from headwater.runtime.external import WatchedService, external_services
from headwater.runtime.home import Home
from headwater.runtime.plan import Plan
from headwater.runtime.process import ProcessRecord, cap_log
from headwater.runtime.spec import ServiceName
from headwater.runtime.status import RuntimeStatus, ServiceState, ServiceStatus
from headwater.runtime.supervisor.unit import Unit, of_command, of_service

if TYPE_CHECKING:
    from types import FrameType

_log = structlog.get_logger(__name__)

DETACH: Final = b"detach\n"
_TICK_S: Final = 0.1
_CALM_S: Final = 1.0
"""Pause while no program is starting; the end of a program interrupts it."""

_HOUSEKEEPING_S: Final = 3.0
_RESTS: Final = 200
"""Interval between measurements of memory, as a multiple of the processor time of one."""

_STOP_ORDER: Final = (
    (ServiceName.CONNECT, ServiceName.SEARCH, ServiceName.CACHE),
    (ServiceName.KAFKA,),
    (ServiceName.POSTGRES,),
)


class Supervisor:
    """Runs a plan until it is asked to stop."""

    def __init__(self, plan: Plan, lifeline: int) -> None:
        self._plan = plan
        self._home = Home(plan.spec.home)
        self._lifeline: int | None = lifeline
        self._stopping = False
        self._shown: tuple[ServiceStatus, ...] = ()
        self._measure_at = 0.0
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="probe")
        programs = [of_service(service) for service in plan.services()]
        programs += [of_command(command) for command in plan.spec.commands]
        self._units = [Unit(program, self._home, self._pool) for program in programs]
        externals = external_services(plan.spec)
        self._externals = [WatchedService(service, self._pool) for service in externals]
        record = ProcessRecord.of(os.getpid(), "supervisor")
        assert record is not None  # noqa: S101  # we are alive
        self._record = record

    def run(self) -> None:
        """Starts everything, supervises it until a stop is requested, and stops it in order."""
        self._home.pid_file("supervisor").write_text(json.dumps(self._record.to_json()))
        wake = self._listen_for_signals()
        housekeeping_at = 0.0
        while not self._stopping:
            self._step()
            if time.monotonic() >= housekeeping_at:
                self._housekeeping()
                housekeeping_at = time.monotonic() + _HOUSEKEEPING_S
            self._write_status()
            self._wait(wake)
        _log.info("stopping")
        self._stop_all()
        self._pool.shutdown(cancel_futures=True)
        self._write_status()
        self._home.pid_file("supervisor").unlink(missing_ok=True)

    def _step(self) -> None:
        for external in self._externals:
            external.step()
        ready = {unit.name for unit in self._units if unit.state is ServiceState.READY}
        ready |= {e.name for e in self._externals if e.state is ServiceState.READY}
        for unit in self._units:
            unit.step(ready)

    def _wait(self, wake: socket.socket) -> None:
        watched: list[int | socket.socket] = [wake]
        if self._lifeline is not None:
            watched.append(self._lifeline)
        calm = all(unit.settled for unit in self._units)
        readable, _, _ = select.select(watched, [], [], _CALM_S if calm else _TICK_S)
        if wake in readable:
            wake.recv(4096)
        if self._lifeline in readable:
            self._read_lifeline()

    def _read_lifeline(self) -> None:
        assert self._lifeline is not None  # noqa: S101  # only called while it is open
        said = os.read(self._lifeline, 4096)
        if not said:
            _log.warning("the starter ended", effect="everything is stopped")
            self._stopping = True
        os.close(self._lifeline)
        self._lifeline = None

    def _listen_for_signals(self) -> socket.socket:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # A handler is needed so that the death of a child interrupts the wait.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return reader

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stopping = True

    def _stop_all(self) -> None:
        by_name = {unit.name: unit for unit in self._units}
        # A command may depend on an earlier one, never on a later one.
        groups = [[u] for u in reversed(self._units) if u.program.kind == "command"]
        if self._plan.spec.spark is not None:
            master, *workers = self._plan.spec.spark.names
            groups += [[by_name[name] for name in workers], [by_name[master]]]
        groups += [[by_name[n] for n in names if n in by_name] for names in _STOP_ORDER]
        for group in groups:
            self._stop_group(group)

    def _stop_group(self, group: list[Unit]) -> None:
        for unit in group:
            unit.ask_to_stop()
        deadlines = {unit.name: time.monotonic() + unit.stop_timeout_s for unit in group}
        left = list(group)
        while left:
            left = [unit for unit in left if not unit.stopped()]
            for unit in left:
                if time.monotonic() > deadlines[unit.name]:
                    _log.warning("service did not stop in time", service=unit.name)
                    unit.kill()
            self._write_status()
            time.sleep(_TICK_S / 5 if left else 0)

    def _housekeeping(self) -> None:
        cap = self._plan.spec.log_bytes_max
        for unit in self._units:
            if cap_log(self._home.log(unit.name), cap):
                _log.info("log cut", service=unit.name, bytes_max=cap)
        cap_log(self._home.log("supervisor"), cap)
        if time.monotonic() >= self._measure_at:
            self._measure()

    def _measure(self) -> None:
        # who asks the supervisor something imports this module, and need not have psutil
        from headwater.runtime.memory import tree_rss_bytes  # noqa: PLC0415

        began_s = time.thread_time()
        for unit in self._units:
            if unit.process is not None:
                unit.rss_bytes = tree_rss_bytes(unit.process.pid)
        self._measure_at = time.monotonic() + _RESTS * (time.thread_time() - began_s)

    def _write_status(self) -> None:
        shown = tuple(unit.status() for unit in self._units)
        shown += tuple(external.status() for external in self._externals)
        if shown == self._shown:
            return
        self._shown = shown
        status = RuntimeStatus(
            running=True,
            supervisor=self._record,
            settings=dict(self._plan.settings),
            services=shown,
            written_at=time.time(),
        )
        write_atomically(
            self._home.status, json.dumps(status.to_json(), indent=1), mode=0o600, durable=False
        )


def main() -> None:
    """Reads the plan and runs it."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    lifeline = sys.stdin.fileno()
    plan = Plan.from_json(_read_line(lifeline))
    Supervisor(plan, lifeline).run()


def _read_line(fd: int) -> str:
    # Byte by byte, so that no byte after the line is consumed: those belong to the lifeline.
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(fd, 65_536)
        if not chunk:
            sys.exit(1)
        line += chunk
    return line.decode()


if __name__ == "__main__":
    main()
