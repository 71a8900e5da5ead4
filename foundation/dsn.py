"""DSN: whether the parts of a DSN are what its author meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def misread(parts: Mapping[str, object]) -> bool:
    """Returns whether a part of the password was probably read as a host or a port.

    In a URL, `@`, `/`, `?`, `%` and spaces of a password must be percent-encoded. Otherwise what
    follows them is read as another part, which errors of a connection would show.

    Args:
        parts: Parameters of the DSN, by libpq's names.
    """
    hosts = str(parts.get("host") or "").split(",")
    ports = str(parts.get("port") or "").split(",")
    # a host that begins so is a socket's path, or an abstract socket
    named = [host for host in hosts if not host.startswith(("/", "@"))]
    return any("@" in host for host in named) or any(
        port and not port.isdecimal() for port in ports
    )
