"""SharedFolder: checks that a folder is the driver's, and not another one with the same path.

On another machine the same path may be another disk, where a task would create new tables and its
writes would be lost. The driver therefore writes a mark, and its tasks check it. The driver of each
source has its own mark in the shared folder, and writes a new one at each start.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from projections.errors import FolderNotSharedError

if TYPE_CHECKING:
    from pathlib import Path

_MARK: Final = ".mark-"
_REPLY: Final = ".reply-"


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A folder as the driver marked it.

    Attributes:
        root: The folder.
        source: The driver's source.
        mark: The driver's mark in it.
    """

    root: Path
    source: str
    mark: str

    @classmethod
    def marked(cls, root: Path, source: str) -> SharedFolder:
        """Marks a folder, as the driver of a source."""
        root.mkdir(parents=True, exist_ok=True)
        marked = cls(root, source, secrets.token_hex(8))
        marked._path.write_text(marked.mark, "ascii")
        return marked

    def check(self) -> None:
        """Checks the mark, on any machine.

        Raises:
            FolderNotSharedError: It is missing, or is that of another driver of the source.
        """
        try:
            mark = self._path.read_text("ascii")
        except (OSError, UnicodeDecodeError):
            mark = ""
        if mark != self.mark:
            raise not_shared(self.root, "the driver's mark is not seen")

    def reply(self) -> str:
        """Writes a reply for the driver; returns its name.

        Raises:
            FolderNotSharedError: The folder is not the driver's, or cannot be written.
        """
        self.check()
        name = _REPLY + secrets.token_hex(8)
        try:
            (self.root / name).touch()
        except OSError as error:
            raise not_shared(self.root, f"it cannot be written: {error.strerror}") from None
        return name

    def take(self, reply: str) -> None:
        """Removes a reply, as the driver.

        Raises:
            FolderNotSharedError: It is missing.
        """
        try:
            (self.root / reply).unlink()
        except OSError:
            raise not_shared(self.root, "what an executor wrote is not seen") from None

    @property
    def _path(self) -> Path:
        return self.root / f"{_MARK}{self.source}"


def not_shared(root: Path, seen: str) -> FolderNotSharedError:
    """Returns the error of machines in a cluster that do not see the same folder."""
    return FolderNotSharedError(
        "an executor does not work in the driver's folder",
        detail=f"{root}: {seen}",
        hint="put the home folder (--home) on storage that all machines of the cluster mount "
        "under the same path and may write",
    )
