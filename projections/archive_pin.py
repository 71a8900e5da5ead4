"""Archive pins: versions of an archive that somebody reads, so that their files stay.

A pin is a file beside the archive's folder that names a version. Whoever reads touches it while it
lives; a pin that nobody has touched for a while is one of a reader that was killed, and counts no
more. The archive's upkeep keeps the files of every version that is pinned.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOUCHED_EVERY_S: Final = 20.0
EXPIRED_AFTER_S: Final = 900.0
"""A reader that was suspended for that long may lose its version; it says so then."""


@contextmanager
def pinned(archive: Path, version: int) -> Iterator[None]:
    """Keeps the files of a version for as long as the block runs.

    The version should be a recent one: files that went before it was pinned do not come back.

    Args:
        archive: Folder of the archive.
        version: Version of its table.
    """
    folder = _folder(archive)
    folder.mkdir(parents=True, exist_ok=True)
    pin = folder / f"{version}-{uuid.uuid4().hex}"
    pin.touch()
    ended = threading.Event()
    thread = threading.Thread(target=_touch, args=(pin, ended), name="archive-pin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        pin.unlink(missing_ok=True)


def pinned_versions(archive: Path) -> list[int]:
    """Returns the versions that are being read; forgets the pins of readers that are gone.

    Args:
        archive: Folder of the archive.
    """
    try:
        pins = list(os.scandir(_folder(archive)))
    except FileNotFoundError:
        return []
    found, now = set(), time.time()
    for pin in pins:
        try:
            touched = pin.stat().st_mtime
        except FileNotFoundError:  # let go of meanwhile
            continue
        if now - touched > EXPIRED_AFTER_S:
            os.unlink(pin.path)  # noqa: PTH108  # what scandir gives
        else:
            found.add(int(pin.name.partition("-")[0]))
    return sorted(found)


def _touch(pin: Path, ended: threading.Event) -> None:
    while not ended.wait(TOUCHED_EVERY_S):
        pin.touch()


def _folder(archive: Path) -> Path:
    return archive.with_name(f".{archive.name}.pins")
