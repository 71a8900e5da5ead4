"""bytewax as a peer: a dataflow in an environment of its own, made for the run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.streaming import say

if TYPE_CHECKING:
    from pathlib import Path

_NEEDED = ("bytewax==0.21.1", "orjson", "redis")


def run_dataflow(place: Path, dataflow: str, *words: str) -> list[str] | None:
    """Runs a dataflow to its end.

    Args:
        place: Folder for the environment.
        dataflow: Its program, which prints what it has measured.
        words: What the program is called with.

    Returns:
        The words that it has printed; None where bytewax cannot be installed, as without a network.
    """
    environment = place / "peer"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", *_NEEDED]
    if subprocess.run(install, check=False, capture_output=True).returncode:
        say("bytewax cannot be installed: no peer")
        return None
    (place / "dataflow.py").write_text(dataflow)
    command = [python, str(place / "dataflow.py"), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
