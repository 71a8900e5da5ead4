"""External servers: probed, but never started, stopped or configured."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from foundation.waiting import wait_until
from headwater.runtime.errors import ExternalUnreachableError
from headwater.runtime.probe import (
    cache_answers,
    connect_answers,
    kafka_answers,
    search_answers,
)
from headwater.runtime.service import PROBE_TIMEOUT_S, ExternalService
from headwater.runtime.spec import RuntimeSpec, ServiceName
from headwater.runtime.status import ServiceState, ServiceStatus

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

_EXTERNAL_TIMEOUT_S: Final = 10.0
_LOOK_EVERY_S: Final = 5.0
_PROBES: Final = {
    ServiceName.KAFKA: kafka_answers,
    ServiceName.CONNECT: connect_answers,
    ServiceName.SEARCH: search_answers,
    ServiceName.CACHE: cache_answers,
}


def external_services(spec: RuntimeSpec) -> list[ExternalService]:
    """Returns the external servers of the spec.

    The probe of Postgres always succeeds. The check of the source examines Postgres instead, with a
    separate error for each cause: no answer, a refused login, a missing privilege.
    """
    return [
        ExternalService(
            name=name,
            address=without_password(external.address),
            probe=partial(_PROBES[name], external.address) if name in _PROBES else _taken_as_there,
        )
        for name, external in spec.external.items()
    ]


def _taken_as_there(timeout_s: float) -> bool:
    del timeout_s
    return True


def check_external(service: ExternalService, timeout_s: float = _EXTERNAL_TIMEOUT_S) -> None:
    """Waits briefly for an external server.

    Raises:
        ExternalUnreachableError: The server does not answer in its protocol.
    """
    if not wait_until(lambda: service.answers(PROBE_TIMEOUT_S), timeout_s, 0.2):
        raise ExternalUnreachableError(
            f"{service.name} does not answer",
            detail=service.address,
            hint=f"start that server, or remove the address of {service.name} from the "
            "settings to start a local one",
        )


def without_password(address: str) -> str:
    """Returns an address without its password."""
    parts = urlsplit(address)
    if "@" not in parts.netloc:
        return address
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


@dataclass
class WatchedService:
    """An external server as the supervisor shows it; it answered when the supervisor started."""

    service: ExternalService
    pool: Executor
    state: ServiceState = ServiceState.READY
    since: float = field(default_factory=time.time)
    _looking: Future[bool] | None = None
    _next_at: float = field(default_factory=lambda: time.monotonic() + _LOOK_EVERY_S)

    @property
    def name(self) -> str:
        """Name of the server."""
        return self.service.name

    def step(self) -> None:
        """Probes the server again if it is due; never blocks."""
        now = time.monotonic()
        if self._looking is not None and self._looking.done():
            answered = self._looking.exception() is None and self._looking.result()
            self._looking = None
            self._next_at = now + _LOOK_EVERY_S
            state = ServiceState.READY if answered else ServiceState.STARTING
            if state is not self.state:
                self.state, self.since = state, time.time()
        if self._looking is None and now >= self._next_at:
            self._looking = self.pool.submit(self.service.answers, PROBE_TIMEOUT_S)

    def status(self) -> ServiceStatus:
        """As it is shown."""
        return ServiceStatus(
            name=self.service.name,
            state=self.state,
            kind="external",
            address=self.service.address,
            since=self.since,
            last_error=None if self.state is ServiceState.READY else "does not answer",
        )
