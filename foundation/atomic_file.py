"""Atomic file replacement: a reader sees either the old content or the new content."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_atomically(
    path: Path, content: bytes | str, *, mode: int = 0o666, durable: bool = True
) -> None:
    """Replaces the content of a file.

    Args:
        path: The file; its folder must exist.
        content: The whole content; text is written as UTF-8.
        mode: Permissions, less the process's umask; 0o600 for secrets.
        durable: Whether the content must survive a power failure. If False, the file may be empty
            after one, which suits files that are written every second.
    """
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yields an open file that replaces `path` when the block ends without an error.

    Args:
        path: The file; its folder must exist.
        mode: Permissions, less the process's umask.
        durable: Whether the content must survive a power failure.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, mode), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
        if durable:
            sync_folder(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Flushes the entries of a folder, so that they survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not support it
            raise
    finally:
        os.close(handle)


def sync_files(folder: Path) -> None:
    """Flushes the files of a folder and its entries, so that they survive a power failure.

    Other programs have written them; folders in it are left out.
    """
    for path in folder.iterdir():
        if path.is_file():
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    sync_folder(folder)
