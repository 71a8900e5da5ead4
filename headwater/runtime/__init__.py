"""The local runtime: Postgres, Kafka, Connect, OpenSearch, Valkey and Spark, supervised."""

from __future__ import annotations

from headwater.runtime.control import down, endpoints, log_path, status, up
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
    "up",
]
