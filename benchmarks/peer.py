"""Peers: streaming libraries for Python, each in an environment of its own, made for the run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

from benchmarks.streaming import say

if TYPE_CHECKING:
    from pathlib import Path

_NEEDED: Final = {
    "bytewax": ("bytewax==0.21.1", "orjson", "redis"),
    "pathway": ("pathway==0.33.0", "orjson", "redis"),
    "quixstreams": ("quixstreams==3.28.1", "orjson", "redis"),
}
_MADE: Final = ".made"


def run_peer(peer: str, place: Path, program: str, *words: str) -> list[str] | None:
    """Runs a program of a peer to its end.

    Args:
        peer: Which.
        place: Folder for its environment and whatever it leaves.
        program: The program, which prints what it has measured.
        words: What it is called with.

    Returns:
        The words that it has printed; None where the peer cannot be installed, as without a
        network.
    """
    home = place / peer
    python = str(home / "bin" / "python")
    if not (home / _MADE).is_file():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = [python, "-m", "pip", "install", "--quiet", *_NEEDED[peer]]
        if subprocess.run(install, check=False, capture_output=True).returncode:
            say(f"{peer} cannot be installed: it is no peer")
            return None
        (home / _MADE).touch()
    file = home / "program.py"
    file.write_text(program)
    command = [python, str(file), *words]
    run = subprocess.run(command, cwd=home, check=False, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{peer}: {run.stderr[-2000:]}")
    return run.stdout.split()
