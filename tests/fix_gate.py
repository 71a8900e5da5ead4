"""Gates: a server's address that a test can shut, so that the server is down for one user only."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHUNK_BYTES: Final = 1 << 16


class Gate:
    """Hands what comes to a local port on to a server, unless it is shut.

    A gate that is shut refuses connections and cuts those that there are, as a server that ended.

    Args:
        url: The server's.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = parts.hostname, parts.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        user = f"{parts.username or ''}:{parts.password}@" if parts.password else ""
        self.url = parts._replace(netloc=f"{user}127.0.0.1:{self._port}").geturl()
        self._open: set[socket.socket] = set()
        self._accept()

    def shut(self) -> None:
        """Lets nobody in, and throws out who is."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        """Lets everybody in again, at the same address."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._accept()

    def _accept(self) -> None:
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):  # which is how a shut listener ends
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with (
            client,
            suppress(OSError),
            socket.create_connection(self._server) as server,
            selectors.DefaultSelector() as ready,
        ):
            self._open.add(client)
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            try:
                while self._carried(ready):
                    pass
            finally:
                self._open.discard(client)

    @staticmethod
    def _carried(ready: selectors.BaseSelector) -> bool:
        """Hands on what there is; returns whether more may come."""
        for key, _ in ready.select():
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(_CHUNK_BYTES)
            if not data:
                return False
            key.data.sendall(data)
        return True


@pytest.fixture
def gate() -> Iterator[Callable[[str], Gate]]:
    """Puts a gate before a server; all are shut when the test ends."""
    made: list[Gate] = []

    def put_before(url: str) -> Gate:
        made.append(Gate(url))
        return made[-1]

    yield put_before
    for each in made:
        with suppress(OSError):
            each.shut()
