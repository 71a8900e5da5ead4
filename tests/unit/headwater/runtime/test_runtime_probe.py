"""A probe says no to everything that is not the server it asks for, and says so in time."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from headwater.runtime.probe import (
    cache_answers,
    connect_answers,
    kafka_answers,
    postgres_answers,
    search_answers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROBES = {
    "kafka": lambda port: kafka_answers(f"127.0.0.1:{port}", 0.5),
    "connect": lambda port: connect_answers(f"http://127.0.0.1:{port}", 0.5),
    "opensearch": lambda port: search_answers(f"http://127.0.0.1:{port}", 0.5),
    "valkey": lambda port: cache_answers(f"redis://127.0.0.1:{port}/0", 0.5),
    "postgres": lambda port: postgres_answers(f"postgresql://x:y@127.0.0.1:{port}/z", 0.5),
}
ANSWERS = {
    "garbage": b"\x00\x00\x00\x08garbage!" * 4,
    "http-error": b"HTTP/1.1 503 Not yet\r\nContent-Length: 2\r\n\r\n{}",
    "other-json": b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"status":"red"}',
    "huge-frame": b"\x7f\xff\xff\xff",
    "nothing": b"",
}


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server that gives everybody the same answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(2)
                    connection.recv(4096)
                    connection.sendall(request.param)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("stranger", ANSWERS.values(), ids=ANSWERS.keys(), indirect=True)
@pytest.mark.parametrize("ask", PROBES.values(), ids=PROBES.keys())
def test_a_stranger_is_not_taken_for_the_server(stranger: int, ask: Callable[[int], bool]) -> None:
    assert not ask(stranger)


@pytest.mark.parametrize("ask", PROBES.values(), ids=PROBES.keys())
def test_nobody_there_is_a_no(ask: Callable[[int], bool]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert not ask(port)


@pytest.mark.parametrize("ask", PROBES.values(), ids=PROBES.keys())
def test_a_server_that_hangs_is_a_no_in_time(ask: Callable[[int], bool]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()

        assert not ask(server.getsockname()[1])

    assert time.monotonic() - began < 10
