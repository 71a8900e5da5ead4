"""Scratch: a process's temporary folder, removed however the process ends.

It contains rows. A killed process cannot remove it, but its lock ends with the process: the next
process recognises an abandoned folder by that, and removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from foundation import file_lock

_PREFIX: Final = "headwater-scratch-"


class Scratch:
    """A temporary folder; the owner must close it.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self) -> None:
        remove_abandoned()
        self.path, self._handle = _locked()

    def close(self) -> None:
        """Removes it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def remove_abandoned() -> None:
    """Removes the folders of killed processes."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # removed meanwhile, or another user's
            continue
        try:
            if file_lock.try_lock(handle):  # not in use
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(handle)


def _locked() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # until it has its lock, another process may take it for abandoned
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        file_lock.lock(handle)
        if path.exists():
            return path, handle
        os.close(handle)
