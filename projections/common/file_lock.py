"""WriterLock: one process at a time, however processes end."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from foundation import file_lock
from projections.errors import WriterLockedError

if TYPE_CHECKING:
    from pathlib import Path


class WriterLock:
    """An advisory lock on a file, freed by the system when its holder ends.

    Args:
        path: The lock's own file; it is created and never removed.
        wait: Whether to wait for it; otherwise a held lock is an error.
    """

    def __init__(self, path: Path, *, wait: bool) -> None:
        self._path = path
        self._wait = wait
        self._held = ExitStack()

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            WriterLockedError: Another process holds it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            handle = held.enter_context(file_lock.opened(self._path))
            if self._wait:
                file_lock.lock(handle)
            elif not file_lock.try_lock(handle):
                raise WriterLockedError(
                    "another process writes these views",
                    detail=str(self._path),
                    hint="headwater status shows it; headwater down stops it",
                )
            self._held = held.pop_all()

    def release(self) -> None:
        """Releases the lock."""
        self._held.close()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
