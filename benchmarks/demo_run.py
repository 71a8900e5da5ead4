"""One run of the demo as a whole process, checked before its figures count."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 3_600


def run_demo(home: Path, *words: str) -> dict[str, Any]:
    """Runs `headwater demo --json` in a folder of its own and returns what it said.

    Raises:
        subprocess.CalledProcessError: It failed, or a view differed from its source.
    """
    command = [sys.executable, "-m", "headwater", "demo", "--json", "--home", str(home), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_TIMEOUT_S)
    said: dict[str, Any] = json.loads(done.stdout)
    return said
