"""File locks, which the operating system releases when the holding process ends."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_POLL_S: Final = 0.05


def lock(handle: int, *, shared: bool = False) -> None:
    """Locks an open file or folder; waits without a time limit.

    Closing every copy of the handle releases the lock.
    """
    fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock(handle: int, *, wait_s: float = 0, posix: bool = False, shared: bool = False) -> bool:
    """Tries to lock an open file or folder within a time limit.

    Args:
        handle: The file or folder.
        wait_s: Longest wait, in seconds.
        shared: Whether the lock is shared; otherwise it is exclusive.
        posix: Whether to use a POSIX lock, as a JVM does. A POSIX lock belongs to the process, not
            to the open file: if the process closes any handle of the file, the lock is released.

    Returns:
        Whether the lock was acquired.
    """
    take = fcntl.lockf if posix else fcntl.flock
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + wait_s
    while True:
        try:
            take(handle, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        else:
            return True


@contextmanager
def opened(path: Path, mode: int = 0o644) -> Iterator[int]:
    """Opens a lock file and creates it if it is missing; it is never removed."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        yield handle
    finally:
        os.close(handle)
