"""Archive pins: versions of an archive that a caller reads, so that their files stay.

A pin is a file beside the archive's folder that names a version. A reader locks its pin, and
touches it regularly. An unlocked pin belongs to a killed reader and does not count; nor does one
that was not touched for a while. The archive's maintenance keeps the files of every pinned version.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from foundation import file_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOUCHED_EVERY_S: Final = 20.0
EXPIRED_AFTER_S: Final = 900.0
"""How long a suspended reader keeps its version; afterwards it reports an error."""


@contextmanager
def pinned(archive: Path, version: int) -> Iterator[None]:
    """Keeps the files of a version for as long as the block runs.

    The version should be recent: files that were removed before it was pinned do not come back.
    """
    folder = _folder(archive)
    folder.mkdir(parents=True, exist_ok=True)
    pin = folder / f"{version}-{uuid.uuid4().hex}"
    draft = pin.with_name(f".{pin.name}")
    ended = threading.Event()
    thread = threading.Thread(target=_touch, args=(pin, ended), name="archive-pin", daemon=True)
    with draft.open("wb") as held:
        file_lock.lock(held.fileno())
        draft.rename(pin)  # the pin is locked before it is visible
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            pin.unlink(missing_ok=True)


def pinned_versions(archive: Path) -> list[int]:
    """Returns the versions that are being read; removes the pins of ended readers."""
    try:
        pins = list(os.scandir(_folder(archive)))
    except FileNotFoundError:
        return []
    found, now = set(), time.time()
    for pin in pins:
        draft = pin.name.startswith(".")  # just being created, or abandoned then
        try:
            expired = now - pin.stat().st_mtime > EXPIRED_AFTER_S
            if expired or (not draft and _left(pin.path)):
                os.unlink(pin.path)  # noqa: PTH108  # what scandir gives
            elif not draft:
                found.add(int(pin.name.partition("-")[0]))
        except FileNotFoundError:  # released meanwhile
            continue
    return sorted(found)


def _left(pin: str) -> bool:
    """Returns whether the reader of a pin has ended without releasing it."""
    with open(pin, "rb") as looked_at:  # noqa: PTH123  # what scandir gives
        return file_lock.try_lock(looked_at.fileno())


def _touch(pin: Path, ended: threading.Event) -> None:
    while not ended.wait(TOUCHED_EVERY_S):
        pin.touch()


def _folder(archive: Path) -> Path:
    return archive.with_name(f".{archive.name}.pins")
