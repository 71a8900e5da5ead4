"""Folders and files of one ``.headwater`` home."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.runtime.errors import HomeUnusableError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home folder.

    Attributes:
        root: The ``.headwater`` folder, absolute.
    """

    root: Path

    @property
    def run(self) -> Path:
        """Lock, status and pid files."""
        return self.root / "run"

    @property
    def lock(self) -> Path:
        """Lock file, held exclusively by the supervisor."""
        return self.run / "lock"

    @property
    def status(self) -> Path:
        """The last status that the supervisor wrote."""
        return self.run / "status.json"

    @property
    def ports(self) -> Path:
        """Remembered ports."""
        return self.run / "ports.json"

    @property
    def logs(self) -> Path:
        """One log file per service."""
        return self.root / "log"

    def log(self, name: str) -> Path:
        """Log file of one service or command."""
        return self.logs / f"{name}.log"

    def conf(self, name: str) -> Path:
        """Folder with the rendered configuration of one service."""
        return self.run / "conf" / name

    def data(self, name: str) -> Path:
        """Data folder of one service."""
        return self.root / "data" / name

    def pid_file(self, name: str) -> Path:
        """Pid file of one service or command."""
        return self.run / f"{name}.pid"

    def suspended_file(self, name: str) -> Path:
        """While it is there, the supervisor does not run the command of that name."""
        return self.run / f"{name}.suspended"

    def create(self) -> None:
        """Creates the folders; only its owner can read the root.

        Raises:
            HomeUnusableError: A folder cannot be created or written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.run, self.logs, self.root / "data"):
                folder.mkdir(exist_ok=True)
            self.lock.touch(mode=0o600)
        except OSError as error:
            raise HomeUnusableError(
                "the home folder cannot be written",
                detail=f"{error.filename}: {error.strerror}",
                hint="run as the user that created the folder, or choose another folder",
            ) from error


def read_json(path: Path) -> Any | None:
    """Content of a JSON file; None if it is absent or not JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
