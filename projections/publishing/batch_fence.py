"""BatchTurn: the tables are written by one task at a time, and never by one that comes too late.

A cluster that loses a worker has its tasks done again elsewhere, and the first ones may be at work
still, or wake up later. What each view's table has cannot be harmed by that: every row is guarded
by its version. What lies beyond a boundary is one file, and an old one in its place would lose what
waits there. So each batch has a number; a task works under a lock, and one of an earlier batch is
refused.
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


class BatchTurn:
    """Whose turn it is to write the tables of a source.

    Args:
        folder: Where their published versions are; see `Published.folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._number = folder / _NUMBER
        self._lock = folder / _LOCK

    def begin(self) -> int:
        """Begins the next turn, as the one driver of the tables; tasks of earlier ones are late."""
        number = self._current() + 1
        self._number.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._number, str(number), durable=False)
        return number

    @contextmanager
    def taken(self, number: int) -> Iterator[None]:
        """Keeps all other tasks from the tables while the block runs.

        Args:
            number: The turn of the task's batch.

        Raises:
            BatchSupersededError: A later turn has begun.
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
