"""A Spark standalone cluster on loopback, from the package pyspark: a master and its workers."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from headwater.runtime.errors import ServerMissingError
from headwater.runtime.probe import get_json
from headwater.runtime.process import Launch
from headwater.runtime.servers.java_server import JAVA_ENV
from headwater.runtime.spec import HOST, SPARK_MASTER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.runtime.home import Home
    from headwater.runtime.servers.java_server import JavaProgram
    from headwater.runtime.spec import SparkCluster

_HEAP_MB: Final = 160
"""Heap of master and workers, which only start and monitor other processes."""

_SCALA: Final = "2.13"
"""The Scala version, which Spark's scripts derive from its jars; executors require it."""

_WORKER_SILENT_S: Final = 20
"""Seconds without a heartbeat after which the master drops a worker; a restarted master waits as
long for its known workers."""


def folder() -> Path:
    """Returns the folder of the package pyspark, which is Spark's home, without importing it.

    Raises:
        ServerMissingError: The package is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    for place in (found.submodule_search_locations or []) if found else []:
        return Path(place)
    raise ServerMissingError("Spark is not installed", hint="pip install 'headwater[platform]'")


def class_path() -> tuple[Path, ...]:
    """Returns the class path that Spark's launcher gives drivers and executors.

    The class archive can be used only with the class path that it was made with.

    Raises:
        ServerMissingError: The package is not installed.
    """
    jars = folder() / "jars"
    return folder() / "conf", *sorted(jars.glob("slf4j-api-*.jar")), jars / "*"


@dataclass(frozen=True, slots=True)
class SparkMaster:
    """A spawned master.

    Its recovery state is on disk, so a restarted master keeps its workers and jobs.

    Attributes:
        home: Home folder, which holds its recovery state.
        port: Loopback port for workers and drivers.
        page_port: Loopback port of its web interface, which reports its status.
        program: Java and jars.
    """

    name: ClassVar[str] = SPARK_MASTER
    depends_on: ClassVar[tuple[str, ...]] = ()

    home: Home
    port: int
    page_port: int
    program: JavaProgram

    @property
    def address(self) -> str:
        """Address for drivers and workers."""
        return f"spark://{HOST}:{self.port}"

    def prepare(self) -> None:
        """Creates the folder of its recovery state."""
        self._data.mkdir(parents=True, exist_ok=True)

    def launch(self) -> Launch:
        """How to start it."""
        argv = self.program.command(
            "org.apache.spark.deploy.master.Master",
            *("--host", HOST, "--port", str(self.port), "--webui-port", str(self.page_port)),
            heap_mb=_HEAP_MB,
            options=(
                "-Dspark.deploy.recoveryMode=FILESYSTEM",
                f"-Dspark.deploy.recoveryDirectory={self._data}",
                f"-Dspark.worker.timeout={_WORKER_SILENT_S}",
                # a client of that port could run programs
                "-Dspark.master.rest.enabled=false",
            ),
        )
        return Launch(argv=argv, env=_environment())

    def answers(self, timeout_s: float) -> bool:
        """Whether it accepts jobs."""
        return self.said(timeout_s).get("status") == "ALIVE"

    def said(self, timeout_s: float) -> Mapping[str, object]:
        """Returns its status; empty if it does not answer."""
        found = get_json(f"http://{HOST}:{self.page_port}", "/json/", timeout_s)
        return found if isinstance(found, dict) else {}

    @property
    def _data(self) -> Path:
        return self.home.data(self.name)


@dataclass(frozen=True, slots=True)
class SparkWorker:
    """A spawned worker, which starts one executor process per job.

    Attributes:
        home: Home folder, which holds the files of its executors.
        name: Its name among the supervised programs.
        port: Loopback port.
        master: The master of its cluster.
        cluster: Cores and memory of each worker.
    """

    depends_on: ClassVar[tuple[str, ...]] = (SPARK_MASTER,)

    home: Home
    name: str
    port: int
    master: SparkMaster
    cluster: SparkCluster

    @property
    def address(self) -> str:
        """Its address for the master."""
        return f"{HOST}:{self.port}"

    def prepare(self) -> None:
        """Creates its working folder."""
        self._data.mkdir(parents=True, exist_ok=True)

    def launch(self) -> Launch:
        """How to start it."""
        argv = self.master.program.command(
            "org.apache.spark.deploy.worker.Worker",
            *("--host", HOST, "--port", str(self.port), "--webui-port", "0"),
            *("--cores", str(self.cluster.cores), "--memory", f"{self.cluster.memory_mb}m"),
            *("--work-dir", str(self._data), self.master.address),
            heap_mb=_HEAP_MB,
            options=(
                f"-Dspark.worker.timeout={_WORKER_SILENT_S}",
                # deletes jars and logs of ended executors
                "-Dspark.worker.cleanup.enabled=true",
                "-Dspark.worker.cleanup.appDataTtl=3600",
            ),
        )
        return Launch(argv=argv, env=_environment())

    def answers(self, timeout_s: float) -> bool:
        """Whether the master lists it as alive."""
        workers = self.master.said(timeout_s).get("workers")
        return isinstance(workers, list) and any(
            worker.get("port") == self.port and worker.get("state") == "ALIVE" for worker in workers
        )

    @property
    def _data(self) -> Path:
        return self.home.data(self.name)


def _environment() -> Mapping[str, str | None]:
    return {
        **JAVA_ENV,
        "SPARK_HOME": str(folder()),
        "SPARK_SCALA_VERSION": _SCALA,
        # pages listen where this says, and else everywhere
        "SPARK_LOCAL_IP": HOST,
        # a user's settings for another cluster
        "SPARK_CONF_DIR": None,
        "HADOOP_CONF_DIR": None,
        "YARN_CONF_DIR": None,
    }
