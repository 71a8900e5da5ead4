"""One interface for a server, whether we run it or another process does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.runtime.process import Launch

READY_TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 2.0


class Service(Protocol):
    """A server that answers at an address.

    ``answers`` asks in the server's own protocol, blocks no longer than told, never raises for
    a server that is not there, and may be called from any thread.
    """

    @property
    def name(self) -> str:
        """Which server."""
        ...

    @property
    def address(self) -> str:
        """Where it answers, without a password."""
        ...

    def answers(self, timeout_s: float) -> bool:
        """Whether it answers now."""
        ...


class SpawnedService(Service, Protocol):
    """A server that the supervisor runs.

    ``prepare`` makes data folder and configuration, may take seconds, and may be called again
    after a crash at any point. ``launch`` says how to start the server afterwards.
    """

    @property
    def port(self) -> int:
        """Loopback port."""
        ...

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Names of what must be ready before it is started."""
        ...

    def prepare(self) -> None:
        """Make what the server needs before its first or next start."""
        ...

    def launch(self) -> Launch:
        """How to start it."""
        ...


@dataclass(frozen=True, slots=True)
class ExternalService:
    """A server that already runs.

    Attributes:
        name: Which server.
        address: Where, without a password.
        probe: Asks it, given a timeout in seconds.
    """

    name: str
    address: str
    probe: Callable[[float], bool] = field(repr=False)

    def answers(self, timeout_s: float) -> bool:
        """Whether it answers now."""
        return self.probe(timeout_s)
