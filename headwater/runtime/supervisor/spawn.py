"""Starts a supervisor, detached from its starter and the terminal except for one pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import headwater
from headwater.runtime.supervisor.supervisor import DETACH

if TYPE_CHECKING:
    from headwater.runtime.home import Home
    from headwater.runtime.plan import Plan

# The caller may run from a source tree that is not installed, in any folder.
_CODE: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from headwater.runtime.supervisor.supervisor import main; main()"
)
_ROOT: Final = str(Path(headwater.__file__).parents[1])


class SupervisorHandle:
    """The starter's end of the lifeline."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self._pipe: int | None = pipe

    def ended(self) -> bool:
        """Whether the supervisor has ended."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def detach(self) -> None:
        """Lets the supervisor outlive this process."""
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, DETACH)
            self.cut()

    def cut(self) -> None:
        """Closes the pipe; unless detached before, the supervisor stops everything."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def spawn_supervisor(home: Home, plan: Plan, lock: int) -> SupervisorHandle:
    """Starts a supervisor that inherits the home folder's lock and reads its plan from a pipe.

    Without :meth:`SupervisorHandle.detach`, it ends with this process.
    """
    reader, writer = os.pipe()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(home.log("supervisor"), flags, 0o600)
    try:
        os.set_inheritable(lock, True)
        # Not subprocess: a Popen object would report a running supervisor as a leak.
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", _CODE, _ROOT, "headwater-supervisor", str(home.root)],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reader, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
        )
    finally:
        os.set_inheritable(lock, False)
        os.close(reader)
        os.close(log)
    handle = SupervisorHandle(pid, writer)
    with os.fdopen(os.dup(writer), "w", encoding="utf-8") as pipe:
        pipe.write(plan.to_json() + "\n")
    return handle
