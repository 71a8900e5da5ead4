"""WarmJvm: a JVM of Spark that outlives the job that uses it, and serves the next one.

A job of a few tables spends most of its processor time on loading and compiling Spark's classes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from projections.job.spark.session import settings

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import Popen

    from projections.planning.job_config import JobConfig

_END_S = 30.0


class WarmJvm:
    """One JVM for the jobs of a process, which use it one after the other.

    Args:
        log: File that receives what the JVM prints.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: Popen[bytes] | None = None
        self._address: dict[str, str] = {}
        self._used = False

    def take(self, config: JobConfig) -> dict[str, str] | None:
        """Returns the environment of a driver that is to use the JVM; None while another does.

        A driver that is not given back ends it: see `discard`.
        """
        if self._used or not config.local:
            return None
        if self._process is None:
            self._launch(config)
        self._used = True
        return self._address

    def give_back(self) -> None:
        """Lets another driver use the JVM: the one before has ended its Spark context."""
        self._used = False

    def discard(self) -> None:
        """Ends the JVM; the next driver that takes it gets another."""
        process, self._process, self._used = self._process, None, False
        if process is None:
            return
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()  # it ends with this pipe
        process.kill()
        process.wait(_END_S)

    def _launch(self, config: JobConfig) -> None:
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(settings(config).items()))
        with self._log.open("ab") as log:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
        parameters = gateway.java_parameters
        self._process = gateway.proc
        self._address = {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }
        gateway.close()
