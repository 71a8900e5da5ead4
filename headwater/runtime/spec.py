"""The services that a caller requests, as plain values."""

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
"""A full disk stops Kafka and Postgres, so a start is refused well before."""


class ServiceName(StrEnum):
    """The servers of one Headwater."""

    POSTGRES = "postgres"
    KAFKA = "kafka"
    CONNECT = "connect"
    SEARCH = "opensearch"
    CACHE = "valkey"


@dataclass(frozen=True, slots=True)
class External:
    """A running external server, which Headwater never starts, stops or configures.

    Attributes:
        address: Postgres: DSN; Kafka: ``host:port[,host:port]``; the others: URL.
    """

    address: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Spawned:
    """A server that the supervisor runs on loopback.

    Attributes:
        port: Fixed port; by default a free one that is remembered in the home folder.
        memory_mb: JVM heap, Postgres' shared buffers or Valkey's ``maxmemory``; the default
            fits a machine of 2 cores and 5 GiB.
    """

    port: int | None = None
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A standalone Spark cluster that the supervisor runs on loopback.

    Attributes:
        workers: Number of worker processes besides the master.
        cores: Concurrent tasks of each worker, of all its executors together.
        memory_mb: Heap that each worker can give to its executors together.
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
    """A Headwater program that runs beside the services under the same supervisor.

    Attributes:
        name: Unique; names its log and pid file.
        argv: Program and arguments.
        env: Added to the supervisor's environment. Never shown and never written to disk.
        depends_on: Names of services and commands that must be ready first.
        ready_file: The command is ready when it has written this file; without one, immediately.
        cwd: Working folder; the supervisor's if absent.
        start_timeout_s: Longest wait for ``ready_file``.
        stop_timeout_s: Time between SIGTERM and SIGKILL.
        restarts_max: Restarts allowed within ten minutes.
        final_exit_codes: Exit codes after which the command is not restarted: errors of usage,
            configuration and missing dependencies.
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
        services: The servers, each spawned or external; other servers do not run.
        commands: Headwater programs under the same supervisor.
        spark: A spawned Spark cluster for the job; None if it needs none.
        java_home: Value of ``JAVA_HOME``, if set.
        disk_free_min_bytes: Free disk space below which a start is refused.
        log_bytes_max: Cap of each log file; one older file of the same size is kept.
        lifeline: Whether everything stops when the process that called ``up`` ends.
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
        """The spawned servers."""
        return {n: s for n, s in self.services.items() if isinstance(s, Spawned)}

    @property
    def external(self) -> dict[ServiceName, External]:
        """The external servers."""
        return {n: s for n, s in self.services.items() if isinstance(s, External)}

    def fingerprints(self) -> dict[str, str]:
        """Digest of the settings of each part; equal for equal settings, and reveals no secret."""
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
