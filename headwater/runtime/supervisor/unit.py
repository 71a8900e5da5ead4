"""The life cycle of one supervised program: prepare, start, probe, restart, stop."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import structlog

from headwater.errors import HeadwaterError
from headwater.runtime.ports import holder, is_free
from headwater.runtime.process import Launch, ManagedProcess
from headwater.runtime.service import PROBE_TIMEOUT_S, READY_TIMEOUT_S, SpawnedService
from headwater.runtime.status import ServiceState, ServiceStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from concurrent.futures import Executor, Future

    from headwater.runtime.home import Home
    from headwater.runtime.spec import CommandSpec

_log = structlog.get_logger(__name__)

RESTART_WINDOW_S: Final = 600.0
RESTARTS_MAX: Final = 5
_FIRST_STARTS_MAX: Final = 2
"""Restarts of a service that has never answered; its log names the cause."""

_PROBE_EVERY_S: Final = 0.15
_BACKOFF_FIRST_S: Final = 0.2
_BACKOFF_MAX_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a unit.

    Attributes:
        name: Unique; names its log and pid file.
        kind: ``service`` or ``command``.
        launch: Prepares the program and returns how to start it; may take seconds.
        probe: Returns whether it is ready, given a timeout and its start time (seconds since 1970);
            None if it is ready immediately.
        depends_on: Names of the units that must be ready first.
        address: Its address.
        port: Loopback port.
        start_timeout_s: Longest time from start to ready.
        restarts_max: Restarts allowed within ten minutes.
        final_exit_codes: Exit codes after which it is not restarted.
    """

    name: str
    kind: str
    launch: Callable[[], Launch]
    probe: Callable[[float, float], bool] | None
    depends_on: tuple[str, ...] = ()
    address: str | None = None
    port: int | None = None
    start_timeout_s: float = READY_TIMEOUT_S
    restarts_max: int = RESTARTS_MAX
    final_exit_codes: tuple[int, ...] = ()


def of_service(service: SpawnedService) -> Program:
    """Returns the program of a server."""

    def launch() -> Launch:
        if not is_free(service.port):
            who = holder(service.port) or "a process that cannot be seen"
            raise OSError(errno.EADDRINUSE, f"port {service.port} is in use by {who}")
        service.prepare()
        return service.launch()

    return Program(
        name=service.name,
        kind="service",
        launch=launch,
        probe=lambda timeout_s, _started_at: service.answers(timeout_s),
        depends_on=service.depends_on,
        address=service.address,
        port=service.port,
    )


def of_command(command: CommandSpec) -> Program:
    """Returns the program of a command."""
    ready_file = command.ready_file

    def probe(_timeout_s: float, started_at: float) -> bool:
        try:
            return ready_file is not None and ready_file.stat().st_mtime >= started_at
        except OSError:
            return False

    def launch() -> Launch:
        return Launch(
            argv=command.argv,
            env=command.env,
            cwd=command.cwd,
            stop_timeout_s=command.stop_timeout_s,
        )

    return Program(
        name=command.name,
        kind="command",
        launch=launch,
        probe=probe if ready_file is not None else None,
        depends_on=command.depends_on,
        start_timeout_s=command.start_timeout_s,
        restarts_max=command.restarts_max,
        final_exit_codes=command.final_exit_codes,
    )


class _Phase(Enum):
    WAITING = auto()
    PREPARING = auto()
    PROBING = auto()
    READY = auto()
    BACKING_OFF = auto()
    SUSPENDED = auto()
    ENDED = auto()


