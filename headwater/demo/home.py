"""The home folder of the demo, which each run empties."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Final

from headwater.demo.errors import DemoHomeError

if TYPE_CHECKING:
    from pathlib import Path

MARKER: Final = "demo.json"
"""Marks the folder as created by a demo, so that the next run may empty it."""


def is_own(home: Path) -> bool:
    """Whether a demo made this folder."""
    return (home / MARKER).is_file()


def recreate_folder(home: Path, workload: str) -> None:
    """Empties the demo's folder, or creates it.

    No service may be running in it.

    Raises:
        DemoHomeError: The folder contains files that no demo created.
    """
    if home.exists() and not home.is_dir():
        raise DemoHomeError("the demo's home is not a folder", detail=str(home), hint=_HINT)
    if home.is_dir() and not is_own(home) and any(home.iterdir()):
        raise DemoHomeError(
            "the demo needs an empty folder, and this folder is not its own",
            detail=str(home),
            hint=_HINT,
        )
    if home.is_dir():
        for entry in home.iterdir():
            # the marker is deleted last, so that the next run can finish an interrupted wipe
            if entry.name != MARKER:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    (home / MARKER).write_text(json.dumps({"workload": workload}) + "\n", "utf-8")


_HINT: Final = "choose another one: headwater demo --home <folder>"
