"""A mirror rebuilt from the archive by Spark's tasks: on one core and two, and with more keys.

Each round has a process, a session and an empty folder of its own, as a job that has just started;
the session has filled a small table before. The processors that the process and its children may
use are limited by affinity. The rows are compared with those that they must be before a figure
counts. Memory is all that driver, JVM and Python workers have, at its greatest.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks import change_archive
from benchmarks.change_archive import PLAN, ChangeArchive
from benchmarks.rebuild_spark import Side, filled, rows_of, watched
from benchmarks.result import Report, at_most, rate, smaller
from benchmarks.streaming import say
from headwater.runtime.java.jars import ensure
from projections.job.spark.session import start_session
from projections.job.spark_tasks import SparkTasks
from projections.planning.job_config import JobConfig

if TYPE_CHECKING:
    from benchmarks.result import Measure

TWO_CORES: Final = 1.7
MEMORY_MIB: Final = 1_536.0
GROWTH: Final = 1.2
_CHANGES: Final = 5_000_000
_CHANGES_QUICK: Final = 1_000_000
_LARGER: Final = 8
_CHANGES_WARM: Final = 300_000
_CHANGES_PER_KEY: Final = 5
_ORDER: Final = (2, 1, 1, 2)
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Work:
    """What one process does.

    Attributes:
        made: The archive.
        small: The archive that its session reads before.
        place: An empty folder.
        cores: How many cores it has.
    """

    made: ChangeArchive
    small: ChangeArchive
    place: Path
    cores: int


def run(quick: bool) -> Report:
    """Measures; `quick` takes a fifth of the changes."""
    changes = _CHANGES_QUICK if quick else _CHANGES
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        place = Path(folder)
        small = _archive(place / "small", _CHANGES_WARM)
        made = _archive(place / "archive", changes)
        rounds: dict[int, list[Side]] = {cores: [] for cores in _ORDER}
        right = True
        for cores in _ORDER:
            side, same = _measured(_Work(made, small, place / "round", cores))
            rounds[cores].append(side)
            right &= same
        shutil.rmtree(made.folder)
        larger = _archive(place / "larger", changes * _LARGER)
        most, same = _measured(_Work(larger, small, place / "round", max(_ORDER)))
    return Report("rebuild_scale", right and same, _figures(changes, rounds, most))


def _figures(changes: int, rounds: dict[int, list[Side]], most: Side) -> tuple[Measure, ...]:
    speed = {
        cores: changes / statistics.median(side.seconds[0] for side in sides)
        for cores, sides in rounds.items()
    }
    memory = max(side.memory_mib[0] for side in rounds[max(_ORDER)])
    metric = f"{changes:,} changes of an archive to a table"
    return (
        rate(
            f"{metric}, changes/s on two cores, against one",
            ours=speed[2],
            peer=speed[1],
            limit=None,
            target=TWO_CORES,
        ),
        at_most(f"{metric}, MiB of driver, JVM and workers", ours=memory, target=MEMORY_MIB),
        smaller(
            f"{changes * _LARGER:,} changes to a table, MiB, against {changes:,}",
            ours=most.memory_mib[0],
            peer=memory,
            limit=None,
            target=GROWTH,
        ),
    )


def _archive(folder: Path, changes: int) -> ChangeArchive:
    return change_archive.make(folder, changes, changes // _CHANGES_PER_KEY)


def _measured(work: _Work) -> tuple[Side, bool]:
    shutil.rmtree(work.place, ignore_errors=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        without_rows = replace(work.made, last=work.made.last[:0].copy())
        side = pool.submit(_rebuilt, replace(work, made=without_rows)).result()
    rows = rows_of(work.place / "tables" / PLAN.name).drop(["_version"])
    right = rows.equals(work.made.expected().cast(rows.schema))
    say(
        f"{work.made.changes:,} changes, {work.cores} cores:"
        f" {work.made.changes / side.seconds[0]:,.0f} changes/s, {side.cpu_s[0]:.1f} s of processor"
        f" time, {side.memory_mib[0]:,.0f} MiB, {'right' if right else 'WRONG'}"
    )
    return side, right


def _rebuilt(work: _Work) -> Side:
    """Rebuilds in this process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: work.cores])
    config = JobConfig.of_tables(
        "benchmark",
        work.place / "home",
        tuple(ensure("spark", progress=False)),
        conf={"spark.log.level": "ERROR"},
    )
    session = start_session(config)
    filled(work.small, work.place / "warm", SparkTasks(session))
    side, before = Side(), psutil.Process().memory_info().rss / _MIB
    with watched(side, tasks=True):
        filled(work.made, work.place / "tables", SparkTasks(session))
    side.memory_mib[0] += before
    session.stop()
    return side
