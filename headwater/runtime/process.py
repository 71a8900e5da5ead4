"""One child process: in its own session, with a pid file and a capped log, never orphaned."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from foundation.atomic_file import write_atomically
from foundation.waiting import wait_until
from headwater.runtime.home import read_json
from headwater.runtime.identity import OURSELVES, Identity, launcher

if TYPE_CHECKING:
    from collections.abc import Mapping

_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Launch:
    """How to run a program.

    Attributes:
        argv: Program and arguments.
        env: Changes to this process's environment; None removes a variable.
        cwd: Working folder; by default that of this process.
        identity: User as which it runs.
        stop_signal: Signal that requests an ordered end.
        death_signal: Signal that the kernel sends when the supervisor dies.
        stop_timeout_s: Time between ``stop_signal`` and SIGKILL.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    cwd: Path | None = None
    identity: Identity = OURSELVES
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    stop_timeout_s: float = 15.0


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The identity of a process, which detects that its pid was reused.

    Attributes:
        pid: Process id.
        start_time: Kernel ticks between boot and the process's start.
        boot_id: Id of the boot; ticks of different boots cannot be compared.
        name: Name of the service or command.
    """

    pid: int
    start_time: int
    boot_id: str
    name: str

    @classmethod
    def of(cls, pid: int, name: str) -> Self | None:
        """Returns the record of a running process; None if no process has that id."""
        ticks = _start_time(pid)
        return None if ticks is None else cls(pid, ticks, _boot_id(), name)

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """Reads a record from a file; None if it contains none."""
        if not isinstance(value, dict):
            return None
        try:
            return cls(
                int(value["pid"]),
                int(value["start_time"]),
                str(value["boot_id"]),
                str(value["name"]),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> dict[str, int | str]:
        """As a JSON object."""
        return {
            "pid": self.pid,
            "start_time": self.start_time,
            "boot_id": self.boot_id,
            "name": self.name,
        }

    def alive(self) -> bool:
        """Whether this process, not another one with the same pid, still runs."""
        return self.boot_id == _boot_id() and _start_time(self.pid) == self.start_time

    def send(self, number: signal.Signals, *, group: bool = False) -> bool:
        """Signal the process, or its whole group, if it is still the recorded one."""
        if not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            if group and os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
            return True
        return False

    def wait_gone(self, timeout_s: float) -> bool:
        """Waits for its end; returns False if it still runs after the timeout."""
        return wait_until(lambda: not self.alive(), timeout_s, _POLL_S)


class ManagedProcess:
    """A running child with its pid file; created by :meth:`start` only."""

    def __init__(
        self, popen: subprocess.Popen[bytes], record: ProcessRecord, launch: Launch, pid_file: Path
    ) -> None:
        self._popen = popen
        self._pid_file = pid_file
        self.record = record
        self.launch = launch

    @classmethod
    def start(cls, name: str, launch: Launch, *, log: Path, pid_file: Path) -> Self:
        """Start the program and write its pid file.

        Raises:
            OSError: The program could not be started.
        """
        command = launcher(launch.argv, identity=launch.identity, death_signal=launch.death_signal)
        # In append mode, the child writes at the new end after its log was truncated.
        with log.open("ab") as output:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=launch.cwd,
                env=child_environment(launch.env),
                start_new_session=True,
            )
        record = ProcessRecord.of(popen.pid, name)
        if record is None:  # pragma: no cover  # unreaped children keep their entry
            popen.kill()
            raise OSError(f"{name} ended while starting")
        write_atomically(pid_file, json.dumps(record.to_json()), mode=0o600, durable=False)
        return cls(popen, record, launch, pid_file)

    @property
    def pid(self) -> int:
        """Process id, also the id of its process group."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Exit code after its end, negative for a signal; kills the rest of its process group."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        # Not reaped yet, so no other process group can have its id.
        self._kill_group()
        code = self._popen.wait()
        self._pid_file.unlink(missing_ok=True)
        return code

    def ask_to_stop(self) -> None:
        """Send the stop signal."""
        if self.poll() is None:
            self._popen.send_signal(self.launch.stop_signal)

    def kill(self) -> None:
        """Kills it and its process group."""
        if self.poll() is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Returns this process's environment with changes, for a child."""
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def end_stale(pid_file: Path, *, timeout_s: float = 10.0) -> ProcessRecord | None:
    """Kills a process that an earlier supervisor left behind, and deletes its pid file.

    A process that reuses the pid is not killed.

    Returns:
        The killed process, if any.
    """
    record = ProcessRecord.from_json(read_json(pid_file))
    ended = None
    if record is not None and record.send(signal.SIGTERM, group=True):
        ended = record
        if not record.wait_gone(timeout_s / 2):
            record.send(signal.SIGKILL, group=True)
            record.wait_gone(timeout_s / 2)
    pid_file.unlink(missing_ok=True)
    return ended


def cap_log(log: Path, bytes_max: int) -> bool:
    """Moves a log that exceeds its cap to ``<name>.1``; returns whether it did.

    The log is copied and truncated, not renamed, because the writing process keeps its open file.
    """
    try:
        if log.stat().st_size <= bytes_max:
            return False
        with log.open("rb") as source, log.with_name(f"{log.name}.1").open("wb") as target:
            source.seek(-bytes_max, os.SEEK_END)
            shutil.copyfileobj(source, target)
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def tail(log: Path, lines: int = 20, bytes_max: int = 16_384) -> str:
    """Returns the last lines of a log; empty without a log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - bytes_max))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The command name may contain spaces and parentheses; the fields follow the last parenthesis.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
