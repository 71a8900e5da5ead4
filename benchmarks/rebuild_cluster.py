"""A mirror rebuilt from the archive by standalone clusters of one worker and of three.

All workers have one core, and are processes of this machine; where it has fewer cores than they,
only processor time says what a cluster costs. That is of driver, its JVM, master, workers, their
executors and Python workers, in sessions that have done it once for each worker before. Three
workers also rebuild from an archive with a fifth of its changes on one key. Each round
starts from the archive and no tables, and its rows are compared with those that they must be.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import psutil

from benchmarks import change_archive
from benchmarks.change_archive import PLAN
from benchmarks.rebuild_spark import filled, rows_of
from benchmarks.result import Report, smaller
from benchmarks.streaming import say
from foundation.waiting import wait_until
from headwater import runtime
from headwater.runtime import RuntimeSpec, SparkCluster
from headwater.runtime.java.jars import ensure
from projections.job.spark.session import start_session
from projections.job.spark.task_runs import slots_of
from projections.job.spark_tasks import SparkTasks
from projections.planning.job_config import JobConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from benchmarks.change_archive import ChangeArchive

GROWTH: Final = 1.15
SKEW: Final = 1.15
_CHANGES: Final = 5_000_000
_CHANGES_QUICK: Final = 1_000_000
_CHANGES_PER_KEY: Final = 5
_HOT: Final = 0.25
"""Of the changes that insert no row, how many are of one key."""
_ROUNDS: Final = 3
_WORKER_MIB: Final = 640
_START_S: Final = 240.0
_POLL_S: Final = 0.2


@dataclass(slots=True)
class _Side:
    """What each round took, and whether all of them came to the right rows."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    right: bool = True


def run(quick: bool) -> Report:
    """Measures; `quick` takes a fifth of the changes."""
    changes = _CHANGES_QUICK if quick else _CHANGES
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        place = Path(folder)
        keys = changes // _CHANGES_PER_KEY
        archives = {
            "plain": change_archive.make(place / "plain", changes, keys),
            "hot": change_archive.make(place / "hot", changes, keys, hot=_HOT),
        }
        one = _measured(place, 1, {"plain": archives["plain"]})
        three = _measured(place, 3, archives)
    sides = [*one.values(), *three.values()]
    cpu_s = {
        name: statistics.median(side.cpu_s)
        for name, side in (("one", one["plain"]), ("three", three["plain"]), ("hot", three["hot"]))
    }
    metric = f"processor time of a rebuild of {changes:,} changes to a table by three workers, s"
    return Report(
        "rebuild_cluster",
        all(side.right for side in sides),
        (
            smaller(
                f"{metric}, against one worker",
                ours=cpu_s["three"],
                peer=cpu_s["one"],
                limit=None,
                target=GROWTH,
            ),
            smaller(
                f"{metric}, a fifth of them of one key, against none",
                ours=cpu_s["hot"],
                peer=cpu_s["three"],
                limit=None,
                target=SKEW,
            ),
        ),
    )


def _measured(place: Path, workers: int, archives: Mapping[str, ChangeArchive]) -> dict[str, _Side]:
    found = {name: _Side() for name in archives}
    with _cluster(place / f"of-{workers}", workers) as (session, home):
        for _ in range(workers):  # until each has started its Python and compiled its code
            filled(archives["plain"], home / "tables" / f"warm-{uuid4()}", SparkTasks(session))
        for _ in range(_ROUNDS):
            for name, made in archives.items():
                root = home / "tables" / "measured"
                shutil.rmtree(root, ignore_errors=True)
                side, before, began = found[name], _cpu_s(home), time.monotonic()
                filled(made, root, SparkTasks(session))
                side.seconds.append(time.monotonic() - began)
                side.cpu_s.append(_cpu_s(home) - before)
                rows = rows_of(root / PLAN.name).drop(["_version"])
                side.right &= rows.equals(made.expected().cast(rows.schema))
                say(
                    f"{workers} workers, {name}: {side.cpu_s[-1]:.1f} s of processor time,"
                    f" {side.seconds[-1]:.1f} s, {'right' if side.right else 'WRONG'}"
                )
    return found


@contextmanager
def _cluster(home: Path, workers: int) -> Iterator[tuple[SparkSession, Path]]:
    cluster = SparkCluster(workers=workers, cores=1, memory_mb=_WORKER_MIB)
    spec = RuntimeSpec(home=home, services={}, spark=cluster, lifeline=True)
    endpoints = runtime.up(spec, timeout_s=_START_S)
    conf = {"spark.log.level": "ERROR", "spark.executor.memory": f"{_WORKER_MIB}m"}
    jars = tuple(ensure("spark", progress=False))
    master = endpoints.spark_url
    try:
        session = start_session(
            JobConfig.of_tables("benchmark", home, jars, master=master, conf=conf)
        )
        wait_until(lambda: slots_of(session) == workers, _START_S, _POLL_S)
        yield session, home
        session.stop()
    finally:
        runtime.down(home)


def _cpu_s(home: Path) -> float:
    """Processor time of this process, of the servers, and of all below them."""
    status = runtime.status(home)
    pids = [service.pid for service in status.services] if status else []
    roots = [psutil.Process(), *(psutil.Process(pid) for pid in pids if pid is not None)]
    every = {process.pid: process for root in roots for process in _tree(root)}
    total = 0.0
    for process in every.values():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def _tree(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]
