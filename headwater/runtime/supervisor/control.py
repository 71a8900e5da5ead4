"""Starts, stops and inspects the services of a home folder, for the command line."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foundation import file_lock
from foundation.waiting import looks
from headwater.runtime.errors import (
    ServiceFailedError,
    SettingsDifferError,
    StartTimeoutError,
    StopTimeoutError,
    SupervisorLostError,
)
from headwater.runtime.home import Home, read_json
from headwater.runtime.preflight import make_plan
from headwater.runtime.process import ProcessRecord, end_stale, tail
from headwater.runtime.resolve import resolve_endpoints
from headwater.runtime.status import RuntimeStatus, ServiceState, ServiceStatus, StatusEvent
from headwater.runtime.supervisor.spawn import SupervisorHandle, spawn_supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from headwater.runtime.endpoints import Endpoints
    from headwater.runtime.spec import RuntimeSpec

_POLL_S: Final = 0.05
UP_TIMEOUT_S: Final = 150.0
DOWN_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Awaited:
    """The parts that a start waits for, its deadline and its event callback."""

    on_event: Callable[[StatusEvent], None]
    timeout_s: float
    deadline: float
    parts: frozenset[str]
    commands: bool

    def failed(self, found: RuntimeStatus) -> ServiceStatus | None:
        """Returns a requested part that has failed, if any."""
        return next((service for service in found.failed if service.name in self.parts), None)

    def ready(self, found: RuntimeStatus) -> bool:
        """Returns whether all awaited parts are ready."""
        waited = [
            service
            for service in found.services
            if service.name in self.parts and (self.commands or service.kind != "command")
        ]
        return found.running and all(service.ready for service in waited)


def _ignore(event: StatusEvent) -> None:
    del event


def up(  # noqa: PLR0913  # what a caller may wish of a start
    spec: RuntimeSpec,
    *,
    on_event: Callable[[StatusEvent], None] = _ignore,
    timeout_s: float = UP_TIMEOUT_S,
    progress: bool = True,
    await_commands: bool = True,
    may_fail: Collection[str] = (),
) -> Endpoints:
    """Starts the services of a spec, or joins running ones; returns when all are ready.

    If the start fails or is interrupted, also by Ctrl-C, everything that it started is stopped.

    Args:
        spec: The services to run.
        on_event: Called for every change of a service's state, in this thread.
        timeout_s: Longest wait for all services, in seconds, without downloads of jars.
        progress: Whether to show downloads on stderr.
        await_commands: Whether to wait for the commands as well as the services. Must be False if a
            command becomes ready only after a later step of the caller.
        may_fail: Commands that may be in state ``failed``.

    Raises:
        SettingsDifferError: Other settings already run in this folder.
        PortTakenError: A port that the spec names is in use.
        DiskNearlyFullError: There is too little free disk space.
        ExternalUnreachableError: A server that the spec names does not answer.
        ServiceFailedError: A service could not be started.
        StartTimeoutError: Not everything answered in time.
        SupplyError: Java or a jar is missing or damaged.
    """
    home = Home(spec.home.resolve())
    home.create()
    deadline = time.monotonic() + timeout_s
    parts = frozenset(spec.fingerprints()) - frozenset(may_fail)
    awaited = _Awaited(on_event, timeout_s, deadline, parts, commands=await_commands)
    while True:
        with _exclusive(home) as lock:
            if lock is not None:
                handle = _spawn(home, spec, lock, progress=progress)
                return _started(home, spec, handle, awaited)
        found = status(home.root)
        if found is not None and found.running:
            return _join(home, spec, found, awaited)
        # Another process holds the lock and has written no status: it is starting, or will fail and
        # release the lock.
        if time.monotonic() > deadline:
            raise StartTimeoutError("another start in this folder has not finished")
        time.sleep(_POLL_S)


def down(home: Path, timeout_s: float = DOWN_TIMEOUT_S) -> bool:
    """Stops everything in order, then kills the processes that remain.

    Args:
        home: The ``.headwater`` folder.
        timeout_s: Longest wait for an ordered stop, in seconds.

    Returns:
        Whether a process had to be stopped.

    Raises:
        StopTimeoutError: A process still runs.
    """
    place = Home(home.resolve())
    record = ProcessRecord.from_json(read_json(place.pid_file("supervisor")))
    stopped = False
    if record is not None and record.send(signal.SIGTERM):
        stopped = True
        if not record.wait_gone(timeout_s):
            # Its children end as well: the kernel signals them.
            record.send(signal.SIGKILL)
            if not record.wait_gone(5.0):
                raise StopTimeoutError("the supervisor did not stop", detail=f"pid {record.pid}")
        with contextlib.suppress(ChildProcessError):
            os.waitpid(record.pid, os.WNOHANG)
    for pid_file in _pid_files(place):
        stopped = end_stale(pid_file) is not None or stopped
    return stopped


def suspend(home: Path, names: Collection[str], timeout_s: float = DOWN_TIMEOUT_S) -> list[str]:
    """Stop commands in order and keep them from running until an ``up`` that names them.

    Everything else goes on. Also a command that ended, or that gave up, is not started again.

    Args:
        home: The ``.headwater`` folder.
        names: Commands; those that the supervisor does not have are left out.
        timeout_s: Longest wait, seconds.

    Returns:
        The commands among them that ran.

    Raises:
        StopTimeoutError: One still runs.
    """
    place = Home(home.resolve())
    before = status(home)
    if before is None or not before.running:
        return []
    wanted = [s for s in before.services if s.name in names and s.kind == "command"]
    for service in wanted:
        place.suspended_file(service.name).touch(mode=0o600)
    left = [service.name for service in wanted]
    for _ in looks(timeout_s, _POLL_S):
        now = status(home)
        shown = now.services if now is not None and now.running else ()  # none outlives it
        left = [s.name for s in shown if s.name in left and s.state is not ServiceState.SUSPENDED]
        if not left:
            return [s.name for s in wanted if s.state is not ServiceState.SUSPENDED]
    raise StopTimeoutError(
        f"{left[0]} did not stop", detail=f"after {timeout_s:.0f} s", hint="headwater down"
    )


def _resume(home: Home, names: Collection[str]) -> None:
    for name in names:
        home.suspended_file(name).unlink(missing_ok=True)


def status(home: Path) -> RuntimeStatus | None:
    """Returns the status of a home folder; None if no service ever ran in it."""
    return RuntimeStatus.from_json(read_json(Home(home.resolve()).status))


def endpoints(spec: RuntimeSpec) -> Endpoints:
    """Returns the addresses of the services of a spec, after their start."""
    return resolve_endpoints(spec)


def log_path(home: Path, name: str) -> Path:
    """Returns the log file of a service, a command, or ``supervisor``."""
    return Home(home.resolve()).log(name)


def _pid_files(home: Home) -> list[Path]:
    return sorted(home.run.glob("*.pid")) if home.run.is_dir() else []


@contextmanager
def _exclusive(home: Home) -> Iterator[int | None]:
    """Yields the locked file descriptor of the home folder, or None if the lock is held."""
    # The supervisor inherits the open file and the lock, so closing it here does not release it.
    with file_lock.opened(home.lock, 0o600) as descriptor:
        yield descriptor if file_lock.try_lock(descriptor) else None


def _spawn(home: Home, spec: RuntimeSpec, lock: int, *, progress: bool) -> SupervisorHandle:
    for pid_file in _pid_files(home):
        end_stale(pid_file)
    _resume(home, [path.stem for path in home.run.glob("*.suspended")])
    home.status.unlink(missing_ok=True)
    return spawn_supervisor(home, make_plan(home, spec, progress=progress), lock)


def _started(
    home: Home,
    spec: RuntimeSpec,
    handle: SupervisorHandle,
    awaited: _Awaited,
) -> Endpoints:
    try:
        _wait_ready(home, handle, awaited)
    except BaseException:
        handle.cut()
        down(home.root)
        raise
    if not spec.lifeline:
        handle.detach()
    return resolve_endpoints(spec)


def _join(
    home: Home,
    spec: RuntimeSpec,
    running: RuntimeStatus,
    awaited: _Awaited,
) -> Endpoints:
    wanted = spec.fingerprints()
    # Other services may run too, but the requested ones must run with the requested settings.
    differ = sorted(n for n, digest in wanted.items() if digest != running.settings.get(n))
    if differ:
        raise SettingsDifferError(
            "services already run in this folder with other settings",
            detail=f"{home.root}: {', '.join(differ)}",
            hint="run headwater down, then start again",
        )
    _resume(home, wanted)
    _wait_ready(home, None, awaited)
    return resolve_endpoints(spec)


def _wait_ready(
    home: Home,
    handle: SupervisorHandle | None,
    awaited: _Awaited,
) -> None:
    began = time.monotonic()
    shown: dict[str, ServiceStatus] = {}
    while True:
        found = status(home.root)
        elapsed_s = time.monotonic() - began
        for service in found.services if found else ():
            before = shown.get(service.name)
            shown[service.name] = service
            if before is None or before.state is not service.state:
                awaited.on_event(StatusEvent(service, elapsed_s))
        if found is not None:
            failed = awaited.failed(found)
            if failed is not None:
                raise _failure(home, failed)
            if awaited.ready(found):
                return
        if (found is not None and not found.running) or (handle is not None and handle.ended()):
            raise SupervisorLostError(
                "the supervisor ended while services were starting",
                detail=tail(home.log("supervisor"), 5),
                hint=f"see {home.log('supervisor')}",
            )
        if time.monotonic() > awaited.deadline:
            slow = [s.name for s in shown.values() if s.state != "ready"]
            raise StartTimeoutError(
                f"some services were not ready within {awaited.timeout_s:.0f} s",
                detail=", ".join(slow) or None,
                hint=f"see the logs in {home.logs}",
            )
        time.sleep(_POLL_S)


def _failure(home: Home, service: ServiceStatus) -> ServiceFailedError:
    last = tail(home.log(service.name), 8)
    return ServiceFailedError(
        f"{service.name} could not be started",
        detail="\n".join(part for part in (service.last_error, last) if part),
        hint=f"see {home.log(service.name)}",
    )
