"""From nothing running to services, first change event and kept views; jars are there already."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.demo_run import run_demo
from benchmarks.result import Report, at_most

_ROUNDS: Final = 3
_TARGETS_S: Final = (
    ("services_ready_s", "all services ready, s", 30.0),
    ("first_change_s", "first change event shown, s", 20.0),
)


def run(quick: bool) -> Report:
    """Starts the demo three times, each in a fresh folder; once if `quick`."""
    rounds = 1 if quick else _ROUNDS
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        homes = [Path(folder) / str(number) for number in range(rounds)]
        said = [run_demo(home, "--seconds", "3", "--scale", "0.1") for home in homes]
    measures = tuple(
        at_most(metric, ours=median(run["startup"][figure] for run in said), target=target)
        for figure, metric, target in _TARGETS_S
    )
    return Report("startup", all(run["verified"] for run in said), measures)