@dataclass
class Unit:
    """A program under supervision; only the supervisor's main thread uses it.

    The main thread starts every process, because the kernel ends a child when the *thread* that
    started it ends. Blocking work (preparing, probing) runs in the thread pool.
    """

    program: Program
    home: Home
    pool: Executor
    state: ServiceState = ServiceState.STARTING
    since: float = field(default_factory=time.time)
    restarts: int = 0
    last_error: str | None = None
    rss_bytes: int | None = None
    process: ManagedProcess | None = None
    _phase: _Phase = _Phase.WAITING
    _launching: Future[Launch] | None = None
    _probing: Future[bool] | None = None
    _next_at: float = 0.0
    _deadline: float = 0.0
    _started_at: float = 0.0
    _deaths: list[float] = field(default_factory=list)
    _was_ready: bool = False

    @property
    def name(self) -> str:
        """Name of the program."""
        return self.program.name

    @property
    def settled(self) -> bool:
        """Whether it needs no work until it ends, or is asked to stop."""
        if self._phase is _Phase.SUSPENDED:
            return self.state is ServiceState.SUSPENDED
        return self._phase in {_Phase.READY, _Phase.ENDED}

    def step(self, ready: Collection[str]) -> None:
        """Does due work; never blocks."""
        if self.program.kind == "command" and self.home.suspended_file(self.name).exists():
            self._suspend()
        elif self._phase is _Phase.SUSPENDED:
            self._resume()
        else:
            self._advance(ready)

    def _advance(self, ready: Collection[str]) -> None:
        match self._phase:
            case _Phase.WAITING:
                if all(name in ready for name in self.program.depends_on):
                    self._prepare()
            case _Phase.PREPARING:
                self._start_if_prepared()
            case _Phase.PROBING:
                if not self._ended_by_itself():
                    self._probe()
            case _Phase.READY:
                self._ended_by_itself()
            case _Phase.BACKING_OFF:
                if time.monotonic() >= self._next_at:
                    self._prepare()
            case _Phase.SUSPENDED | _Phase.ENDED:
                pass

    def ask_to_stop(self) -> None:
        """Begins an ordered stop, after which it is not restarted."""
        self._phase = _Phase.ENDED
        if self.process is not None:
            self.process.ask_to_stop()

    def stopped(self) -> bool:
        """Whether it has ended after :meth:`ask_to_stop`."""
        if self._launching is not None and self._launching.running():
            return False
        if self.process is not None and self.process.poll() is None:
            return False
        if self.state is not ServiceState.FAILED:
            self._enter(ServiceState.STOPPED)
        return True

    def kill(self) -> None:
        """Kills it."""
        if self.process is not None:
            self.process.kill()

    @property
    def stop_timeout_s(self) -> float:
        """Longest time of an ordered stop, in seconds."""
        return self.process.launch.stop_timeout_s if self.process else 5.0

    def status(self) -> ServiceStatus:
        """Returns its status."""
        running = self.process is not None and self.process.poll() is None
        return ServiceStatus(
            name=self.name,
            state=self.state,
            kind=self.program.kind,
            pid=self.process.pid if self.process and running else None,
            address=self.program.address,
            port=self.program.port,
            rss_bytes=self.rss_bytes if running else None,
            restarts=self.restarts,
            since=self.since,
            last_error=self.last_error,
        )

    def _enter(self, state: ServiceState) -> None:
        if state is not self.state:
            self.state = state
            self.since = time.time()
            _log.info("service changed state", service=self.name, state=str(state))

    def _suspend(self) -> None:
        if self._phase is not _Phase.SUSPENDED:
            self._deadline = time.monotonic() + self.stop_timeout_s
            self._phase = _Phase.SUSPENDED
            if self.process is not None:
                self.process.ask_to_stop()
        if self.process is None or self.process.poll() is not None:
            self._enter(ServiceState.SUSPENDED)
        elif time.monotonic() > self._deadline:
            _log.warning("service did not stop in time", service=self.name)
            self.process.kill()

    def _resume(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self._suspend()  # it was asked to end and has not yet
            return
        self._deaths, self._was_ready, self.last_error = [], False, None
        self._phase = _Phase.WAITING
        self._enter(ServiceState.STARTING)

    def _prepare(self) -> None:
        self._launching = self.pool.submit(self.program.launch)
        self._phase = _Phase.PREPARING

    def _start_if_prepared(self) -> None:
        if self._launching is None or not self._launching.done():
            return
        try:
            launch = self._launching.result()
            self._started_at = time.time()
            self.process = ManagedProcess.start(
                self.name,
                launch,
                log=self.home.log(self.name),
                pid_file=self.home.pid_file(self.name),
            )
        except HeadwaterError as error:
            self._fail(f"{error.code}: {error.message}: {error.detail}")
        except OSError as error:
            self._died(f"could not be started: {error.strerror or error}")
        else:
            self._deadline = time.monotonic() + self.program.start_timeout_s
            self._next_at = 0.0
            self._probing = None
            self._phase = _Phase.PROBING

    def _probe(self) -> None:
        if self.program.probe is None:
            self._become_ready()
            return
        now = time.monotonic()
        if self._probing is not None and self._probing.done():
            answered = self._probing.exception() is None and self._probing.result()
            self._probing = None
            self._next_at = now + _PROBE_EVERY_S
            if answered:
                self._become_ready()
                return
        if self._probing is None and now >= self._next_at:
            self._probing = self.pool.submit(self.program.probe, PROBE_TIMEOUT_S, self._started_at)
        if now > self._deadline and self.process is not None:
            self.process.kill()
            self._died(f"did not answer within {self.program.start_timeout_s:.0f} s")

    def _become_ready(self) -> None:
        self._was_ready = True
        self._phase = _Phase.READY
        self._enter(ServiceState.READY)

    def _ended_by_itself(self) -> bool:
        code = self.process.poll() if self.process is not None else None
        if code is None:
            return False
        if code in self.program.final_exit_codes:
            self._fail(_how(code))
        else:
            self._died(_how(code))
        return True

    def _died(self, reason: str) -> None:
        now = time.monotonic()
        self.last_error = reason
        _log.warning("service died", service=self.name, reason=reason)
        self._deaths = [at for at in self._deaths if now - at < RESTART_WINDOW_S] + [now]
        allowed = self.program.restarts_max if self._was_ready else _FIRST_STARTS_MAX
        if len(self._deaths) > min(allowed, self.program.restarts_max):
            self._fail(f"{reason}; died {len(self._deaths)} times")
            return
        self.restarts += 1
        wait_s = min(_BACKOFF_FIRST_S * 3 ** (len(self._deaths) - 1), _BACKOFF_MAX_S)
        self._next_at = now + wait_s
        self._phase = _Phase.BACKING_OFF
        self._enter(ServiceState.RESTARTING)

    def _fail(self, reason: str) -> None:
        self.last_error = reason
        self._phase = _Phase.ENDED
        _log.error("service failed for good", service=self.name, reason=reason)
        self._enter(ServiceState.FAILED)


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
