"""The driver's memory over half an hour of load.

The demo's traffic runs at 500 changes a second into all stores. Every ten seconds the resident
memory of the job is read: the driver, its Java and its Python workers, pages that they share
counted once. A heap of Java grows up to its size before it is ever cleared, so the first third of
the time does not count; the median of the last third is compared with that of the second.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from statistics import median
from typing import Final, Self

from benchmarks.demo_run import run_demo
from benchmarks.result import Report, grown
from benchmarks.streaming import say
from headwater import runtime
from headwater.platform.specs import JOB
from headwater.runtime.memory import tree_rss_bytes

RATE: Final = 500
GROWTH_MAX: Final = 1.05

_SECONDS: Final = 1_800
_SECONDS_QUICK: Final = 180
_EVERY_S: Final = 10.0
_EVERY_QUICK_S: Final = 2.0
_MIB: Final = 1024 * 1024
_SAMPLES_MIN: Final = 60


def run(quick: bool) -> Report:
    """Runs the demo for half an hour; three minutes if `quick`."""
    seconds, every_s = (_SECONDS_QUICK, _EVERY_QUICK_S) if quick else (_SECONDS, _EVERY_S)
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / "home"
        with _Watch(home, every_s) as watch:
            try:
                said = run_demo(home, "--rate", str(RATE), "--seconds", str(seconds))
            finally:
                # a run that fails after half an hour has measured this nevertheless
                thirds = _thirds(watch.samples_mib)
                say(f"MiB by thirds of the time: {_medians(thirds)}")
    return Report(
        "driver_memory",
        bool(said["verified"]) and len(watch.samples_mib) >= _SAMPLES_MIN,
        (
            grown(
                f"memory of the driver after {seconds / 60:.0f} minutes beside after a third, MiB",
                before=median(thirds[1]),
                after=median(thirds[2]),
                target=GROWTH_MAX,
            ),
        ),
    )


def _thirds(samples: list[float]) -> list[list[float]]:
    size = len(samples) // 3
    return [samples[:size], samples[size : 2 * size], samples[2 * size :]]


def _medians(thirds: list[list[float]]) -> str:
    return ", ".join(f"{median(third):,.0f}" for third in thirds if third) or "none"


class _Watch:
    """Reads the job's memory again and again, in a thread of its own."""

    def __init__(self, home: Path, every_s: float) -> None:
        self.samples_mib: list[float] = []
        self._home = home
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            found = runtime.status(self._home)
            job = None if found is None else found.service(JOB)
            if job is not None and job.ready and job.pid is not None:
                self.samples_mib.append((tree_rss_bytes(job.pid) or 0) / _MIB)
