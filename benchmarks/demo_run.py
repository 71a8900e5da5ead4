"""One run of the demo as a whole process, checked before its figures count."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 3_600
_SHOWN = 4_000


def run_demo(home: Path, *words: str) -> dict[str, Any]:
    """Runs `headwater demo --json` in a folder of its own and returns what it said.

    Raises:
        subprocess.CalledProcessError: It failed, or a view differed from its source.
    """
    command = [sys.executable, "-m", "headwater", "demo", "--json", "--home", str(home), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        # what differs, or what did not come to its end, is on stdout
        sys.stderr.write(done.stdout.decode(errors="replace")[-_SHOWN:])
    done.check_returncode()
    said: dict[str, Any] = json.loads(done.stdout)
    return said
