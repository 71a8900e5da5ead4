"""Free space of a disk."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def free_bytes(folder: Path) -> int:
    """Returns the free bytes where a folder is, or would be made."""
    there = next(each for each in (folder, *folder.resolve().parents) if each.is_dir())
    return shutil.disk_usage(there).free
