"""What windows that are over cost a view that goes on: memory of the driver, and time.

A view counts rows in windows of a minute. In one run a thousand windows lie behind it, in the other
a hundred thousand. Then rows come into windows of the last hour, boundary by boundary. What the
JVM's heap holds after a collection, and how long a boundary takes, are compared; each run has a
session of its own. The counts are compared with numpy's.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.derived_run import DerivedRun, spark_session
from benchmarks.result import Report, grown
from benchmarks.streaming import say
from projections.definition.operators.measures import Measures
from projections.definition.operators.windows import Tumbling, keys_of
from projections.definition.views import DerivedView, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP_TIMES: Final = 1.05
SECONDS_TIMES: Final = 1.5

_EXPIRED: Final = (1_000, 100_000)
_EXPIRED_QUICK: Final = (100, 10_000)
_ROWS_EACH: Final = 3
_WARM: Final = 5
_BOUNDARIES: Final = 20
_ROWS_AT_ONCE: Final = 500
_MINUTE_US: Final = 60_000_000
_HOUR_MINUTES: Final = 60
_NOW_US: Final = 1_767_225_600_000_000  # 2026-01-01
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Kept:
    """What it took to keep the view.

    Attributes:
        heap_mib: What the heap holds after a collection.
        seconds: Of a boundary, the median.
        right: Whether every window has its count.
    """

    heap_mib: float
    seconds: float
    right: bool


def run(quick: bool) -> Report:
    """Measures; `quick` has a tenth of the windows."""
    few, many = _EXPIRED_QUICK if quick else _EXPIRED
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        before, after = (_kept(Path(folder) / str(expired), expired) for expired in (few, many))
    for expired, kept in ((few, before), (many, after)):
        say(f"{expired:,} windows: {kept.heap_mib:.1f} MiB, {kept.seconds:.2f} s a boundary")
    what = f"beside {many:,} windows that are over, and beside {few:,}"
    return Report(
        "window_state",
        before.right and after.right,
        (
            grown(
                f"heap of the driver {what}, MiB",
                before=before.heap_mib,
                after=after.heap_mib,
                target=HEAP_TIMES,
            ),
            grown(
                f"a boundary's time {what}, s",
                before=before.seconds,
                after=after.seconds,
                target=SECONDS_TIMES,
            ),
        ),
    )


def _kept(home: Path, expired: int) -> _Kept:
    window = Tumbling("at", "1 minute")
    sql = window.select("clicks", (), Measures("n"), "")
    view = DerivedView(
        "per_minute", keys_of(window, ()), frozenset([Store.TABLE]), ("clicks",), sql
    )
    draw = np.random.default_rng(1)
    past = _NOW_US - _MINUTE_US * (np.arange(expired) + _HOUR_MINUTES)
    at = [np.repeat(past, _ROWS_EACH)]
    seconds = []
    with spark_session(home) as session:
        run = DerivedRun(session, home, (view,), {"clicks": _table(at[0], 0)})
        run.bring()
        for _ in range(_WARM + _BOUNDARIES):
            offsets = draw.integers(0, _HOUR_MINUTES * _MINUTE_US, _ROWS_AT_ONCE)
            run.add("clicks", _table(_NOW_US + offsets, sum(map(len, at))))
            at.append(_NOW_US + offsets)
            seconds.append(run.bring()["per_minute"])
        heap_mib = _heap_mib(session)
    right = _right(run.table("per_minute"), np.concatenate(at))
    return _Kept(heap_mib, float(np.median(seconds[_WARM:])), right)


def _table(at_us: np.ndarray[Any, Any], first: int) -> pa.Table:
    moments = pa.array(at_us, pa.timestamp("us", "UTC"))
    return pa.table({"id": np.arange(first, first + len(at_us)), "at": moments})


def _heap_mib(session: SparkSession) -> float:
    java: Any = session.sparkContext._jvm  # noqa: SLF001  # there is no other word for it
    memory = java.java.lang.Runtime.getRuntime()
    for _ in range(3):  # what was only reachable from what the one before it has cleared
        java.java.lang.System.gc()
    return float(memory.totalMemory() - memory.freeMemory()) / _MIB


def _right(found: pa.Table, at_us: np.ndarray[Any, Any]) -> bool:
    minutes, counts = np.unique(at_us // _MINUTE_US, return_counts=True)
    starts = found["window_start"].cast(pa.int64()).to_numpy() // _MINUTE_US
    order = np.argsort(starts)
    return np.array_equal(minutes, starts[order]) and np.array_equal(
        counts, found["n"].to_numpy()[order]
    )
