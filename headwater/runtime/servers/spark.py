"""A Spark standalone cluster on loopback: one master and its workers, as the package ships them."""

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
"""Master and workers only start others and watch them."""

_SCALA: Final = "2.13"
"""What Spark's scripts find out by looking at its jars; executors are not started without it."""

_WORKER_SILENT_S: Final = 20
"""A worker that is not heard from is given up; a master that comes back waits as long for those
that it knew."""


def folder() -> Path:
    """Where the package pyspark lies, which is Spark's home; it is found without loading it.

    Raises:
        ServerMissingError: It is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    for place in (found.submodule_search_locations or []) if found else []:
        return Path(place)
    raise ServerMissingError("Spark is not installed", hint="pip install 'headwater[platform]'")


def class_path() -> Path:
    """All of Spark's jars, as Java takes them.

    Raises:
        ServerMissingError: The package is not installed.
    """
    return folder() / "jars" / "*"


@dataclass(frozen=True, slots=True)
class SparkMaster:
    """A master of ours.

    What it knows of workers and jobs is on disk, so that one that was killed and comes back goes on
    with both.

    Attributes:
        home: Whose folder holds what it knows.
        port: Loopback port for workers and drivers.
        page_port: Loopback port of its page, which says how it is.
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
        """Where drivers and workers reach it."""
        return f"spark://{HOST}:{self.port}"

    def prepare(self) -> None:
        """Make the folder of what it knows."""
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
                # whoever reaches that port has programs run
                "-Dspark.master.rest.enabled=false",
            ),
        )
        return Launch(argv=argv, env=_environment())

    def answers(self, timeout_s: float) -> bool:
        """Whether it takes jobs."""
        return self.said(timeout_s).get("status") == "ALIVE"

    def said(self, timeout_s: float) -> Mapping[str, object]:
        """Returns what it says of itself; nothing if it does not answer."""
        found = get_json(f"http://{HOST}:{self.page_port}", "/json/", timeout_s)
        return found if isinstance(found, dict) else {}

    @property
    def _data(self) -> Path:
        return self.home.data(self.name)


@dataclass(frozen=True, slots=True)
class SparkWorker:
    """A worker of ours: it starts an executor for each job, in a process of its own.

    Attributes:
        home: Whose folder holds what its executors write.
        name: Its name among the supervised programs.
        port: Loopback port.
        master: Whose worker it is.
        cluster: What it has to give.
    """

    depends_on: ClassVar[tuple[str, ...]] = (SPARK_MASTER,)

    home: Home
    name: str
    port: int
    master: SparkMaster
    cluster: SparkCluster

    @property
    def address(self) -> str:
        """Where the master reaches it."""
        return f"{HOST}:{self.port}"

    def prepare(self) -> None:
        """Make its working folder."""
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
                # jars and logs of executors that ended
                "-Dspark.worker.cleanup.enabled=true",
                "-Dspark.worker.cleanup.appDataTtl=3600",
            ),
        )
        return Launch(argv=argv, env=_environment())

    def answers(self, timeout_s: float) -> bool:
        """Whether the master counts on it."""
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
