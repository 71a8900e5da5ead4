"""Commit until visible in each store at 200 changes a second, and the memory that takes.

A probe commits a counter in a captured table; a reader of each store does what a user would (GET,
search by alias, open the table) and notes when it first sees each value. The views are compared
with their source before a figure counts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from benchmarks.demo_run import run_demo
from benchmarks.result import Measure, Report, at_most

RATE: Final = 200
_TARGETS_S: Final = (
    ("cache", "p50_ms", 1.0),
    ("cache", "p99_ms", 2.5),
    ("search", "p99_ms", 4.0),
    ("table", "p99_ms", 10.0),
)
_MEMORY_MIB: Final = 5 * 1024


def run(quick: bool) -> Report:
    """Runs the demo's traffic for a minute; 15 s if `quick`."""
    seconds = "15" if quick else "60"
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        said = run_demo(Path(folder) / "home", "--rate", str(RATE), "--seconds", seconds)
    return Report("freshness", bool(said["verified"]), tuple(_measures(said)))


def _measures(said: dict[str, object]) -> list[Measure]:
    found: dict[str, dict[str, float]] = said["freshness"]  # type: ignore[assignment]
    measures = [
        at_most(f"commit to visible in {store}, {figure[:3]}, s", ours=value / 1000, target=target)
        for store, figure, target in _TARGETS_S
        if (value := found[store][figure]) is not None
    ]
    memory = float(str(said["memory_mib"]))
    measures.append(at_most("memory of everything, MiB", ours=memory, target=_MEMORY_MIB))
    return measures
