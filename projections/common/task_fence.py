"""TaskFence: lets a driver know that no Spark task writes a store any more.

Spark reports a job as cancelled before its tasks have ended, and tasks outlive a killed driver by
some seconds. Each holds a shared lock while it works, which the system frees however the task ends.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from foundation import file_lock
from projections.errors import ReplayStoppedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OPEN: Final = "open"
_LOCK: Final = "tasks.lock"


class TaskFence:
    """Lets the tasks of one run write while it is open.

    Args:
        folder: A folder of that run alone, which driver and tasks share. A task of another run,
            whose driver was killed, looks into its own, and finds no fence there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Lets tasks begin."""
        (self._folder / _OPEN).touch()

    @contextmanager
    def task(self) -> Iterator[None]:
        """Holds the lock of a task.

        Raises:
            ReplayStoppedError: It is not open.
        """
        with ExitStack() as held:
            try:
                handle = held.enter_context(file_lock.opened(self._folder / _LOCK))
            except FileNotFoundError:
                raise _ended() from None
            file_lock.lock(handle, shared=True)
            self.check()
            yield

    def check(self) -> None:
        """Ends a task whose work is no longer needed.

        Raises:
            ReplayStoppedError: The fence is closed.
        """
        if not (self._folder / _OPEN).exists():
            raise _ended()

    def close(self, wait_s: float = 0) -> bool:
        """Lets no task begin, waits for those that have begun, and removes the folder.

        Returns:
            Whether none works any more; False if one did after that time.
        """
        if not self._folder.is_dir():
            return True
        (self._folder / _OPEN).unlink(missing_ok=True)
        with file_lock.opened(self._folder / _LOCK) as handle:
            if not file_lock.try_lock(handle, wait_s=wait_s):
                return False
            shutil.rmtree(self._folder, ignore_errors=True)
        return True

    @classmethod
    def close_all(cls, parent: Path, wait_s: float = 0) -> bool:
        """Closes what there is of any run, and removes the folder of their folders; see `close`."""
        if not parent.is_dir():
            return True
        runs = [cls(folder) for folder in parent.iterdir() if folder.is_dir()]
        ended = [run.close(wait_s) for run in runs]  # each, whether or not another one has ended
        if not all(ended):
            return False
        shutil.rmtree(parent, ignore_errors=True)
        return True


def _ended() -> ReplayStoppedError:
    return ReplayStoppedError("a rebuild's part was stopped", hint="it is begun again")
