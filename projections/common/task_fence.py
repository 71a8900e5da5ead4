"""TaskFence: tells a driver when no Spark task writes to a store any more.

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
        folder: A folder of that run alone, shared by driver and tasks. A task of an earlier run,
            whose driver was killed, looks in its own folder and finds no fence.
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
            ReplayStoppedError: The fence is closed.
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

    def close(self, wait_s: float = 0, *, keep: bool = False) -> bool:
        """Refuses new tasks, waits for running ones, and removes the folder unless it is kept.

        Returns:
            Whether all tasks have ended; False if one was still running after that time.
        """
        if not self._folder.is_dir():
            return True
        (self._folder / _OPEN).unlink(missing_ok=True)
        with file_lock.opened(self._folder / _LOCK) as handle:
            if not file_lock.try_lock(handle, wait_s=wait_s):
                return False
            if not keep:
                shutil.rmtree(self._folder, ignore_errors=True)
        return True

    @classmethod
    def close_all(cls, parent: Path, wait_s: float = 0, *, keep: Path | None = None) -> bool:
        """Closes the fences of all runs, and removes their parent folder; see `close`.

        Args:
            parent: The folder of the folders of runs.
            wait_s: How long to wait for the tasks of each run.
            keep: The folder of a run that stays, and so does the parent folder.
        """
        if not parent.is_dir():
            return True
        runs = [folder for folder in parent.iterdir() if folder.is_dir()]
        # every fence, even after a failure
        ended = [cls(folder).close(wait_s, keep=folder == keep) for folder in runs]
        if not all(ended):
            return False
        if keep is None:
            shutil.rmtree(parent, ignore_errors=True)
        return True


def _ended() -> ReplayStoppedError:
    return ReplayStoppedError("a rebuild's part was stopped", hint="it is begun again")
