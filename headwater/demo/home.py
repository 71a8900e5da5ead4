"""The folder in which a demo runs: its own, recreated each time."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Final

from headwater.demo.errors import DemoHomeError

if TYPE_CHECKING:
    from pathlib import Path

MARKER: Final = "demo.json"
"""Says that the folder was made by a demo and may be wiped by the next one."""


def is_own(home: Path) -> bool:
    """Whether a demo made this folder."""
    return (home / MARKER).is_file()


def recreate_folder(home: Path, workload: str) -> None:
    """Empties the demo's folder, or makes it.

    Nothing may run there any more.

    Raises:
        DemoHomeError: The folder holds something that no demo made.
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
            # the marker last: a wipe that was interrupted is still the demo's to finish
            if entry.name != MARKER:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    (home / MARKER).write_text(json.dumps({"workload": workload}) + "\n", "utf-8")


_HINT: Final = "choose another one: headwater demo --home <folder>"
