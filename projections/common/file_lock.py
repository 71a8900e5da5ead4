"""WriterLock: at most one process writes a place at a time, however processes end."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Self

from projections.errors import WriterLockedError

if TYPE_CHECKING:
    from pathlib import Path


class WriterLock:
    """An advisory lock on a file, freed by the system when its holder ends.

    Args:
        path: The lock's own file; it is made and never removed.
        wait: Stand in line for it; without, a held lock is an error.
    """

    def __init__(self, path: Path, *, wait: bool) -> None:
        self._path = path
        self._wait = wait
        self._handle: int | None = None

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            WriterLockedError: Another process holds it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if self._wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            raise WriterLockedError(
                "another process writes these views",
                detail=str(self._path),
                hint="headwater status shows it; headwater down stops it",
            ) from None
        self._handle = handle

    def release(self) -> None:
        """Gives the lock back."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
