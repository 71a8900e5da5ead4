"""Probes whether a broker answers, in Kafka's protocol.

Implemented here because a client library retries, backs off and starts a thread; a probe needs one
request and one response.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

_METADATA: Final = 3
_VERSION: Final = 1
_CLIENT: Final = b"headwater-probe"
_FRAME_BYTES_MAX: Final = 1_000_000


def broker_answers(bootstrap: str, timeout_s: float) -> bool:
    """Returns whether a broker answers a metadata request and reports a live broker.

    Speaks plain text only; a listener with TLS or SASL does not answer it.

    Args:
        bootstrap: ``host:port[,host:port]``.
        timeout_s: Longest wait for each address, seconds.
    """
    return any(_answers(address.strip(), timeout_s) for address in bootstrap.split(","))


def _answers(address: str, timeout_s: float) -> bool:
    host, _, port = address.rpartition(":")
    # Version 1: an empty list of topics requests no topic, so the response stays small.
    head = struct.pack(">hhih", _METADATA, _VERSION, 1, len(_CLIENT))
    request = head + _CLIENT + struct.pack(">i", 0)
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            size = struct.unpack(">i", _receive(connection, 4))[0]
            answer = _receive(connection, min(size, _FRAME_BYTES_MAX))
            correlation, brokers = struct.unpack_from(">ii", answer)
    except (OSError, ValueError, struct.error):
        return False
    return bool(correlation == 1 and brokers > 0)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        received += chunk
    return received
