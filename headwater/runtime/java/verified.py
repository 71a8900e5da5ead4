"""Cache of verified jars, so that a warm start does not hash 150 MB again.

A jar counts as verified only while its size, its modification time in nanoseconds and its inode are
unchanged since it was hashed; any rewrite of the file changes one of them.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Final, Self

from foundation.atomic_file import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = ".headwater-verified.json"


class VerifiedJars:
    """Hashes of files, each with the state in which the file was hashed."""

    def __init__(self, file: Path, entries: dict[str, list[object]]) -> None:
        self._file = file
        self._entries = entries
        self._changed = False

    @classmethod
    def beside(cls, repository: Path) -> Self:
        """Reads the cache of a Maven repository; empty if it cannot be read."""
        file = repository / _NAME
        try:
            entries = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            entries = {}
        return cls(file, entries if isinstance(entries, dict) else {})

    def knows(self, path: Path, sha256: str) -> bool:
        """Whether the file was hashed to this value in its current state."""
        return self._entries.get(str(path)) == [*_state(path), sha256]

    def remember(self, path: Path, sha256: str) -> None:
        """Records the hash of the file in its current state."""
        self._entries[str(path)] = [*_state(path), sha256]
        self._changed = True

    def save(self) -> None:
        """Writes the cache; if the folder is not writable, the next start hashes again."""
        if not self._changed:
            return
        with contextlib.suppress(OSError):
            known = json.dumps(self._entries, indent=0, sort_keys=True)
            write_atomically(self._file, known, mode=0o600, durable=False)


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]
