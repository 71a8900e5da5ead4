"""Postgres servers of a test's own: stopped, copied, restored and followed by standbys at will."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest

from headwater.runtime.home import Home
from headwater.runtime.identity import launcher, unprivileged
from headwater.runtime.servers.postgres import USER, Postgres, binaries
from headwater.runtime.spec import HOST
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headwater.runtime.identity import Identity

STANDBY = "standby"
"""Name of the physical slot of the one standby."""


@dataclass
class Cluster:
    """A server whose data folder is the test's to handle.

    Attributes:
        data: Its data folder.
        conf: Its configuration file.
        port: Its port; another server may take it over while this one is stopped.
        password: The superuser's.
        options: Settings on top of the file's.
    """

    data: Path
    conf: Path
    port: int
    password: str
    options: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{self.password}@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        settings = {"port": str(self.port), "data_directory": str(self.data), **self.options}
        argv = [str(binaries() / "postgres"), "-D", str(self.data), f"--config-file={self.conf}"]
        argv += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        with (self.data.parent / f"{self.data.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                launcher(argv, identity=self._identity(), death_signal=signal.SIGQUIT),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self.answers, "the server's answer")

    def answers(self) -> bool:
        try:
            with closing(psycopg.connect(self.dsn(), connect_timeout=2)):
                return True
        except psycopg.OperationalError:
            return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=30)
            self.process = None

    def execute(self, *statements: str, database: str = "postgres") -> None:
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def copy_to(self, folder: Path) -> None:
        """Copies the data folder; the server is stopped."""
        assert self.process is None
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.data, folder, symlinks=True)

    def standby(self, data: Path, port: int, **options: str) -> Cluster:
        """Makes a standby that follows this server; it is not started yet."""
        conninfo = f"host={HOST} port={self.port} user={USER} password={self.password}"
        command = [str(binaries() / "pg_basebackup"), "-d", conninfo, "-D", str(data)]
        command += ["-X", "stream", "-c", "fast", "--create-slot", "--slot", STANDBY]
        subprocess.run(
            launcher(command, identity=self._identity()), check=True, capture_output=True
        )
        (data / "standby.signal").touch()
        follows = {
            "primary_conninfo": f"{conninfo} dbname=postgres",
            "primary_slot_name": STANDBY,
            "hot_standby_feedback": "on",
        }
        return Cluster(data, self.conf, port, self.password, {**follows, **options})

    def promote(self) -> None:
        self.execute("SELECT pg_promote()")

    def _identity(self) -> Identity:
        program = binaries() / "postgres"
        return unprivileged(home=self.data.parent, data=self.data.parent, program=program)


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="session")
def empty_cluster(tmp_path_factory: pytest.TempPathFactory) -> Postgres:
    """A cluster as initdb leaves it, copied for each test that wants a server."""
    home = Home(tmp_path_factory.mktemp("cluster"))
    home.create()
    made = Postgres(home, free_port(), memory_mb=32)
    made.prepare()
    return made


class Clusters:
    """Makes servers for one test; all are stopped when it ends."""

    def __init__(self, empty: Postgres, folder: Path) -> None:
        self._empty = empty
        self._folder = folder
        self._made: list[Cluster] = []

    def start(self, **options: str) -> Cluster:
        """Starts a primary."""
        password = urlsplit(self._empty.dsn()).password
        assert password is not None
        data = self.folder("pgdata")
        shutil.copytree(self._empty.data, data, symlinks=True)
        conf = self._empty.home.conf("postgres") / "postgresql.conf"
        return self.join(Cluster(data, conf, free_port(), password, options))

    def join(self, cluster: Cluster) -> Cluster:
        """Starts a server, and stops it when the test ends."""
        self._made.append(cluster)
        cluster.start()
        return cluster

    def folder(self, name: str) -> Path:
        return self._folder / f"{name}{len(self._made)}"

    def stop(self) -> None:
        for cluster in self._made:
            cluster.stop(signal.SIGQUIT)


@pytest.fixture
def clusters(empty_cluster: Postgres, tmp_path: Path) -> Iterator[Clusters]:
    """Servers of the test's own."""
    made = Clusters(empty_cluster, tmp_path)
    yield made
    made.stop()
