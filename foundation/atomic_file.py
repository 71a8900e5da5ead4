"""Files that are replaced whole: a reader sees the old content or the new one, never a part."""

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
        content: All of it; text is written as UTF-8.
        mode: Permissions, less the process's umask; 0o600 for what holds secrets.
        durable: Whether it must survive a power cut. Without, the file may be empty after one:
            that is for files which are written again every second.
    """
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666, durable: bool = True) -> Iterator[IO[bytes]]:
    """Gives an open file that takes the place of `path` when the block ends without an error.

    Args:
        path: The file; its folder must exist.
        mode: Permissions, less the process's umask.
        durable: Whether it must survive a power cut.
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
    """Makes the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that knows no such thing
            raise
    finally:
        os.close(handle)
