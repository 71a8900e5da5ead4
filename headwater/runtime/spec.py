"""What shall run: the caller's wish, as plain values."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOST: Final = "127.0.0.1"
"""Spawned services listen on loopback only."""

SPARK_MASTER: Final = "spark-master"
"""Name of the cluster's master among the supervised programs."""

DISK_FREE_MIN_BYTES: Final = 2 * 1024**3
"""Kafka stops its broker on a full disk; Postgres stops on full WAL. Refuse well before."""


class ServiceName(StrEnum):
    """The servers of one Headwater."""

    POSTGRES = "postgres"
    KAFKA = "kafka"
    CONNECT = "connect"
    SEARCH = "opensearch"
    CACHE = "valkey"


@dataclass(frozen=True, slots=True)
class External:
    """A server that already runs; never started, never stopped, never configured.

    Attributes:
        address: Postgres: DSN; Kafka: ``host:port[,host:port]``; the others: URL.
    """

    address: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Spawned:
    """A server that the supervisor runs on loopback.

    Attributes:
        port: Fixed port; by default a free one that is remembered in the home folder.
        memory_mb: JVM heap, Postgres' shared buffers or Valkey's ``maxmemory``; a default
            that fits 2 cores and 5 GiB if absent.
    """

    port: int | None = None
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A standalone Spark cluster that the supervisor runs on loopback.

    Attributes:
        workers: Worker processes, beside one master.
        cores: Tasks that each of them takes at once.
        memory_mb: Heap that each of them has to give to executors.
    """

    workers: int
    cores: int
    memory_mb: int

    @property
    def worker_names(self) -> tuple[str, ...]:
        """Names of the workers among the supervised programs."""
        return tuple(f"spark-worker-{number}" for number in range(1, self.workers + 1))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of master and workers, in start order."""
        return (SPARK_MASTER, *self.worker_names)


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A program of ours that runs beside the services, under the same supervision.

    Attributes:
        name: Unique; names its log and pid file.
        argv: Program and arguments.
        env: Added to the supervisor's environment. Never shown, never written.
        depends_on: Names of services and commands that must be ready first.
        ready_file: Ready once this file is written after the start; ready at once if absent.
        cwd: Working folder; the supervisor's if absent.
        start_timeout_s: Longest wait for ``ready_file``.
        stop_timeout_s: Time between SIGTERM and SIGKILL.
        restarts_max: Restarts allowed within ten minutes.
        final_exit_codes: Exit codes after which no restart helps: usage, configuration and
            missing dependencies.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    depends_on: tuple[str, ...] = ()
    ready_file: Path | None = None
    cwd: Path | None = None
    start_timeout_s: float = 120.0
    stop_timeout_s: float = 20.0
    restarts_max: int = 5
    final_exit_codes: tuple[int, ...] = (2, 4)


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """Everything that one home folder runs.

    Attributes:
        home: The ``.headwater`` folder.
        services: Which servers, each spawned or external; a server not named does not run.
        commands: Programs of ours under the same supervision.
        spark: A Spark cluster of ours for the job among them; absent where it needs none.
        java_home: Value of ``JAVA_HOME``, if set.
        disk_free_min_bytes: Floor below which a start is refused.
        log_bytes_max: Cap of each log file; one older part of the same size is kept.
        lifeline: Stop everything when the process that called ``up`` ends, however it ends.
    """

    home: Path
    services: Mapping[ServiceName, External | Spawned]
    commands: tuple[CommandSpec, ...] = ()
    spark: SparkCluster | None = None
    java_home: str | None = None
    disk_free_min_bytes: int = DISK_FREE_MIN_BYTES
    log_bytes_max: int = 20 * 1024**2
    lifeline: bool = False

    @property
    def spawned(self) -> dict[ServiceName, Spawned]:
        """The servers that we run ourselves."""
        return {n: s for n, s in self.services.items() if isinstance(s, Spawned)}

    @property
    def external(self) -> dict[ServiceName, External]:
        """The servers that another process runs."""
        return {n: s for n, s in self.services.items() if isinstance(s, External)}

    def fingerprints(self) -> dict[str, str]:
        """Digest of each part's settings; equal for equal settings, and it tells no secret."""
        parts: dict[str, Any] = {
            str(name): {"kind": type(service).__name__, **asdict(service)}
            for name, service in self.services.items()
        }
        parts |= {command.name: asdict(command) for command in self.commands}
        if self.spark is not None:
            parts |= dict.fromkeys(self.spark.names, asdict(self.spark))
        return {
            name: hashlib.sha256(json.dumps(part, sort_keys=True, default=str).encode()).hexdigest()
            for name, part in sorted(parts.items())
        }


ALL_SPAWNED: Final[Mapping[ServiceName, External | Spawned]] = {
    name: Spawned() for name in ServiceName
}
"""Every server, run by us on remembered free ports."""
