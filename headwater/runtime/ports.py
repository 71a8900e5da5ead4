"""Loopback ports: chosen once, then reused at each start."""

from __future__ import annotations

import json
import random
import socket
from typing import TYPE_CHECKING, Final

from foundation.atomic_file import write_atomically
from headwater.runtime.errors import PortImpossibleError, PortTakenError
from headwater.runtime.home import read_json
from headwater.runtime.spec import HOST

if TYPE_CHECKING:
    from pathlib import Path

# Below the kernel's range of ephemeral ports: an outgoing connection could take a port of that
# range while its server restarts.
_RANGE: Final = range(20_000, 30_000)
# The runner of OpenSearch supports no port above 9299.
_RANGES: Final = {"opensearch": range(8_600, 9_300)}
_TRIES: Final = 500


class PortBook:
    """Ports by name; written when they change."""

    def __init__(self, file: Path) -> None:
        self._file = file
        stored = read_json(file)
        self._ports: dict[str, int] = {}
        if isinstance(stored, dict):
            self._ports = {k: v for k, v in stored.items() if isinstance(v, int)}

    def get(self, name: str) -> int | None:
        """Returns the remembered port of a name."""
        return self._ports.get(name)

    def choose(self, name: str, wanted: int | None = None) -> int:
        """Returns a free port: the wanted one, else the remembered one, else a new one.

        Raises:
            PortTakenError: The wanted port is in use.
        """
        if wanted is not None:
            _refuse_impossible(name, wanted)
            if not is_free(wanted):
                raise PortTakenError(
                    f"port {wanted} for {name} is in use",
                    detail=f"used by {holder(wanted) or 'an unknown process'}",
                    hint="stop that process, or set another port for this service",
                )
            port = wanted
        else:
            port = self._remembered_or_new(name)
        if self._ports.get(name) != port:
            self._ports[name] = port
            write_atomically(
                self._file, json.dumps(self._ports, indent=1, sort_keys=True), mode=0o600
            )
        return port

    def _remembered_or_new(self, name: str) -> int:
        remembered = self._ports.get(name)
        if remembered is not None and is_free(remembered):
            return remembered
        allowed = _RANGES.get(name, _RANGE)
        others = {port for other, port in self._ports.items() if other != name}
        for port in random.sample(allowed, _TRIES):
            if port not in others and is_free(port):
                return port
        raise PortTakenError(
            f"no free port for {name}",
            detail=f"tried {_TRIES} between {allowed.start} and {allowed.stop}",
        )


def _refuse_impossible(name: str, port: int) -> None:
    allowed = _RANGES.get(name)
    if allowed is not None and port >= allowed.stop:
        raise PortImpossibleError(
            f"{name} cannot listen on port {port}",
            detail=f"its runner supports no port above {allowed.stop - 1}",
            hint=f"set a port between 1025 and {allowed.stop - 1}, or none",
        )


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def holder(port: int) -> str | None:
    """Returns the process that listens on a port, as ``name (pid n)``; None if unknown."""
    import psutil  # noqa: PLC0415  # only an error needs it

    try:
        for connection in psutil.net_connections("tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        return None
    return None
