"""A job in a process of its own, forked where its modules are loaded: that takes five seconds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

    from projections.planning.job_spec import JobSpec


class JobProcess:
    """Runs a job; what it prints goes to `job.log` in its home.

    Attributes:
        pid: Its number.
    """

    def __init__(self, spec: JobSpec) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["projections.job.driver"])
        spec.config.home.mkdir(parents=True, exist_ok=True)
        self._process = context.Process(target=_run, args=(spec, {**os.environ}))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs; negative where a signal ended it."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for its end and returns its exit code."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            assert timeout_s is not None
            raise subprocess.TimeoutExpired("job", timeout_s)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to it alone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills it as hard as can be."""
        self._process.kill()


def _run(spec: JobSpec, environment: dict[str, str]) -> None:
    os.setsid()
    # the server that forks has the environment in which its first job was started, of another test
    os.environ.clear()
    os.environ.update(environment)
    log = os.open(Path(spec.config.home) / "job.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    from projections.job import driver

    sys.exit(driver.run(spec))
