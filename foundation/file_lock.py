"""Locks on files, freed by the system when the process that holds them ends, however it ends."""

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
    """Locks an open file or folder, and waits for it without a limit.

    Closing every copy of the handle frees the lock.
    """
    fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock(handle: int, *, wait_s: float = 0, posix: bool = False, shared: bool = False) -> bool:
    """Locks an open file or folder, if it can within a time.

    Args:
        handle: The file or folder.
        wait_s: How long to try.
        shared: Others may hold it shared too; otherwise it is exclusive.
        posix: A lock of the POSIX kind, as a JVM takes it: of a process, not of an open file. Any
            close of the file by the process frees it.

    Returns:
        Whether it has the lock; False where another holder kept it.
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
    """Opens the file of a lock, and makes it first if need be; it is never removed."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        yield handle
    finally:
        os.close(handle)
