"""The status of the services, as the supervisor last wrote it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from headwater.runtime.process import ProcessRecord


class ServiceState(StrEnum):
    """State of one service or command; only the supervisor sets it.

    ===========  ==========================================  ==========================
    state        means                                       next
    ===========  ==========================================  ==========================
    starting     waits for others, is prepared, or started;  ready, restarting, failed
                 an external server that does not answer
    ready        answered in its protocol                    restarting, stopped
    restarting   died and is within its restart budget       ready, failed
    failed       spent its budget, or cannot be started      only a new ``up`` helps
    suspended    a command that was asked to stop while the  starting, by ``up``
                 others go on
    stopped      was asked to                                only a new ``up`` helps
    ===========  ==========================================  ==========================
    """

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    SUSPENDED = "suspended"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service or command.

    Attributes:
        name: Its name.
        state: Its state.
        kind: ``service``, ``command`` or ``external``.
        pid: Process id while it runs.
        address: Its address, without a password.
        port: Loopback port.
        rss_bytes: Resident memory of it and its children, shared pages counted once.
        restarts: Restarts since ``up``.
        since: When it entered this state, seconds since 1970.
        last_error: Why it last died or could not start.
    """

    name: str
    state: ServiceState
    kind: str = "service"
    pid: int | None = None
    address: str | None = None
    port: int | None = None
    rss_bytes: int | None = None
    restarts: int = 0
    since: float = 0.0
    last_error: str | None = None

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        return self.state is ServiceState.READY


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """Everything under one supervisor.

    Attributes:
        running: Whether that supervisor still runs; if not, no service runs.
        supervisor: Its process.
        settings: Digest of each part's settings.
        services: One entry for each service and command, in start order.
        written_at: When the supervisor wrote this, seconds since 1970.
    """

    running: bool
    supervisor: ProcessRecord
    settings: dict[str, str] = field(default_factory=dict)
    services: tuple[ServiceStatus, ...] = ()
    written_at: float = 0.0

    @property
    def ready(self) -> bool:
        """Whether every service answers, and every command is ready that is to run."""
        wanted = (s for s in self.services if s.state is not ServiceState.SUSPENDED)
        return self.running and all(service.ready for service in wanted)

    @property
    def services_ready(self) -> bool:
        """Whether every service answers; commands do not count."""
        services = (service for service in self.services if service.kind != "command")
        return self.running and all(service.ready for service in services)

    @property
    def failed(self) -> tuple[ServiceStatus, ...]:
        """Services in state ``failed``."""
        return tuple(s for s in self.services if s.state is ServiceState.FAILED)

    def service(self, name: str) -> ServiceStatus | None:
        """One service by name."""
        return next((s for s in self.services if s.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "version": 1,
            "supervisor": self.supervisor.to_json(),
            "settings": self.settings,
            "services": [asdict(service) for service in self.services],
            "written_at": self.written_at,
        }

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """Reads a status; None if it is invalid. Services of a dead supervisor count as stopped."""
        if not isinstance(value, dict) or value.get("version") != 1:
            return None
        supervisor = ProcessRecord.from_json(value.get("supervisor"))
        if supervisor is None:
            return None
        running = supervisor.alive()
        services = tuple(_service(entry, running=running) for entry in value["services"])
        return cls(running, supervisor, value["settings"], services, value["written_at"])


def _service(entry: dict[str, Any], *, running: bool) -> ServiceStatus:
    state = ServiceState(entry["state"])
    if running:
        return ServiceStatus(**{**entry, "state": state})
    if state is not ServiceState.FAILED:
        state = ServiceState.STOPPED
    return ServiceStatus(**{**entry, "state": state, "pid": None, "rss_bytes": None})


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """A change of a service's state.

    Attributes:
        service: The service in its new state.
        elapsed_s: Seconds since ``up`` began.
    """

    service: ServiceStatus
    elapsed_s: float
