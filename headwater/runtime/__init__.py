"""The local runtime: Postgres, Kafka, Connect, OpenSearch, Valkey and Spark, supervised.

Purpose: runs a whole stack without Docker, started in dependency order and stopped together; or
uses running servers, given by address.
Entry points: `up`, `down`, `suspend`, `status` and `endpoints` below; `servers` (the specifics of
each server), `supervisor` (starts, restarts and stops them), `java` (jars and Java), `external`
(servers that run elsewhere), `plan` and `spec` (the services to run), `ports`, `probe`, `home`.
Invariants: no process outlives its supervisor. A service is ready when its protocol answers. The
ports of a home do not change.
Tests: tests/unit/headwater/runtime, tests/integration/headwater/runtime.
"""

from __future__ import annotations

from headwater.runtime.endpoints import Endpoints
from headwater.runtime.spec import (
    ALL_SPAWNED,
    CommandSpec,
    External,
    RuntimeSpec,
    ServiceName,
    SparkCluster,
    Spawned,
)
from headwater.runtime.status import RuntimeStatus, ServiceState, ServiceStatus, StatusEvent
from headwater.runtime.supervisor.control import (
    down,
    endpoints,
    log_path,
    status,
    suspend,
    up,
)

__all__ = [
    "ALL_SPAWNED",
    "CommandSpec",
    "Endpoints",
    "External",
    "RuntimeSpec",
    "RuntimeStatus",
    "ServiceName",
    "ServiceState",
    "ServiceStatus",
    "SparkCluster",
    "Spawned",
    "StatusEvent",
    "down",
    "endpoints",
    "log_path",
    "status",
    "suspend",
    "up",
]
