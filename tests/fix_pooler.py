"""Poolers between a client and Postgres: PgBouncer where it is installed, and one of a few lines.

The small one gives each transaction the session that waited longest, so two sessions take turns.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import struct
import subprocess
import threading
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SSL, GSS = 80877103, 80877104
PARAMETERS = {
    "server_version": "18.0",
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "integer_datetimes": "on",
    "TimeZone": "Etc/UTC",
}


class SmallPooler:
    """Speaks as much of the protocol as a client without COPY needs.

    Args:
        dsn: What it pools; it lets in anybody.
        sessions: Sessions of the server.
        mode: `transaction` or `session`.
    """

    def __init__(self, dsn: str, *, sessions: int = 2, mode: str = "transaction") -> None:
        self._mode = mode
        self._change = threading.Condition()
        self._servers = [psycopg.connect(dsn, sslmode="disable") for _ in range(sessions)]
        self._free: deque[int] = deque()
        for server in self._servers:
            self.add(server)
        self._listener = socket.create_server(("127.0.0.1", 0))
        place = urlsplit(dsn)
        port = self._listener.getsockname()[1]
        self.dsn = f"postgresql://{place.username}@127.0.0.1:{port}{place.path}"
        threading.Thread(target=self._accept, daemon=True).start()

    def add(self, server: psycopg.Connection) -> None:
        """Adds a session; from then on the pooler alone reads and writes it."""
        os.set_blocking(server.fileno(), True)
        self._give(server.fileno())

    def close(self) -> None:
        self._listener.close()
        for server in self._servers:
            server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server: int | None = None
        with client, suppress(OSError, EOFError):
            self._welcome(client)
            while (message := _message(client.recv))[:1] != b"X":
                server = self._take() if server is None else server
                _send(server, message)
                if message[:1] in b"QS":
                    status = self._answer(server, client)
                    if self._mode == "transaction" and status == b"I":
                        server = self._give(server)
        if server is not None:
            self._give(server)

    def _welcome(self, client: socket.socket) -> None:
        while True:
            (length,) = struct.unpack("!i", _exactly(client.recv, 4))
            (code,) = struct.unpack("!i", _exactly(client.recv, length - 4)[:4])
            if code not in (SSL, GSS):
                break
            client.sendall(b"N")
        said = [b"R" + struct.pack("!ii", 8, 0)]
        for name, value in PARAMETERS.items():
            body = f"{name}\0{value}\0".encode()
            said.append(b"S" + struct.pack("!i", 4 + len(body)) + body)
        said.append(b"K" + struct.pack("!i", 12) + secrets.token_bytes(8))
        said.append(b"Z" + struct.pack("!i", 5) + b"I")
        client.sendall(b"".join(said))

    def _answer(self, server: int, client: socket.socket) -> bytes:
        while True:
            message = _message(lambda size: os.read(server, size))
            client.sendall(message)
            if message[:1] == b"Z":
                return message[5:]

    def _take(self) -> int:
        with self._change:
            assert self._change.wait_for(lambda: self._free, timeout=30)
            return self._free.popleft()

    def _give(self, server: int) -> None:
        with self._change:
            self._free.append(server)
            self._change.notify()


def _send(server: int, message: bytes) -> None:
    while message:
        message = message[os.write(server, message) :]


def _message(receive: Callable[[int], bytes]) -> bytes:
    head = _exactly(receive, 5)
    (length,) = struct.unpack("!i", head[1:])
    return head + _exactly(receive, length - 4)


def _exactly(receive: Callable[[int], bytes], size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = receive(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found


@contextmanager
def pgbouncer(dsn: str, folder: Path, mode: str = "transaction") -> Iterator[str]:
    """Starts PgBouncer before a database; yields the DSN through it."""
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    place = urlsplit(dsn)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    name = place.path.removeprefix("/")
    login = f"host={place.hostname} port={place.port} user={place.username}"
    (folder / "users.txt").write_text(f'"{place.username}" "{place.password or ""}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n{name} = {login} password={place.password or ''}\n"
        "[pgbouncer]\nlisten_addr = 127.0.0.1\nunix_socket_dir =\n"
        f"listen_port = {port}\nauth_type = trust\nauth_file = {folder}/users.txt\n"
        f"pool_mode = {mode}\ndefault_pool_size = 4\nserver_round_robin = 1\n"
        "server_tls_sslmode = disable\nignore_startup_parameters = extra_float_digits\n"
    )
    command = [program, str(folder / "pgbouncer.ini")]
    if os.geteuid() == 0:
        folder.chmod(0o755)
        command = [*command, "-u", "nobody"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        through = f"postgresql://{place.username}@127.0.0.1:{port}/{name}"
        try:
            _await(through, process)
            yield through
        finally:
            process.terminate()
            process.wait(timeout=30)


def _await(dsn: str, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        assert process.poll() is None, "PgBouncer has ended"
        with suppress(psycopg.OperationalError):
            psycopg.connect(dsn, connect_timeout=5).close()
            return True
        return False

    wait_until(answers, "PgBouncer answers")


@pytest.fixture
def app_dsn(store_dsn: str) -> Iterator[str]:
    """DSN of a role that row-level security holds to the tenant that it acts for."""
    role, place = f"r_{secrets.token_hex(6)}", urlsplit(store_dsn)
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    from eventstore.postgres.grant import grant

    grant(store_dsn, role)
    yield place._replace(netloc=f"{role}:x@{place.hostname}:{place.port}").geturl()
    with psycopg.connect(store_dsn, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s",
            (role,),
        )
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


@pytest.fixture(params=["small", "pgbouncer"])
def pooler(
    request: pytest.FixtureRequest, app_dsn: str, tmp_path: Path
) -> Iterator[Callable[..., str]]:
    """Puts a pooler of a mode before the database; returns the DSN through it."""
    with ExitStack() as started:

        def start(mode: str = "transaction") -> str:
            if request.param == "pgbouncer":
                return started.enter_context(pgbouncer(app_dsn, tmp_path, mode))
            made = SmallPooler(app_dsn, mode=mode, sessions=2 if mode == "transaction" else 12)
            started.callback(made.close)
            return made.dsn

        yield start
