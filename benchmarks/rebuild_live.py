"""A view of GlobalShop is rebuilt, and readers are moved twenty times, while traffic runs.

The demo does it: 200 changes a second into sixteen views in three stores. Freshness is that of a
counter in a captured table, committed and looked for in each store as a user would: before the
rebuild, while the version is built, and while readers are moved. Readers ask each store twenty
times a second all the while; some of those who move them are killed. All views are compared with
their source before a figure counts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.demo_run import run_demo
from benchmarks.result import Measure, Report, at_most

_RATE: Final = 200
_SECONDS: Final = (90, 180)
_TIMES: Final = 2.0
_UNSEEN: Final = ("errors", "empties", "steps_back")


def run(quick: bool) -> Report:
    """Runs the demo with a rebuild, for three minutes; for one and a half if `quick`."""
    seconds = _SECONDS[0] if quick else _SECONDS[1]
    words = ("--rebuild", "--rate", str(_RATE), "--seconds", str(seconds))
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        said = run_demo(Path(folder) / "home", *words)
    rebuilt: dict[str, Any] = said["rebuilt"]
    measures = [
        *_freshness(rebuilt),
        *(
            at_most(f"{store}: {what} of a reader, twenty switches", ours=seen[what], target=0)
            for store, seen in rebuilt["watched"].items()
            for what in _UNSEEN
        ),
    ]
    return Report("rebuild_live", bool(said["verified"]), tuple(measures))


def _freshness(rebuilt: dict[str, Any]) -> list[Measure]:
    found = []
    for store, before in rebuilt["before"].items():
        for when in ("building", "switching"):
            times = rebuilt[when][store]["p99_ms"] / before["p99_ms"]
            name = f"{store}: p99 of commit to visible while {when}, beside before"
            found.append(at_most(name, ours=round(times, 2), target=_TIMES))
    return found
