"""A job in a process of its own, forked where its modules are loaded: that takes five seconds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from typing import Any

    from pyspark.sql import SparkSession

    from projections.common.driver_lock import DriverToken
    from projections.planning.job_spec import JobSpec


class JobProcess:
    """Runs a job; what it prints goes to `job.log` in its home.

    Args:
        spec: The job.
        jvm: Variables that name the JVM to use; without them the job starts its own.

    Attributes:
        pid: Its number.
    """

    def __init__(self, spec: JobSpec, jvm: Mapping[str, str] | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["projections.job.driver"])
        spec.config.home.mkdir(parents=True, exist_ok=True)
        self._process = context.Process(target=_run, args=(spec, {**os.environ, **(jvm or {})}))
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

    sys.exit(_run_in_turn(spec) if "PYSPARK_GATEWAY_PORT" in environment else driver.run(spec))


def _run_in_turn(spec: JobSpec) -> int:
    """Runs a job in a JVM that goes on, and releases the lock that otherwise ends with the JVM."""
    from projections.job import driver
    from projections.job.spark.session import hold

    locks: list[Any] = []

    def held(session: SparkSession, driver_token: DriverToken) -> Any:
        locks.append(hold(session, driver_token))
        return locks[-1]

    with patch.object(driver, "hold", held):
        code = driver.run(spec)
    for lock in locks:
        lock.close()
    return code
