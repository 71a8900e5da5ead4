"""The interface of a server, spawned or external."""

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

    ``answers`` asks in the server's protocol within its timeout, returns False for a server that
    does not answer, and may be called from any thread.
    """

    @property
    def name(self) -> str:
        """Name of the server."""
        ...

    @property
    def address(self) -> str:
        """Address of the server, without a password."""
        ...

    def answers(self, timeout_s: float) -> bool:
        """Whether it answers now."""
        ...


class SpawnedService(Service, Protocol):
    """A server that the supervisor runs.

    ``prepare`` creates the data folder and the configuration. It may take seconds, and may be
    called again after a crash at any point. ``launch`` then returns how to start the server.
    """

    @property
    def port(self) -> int:
        """Loopback port."""
        ...

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Names of the services that must be ready before it starts."""
        ...

    def prepare(self) -> None:
        """Creates the files that the server needs for its next start."""
        ...

    def launch(self) -> Launch:
        """Returns how to start the server."""
        ...


@dataclass(frozen=True, slots=True)
class ExternalService:
    """A running external server.

    Attributes:
        name: Name of the server.
        address: Its address, without a password.
        probe: Returns whether it answers, given a timeout in seconds.
    """

    name: str
    address: str
    probe: Callable[[float], bool] = field(repr=False)

    def answers(self, timeout_s: float) -> bool:
        """Whether it answers now."""
        return self.probe(timeout_s)
