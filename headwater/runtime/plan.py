"""The plan of a supervisor: everything that its caller decides before the start.

The caller sends it through a pipe and never writes it to disk, because addresses of external
services and environments of commands may contain passwords.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headwater.runtime.home import Home
from headwater.runtime.servers.connect import HEAP_MB as CONNECT_HEAP_MB
from headwater.runtime.servers.connect import Connect
from headwater.runtime.servers.java_server import JavaProgram
from headwater.runtime.servers.kafka import HEAP_MB as KAFKA_HEAP_MB
from headwater.runtime.servers.kafka import Kafka
from headwater.runtime.servers.opensearch import HEAP_MB as SEARCH_HEAP_MB
from headwater.runtime.servers.opensearch import OpenSearch
from headwater.runtime.servers.postgres import MEMORY_MB as POSTGRES_MEMORY_MB
from headwater.runtime.servers.postgres import Postgres
from headwater.runtime.servers.spark import SparkMaster, SparkWorker
from headwater.runtime.servers.valkey import MEMORY_MB as CACHE_MEMORY_MB
from headwater.runtime.servers.valkey import Valkey
from headwater.runtime.spec import (
    HOST,
    SPARK_MASTER,
    CommandSpec,
    External,
    RuntimeSpec,
    ServiceName,
    SparkCluster,
    Spawned,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.runtime.service import SpawnedService

START_ORDER = (
    # The slowest chain first: the loop starts units in this order.
    ServiceName.KAFKA,
    ServiceName.POSTGRES,
    ServiceName.SEARCH,
    ServiceName.CONNECT,
    ServiceName.CACHE,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The services to run, with ports, Java and jars.

    Attributes:
        spec: The requested services.
        ports: Chosen ports by name.
        java: The ``java`` executable, if any service needs it.
        jars: Class path of each jar environment.
        spark_archive: Archive of Spark's classes, if one was made.
        settings: Digests of the caller's settings, to compare with a later start.
    """

    spec: RuntimeSpec
    ports: Mapping[str, int]
    java: Path | None
    jars: Mapping[str, tuple[Path, ...]]
    spark_archive: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """As one line of JSON."""
        spec = self.spec
        return json.dumps(
            {
                "home": str(spec.home),
                "services": {
                    str(name): {"kind": type(service).__name__, **asdict(service)}
                    for name, service in spec.services.items()
                },
                "commands": [asdict(command) for command in spec.commands],
                "spark": asdict(spec.spark) if spec.spark else None,
                "log_bytes_max": spec.log_bytes_max,
                "ports": dict(self.ports),
                "java": self.java,
                "spark_archive": self.spark_archive,
                "settings": dict(self.settings),
                "jars": {env: list(map(str, jars)) for env, jars in self.jars.items()},
            },
            default=str,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read back what ``to_json`` wrote."""
        value = json.loads(text)
        spec = RuntimeSpec(
            home=Path(value["home"]),
            services={ServiceName(n): _service(s) for n, s in value["services"].items()},
            commands=tuple(_command(command) for command in value["commands"]),
            spark=SparkCluster(**value["spark"]) if value["spark"] else None,
            log_bytes_max=value["log_bytes_max"],
        )
        java, archive = (
            Path(value[key]) if value[key] else None for key in ("java", "spark_archive")
        )
        jars = {env: tuple(map(Path, paths)) for env, paths in value["jars"].items()}
        return cls(spec, value["ports"], java, jars, archive, value["settings"])

    def services(self) -> list[SpawnedService]:
        """The servers to run, in start order."""
        spawned = self.spec.spawned
        servers = [self._build(name, spawned[name]) for name in START_ORDER if name in spawned]
        return [*servers, *self._spark()]

    def _spark(self) -> list[SpawnedService]:
        cluster = self.spec.spark
        if cluster is None:
            return []
        home, program = Home(self.spec.home), self._program("spark", self.spark_archive)
        port, page_port = self.ports[SPARK_MASTER], self.ports[f"{SPARK_MASTER}-page"]
        master = SparkMaster(home, port, page_port, program)
        return [
            master,
            *(
                SparkWorker(home, name, self.ports[name], master, cluster)
                for name in cluster.worker_names
            ),
        ]

    def _build(self, name: ServiceName, wanted: Spawned) -> SpawnedService:
        home = Home(self.spec.home)
        port = self.ports[name]
        memory = wanted.memory_mb
        match name:
            case ServiceName.POSTGRES:
                return Postgres(home, port, memory or POSTGRES_MEMORY_MB)
            case ServiceName.KAFKA:
                controller = self.ports["kafka-controller"]
                program = self._program("kafka")
                return Kafka(home, port, controller, program, memory or KAFKA_HEAP_MB)
            case ServiceName.CONNECT:
                program = self._program("kafka")
                heap = memory or CONNECT_HEAP_MB
                return Connect(home, port, self._bootstrap(), program, self._before_connect(), heap)
            case ServiceName.SEARCH:
                transport = self.ports["opensearch-transport"]
                program = self._program("opensearch")
                return OpenSearch(home, port, transport, program, memory or SEARCH_HEAP_MB)
            case ServiceName.CACHE:
                return Valkey(home, port, memory or CACHE_MEMORY_MB)

    def _program(self, env: str, archive: Path | None = None) -> JavaProgram:
        if self.java is None:
            raise ValueError(f"{env} needs a Java runtime")
        return JavaProgram(self.java, self.jars[env], archive)

    def _bootstrap(self) -> str:
        kafka = self.spec.services.get(ServiceName.KAFKA)
        if isinstance(kafka, External):
            return kafka.address
        return f"{HOST}:{self.ports[ServiceName.KAFKA]}"

    def _before_connect(self) -> tuple[str, ...]:
        return (ServiceName.KAFKA,) if ServiceName.KAFKA in self.spec.spawned else ()


def _service(value: dict[str, Any]) -> External | Spawned:
    if value["kind"] == "External":
        return External(value["address"])
    return Spawned(value["port"], value["memory_mb"])


def _command(value: dict[str, Any]) -> CommandSpec:
    return CommandSpec(
        **{
            **value,
            "argv": tuple(value["argv"]),
            "depends_on": tuple(value["depends_on"]),
            "final_exit_codes": tuple(value["final_exit_codes"]),
            "ready_file": Path(value["ready_file"]) if value["ready_file"] else None,
            "cwd": Path(value["cwd"]) if value["cwd"] else None,
        }
    )
