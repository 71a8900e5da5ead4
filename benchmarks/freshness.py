"""Commit until visible in each store at 200 and at 500 changes a second, and the memory that takes.

Two loads: tables that are mirrored into all three stores (pgbench's), and GlobalShop's sixteen
views, nine of them made from others. A probe commits a counter in a captured table; a reader of
each store does what a user would (GET, search by alias, open the table) and notes when it first
sees each value. The views are compared with their source before a figure counts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from benchmarks.demo_run import run_demo
from benchmarks.result import Measure, Report, at_most

_TARGETS_S: Final = {
    200: (
        ("cache", "p50_ms", 1.0),
        ("cache", "p99_ms", 2.5),
        ("search", "p99_ms", 4.0),
        ("table", "p99_ms", 10.0),
    ),
    500: (("cache", "p99_ms", 1.5), ("search", "p99_ms", 3.0), ("table", "p99_ms", 8.0)),
}
_RUNS: Final = (("pgbench", 500), ("globalshop", 200), ("globalshop", 500))
_MEMORY_MIB: Final = 5 * 1024


def run(quick: bool) -> Report:
    """Runs the demo's traffic for a minute at each rate; 15 s if `quick`."""
    seconds = "15" if quick else "60"
    checked, measures = True, []
    for workload, rate in _RUNS:
        words = ("--workload", workload, "--rate", str(rate), "--seconds", seconds)
        with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
            said = run_demo(Path(folder) / "home", *words)
        checked = checked and bool(said["verified"])
        measures += _measures(said, workload, rate)
    return Report("freshness", checked, tuple(measures))


def _measures(said: dict[str, object], workload: str, rate: int) -> list[Measure]:
    found: dict[str, dict[str, float]] = said["freshness"]  # type: ignore[assignment]
    measures = [
        at_most(
            f"{workload}: commit to visible in {store} at {rate} changes/s, {figure[:3]}, s",
            ours=value / 1000,
            target=target,
        )
        for store, figure, target in _TARGETS_S[rate]
        if (value := found[store][figure]) is not None
    ]
    memory = float(str(said["memory_mib"]))
    name = f"{workload}: memory of everything at {rate} changes/s, MiB"
    return [*measures, at_most(name, ours=memory, target=_MEMORY_MIB)]
