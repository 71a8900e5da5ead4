"""BatchTurn: lets one task at a time write the tables, and never a task of an earlier batch.

A cluster that loses a worker repeats its tasks elsewhere, while the first ones may still be
running, or continue later. The tables are safe, since every row is guarded by its version. The
records beyond a boundary, however, are one file, and an old file in its place would lose them. Each
batch therefore has a number; a task works under a lock, and a task of an earlier batch is refused.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from foundation.atomic_file import write_atomically
from projections.common.file_lock import WriterLock
from projections.errors import BatchSupersededError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NUMBER: Final = "turn"
_LOCK: Final = ".turn.lock"


class BatchFence:
    """The right to write the tables of a source.

    Args:
        folder: Folder of their published versions; see `Published.folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._number = folder / _NUMBER
        self._lock = folder / _LOCK

    def begin(self) -> int:
        """Begins the next batch, as the only driver; tasks of earlier batches are refused."""
        number = self._current() + 1
        self._number.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._number, str(number), durable=False)
        return number

    @contextmanager
    def taken(self, number: int) -> Iterator[None]:
        """Holds the lock of the tables while the block runs.

        Args:
            number: The number of the task's batch.

        Raises:
            BatchSupersededError: A later batch has begun.
        """
        with WriterLock(self._lock, wait=True):
            current = self._current()
            if number < current:
                raise BatchSupersededError(
                    "a task belongs to an earlier batch", detail=f"{number} after {current}"
                )
            yield

    def _current(self) -> int:
        return int(self._number.read_text("ascii")) if self._number.is_file() else 0
