"""A mirror and a history rebuilt: in Spark's tasks, in tasks of one process, record by record.

All sides replay the same archive, one after the other and in both orders, in one process. The
session is started and has filled a small table before: in a job it is there. Tables are compared
row by row, with the versions of the rows and what is remembered of deletes, or with every change
of a history, before a figure counts. A history has fewer changes: record by record each takes long.
Processor time and the greatest memory are those of this process, of Spark's JVM and of its workers.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from deltalake import DeltaTable

from benchmarks import change_archive
from benchmarks.change_archive import HISTORY, PLAN
from benchmarks.result import Report, at_most, rate
from benchmarks.streaming import say
from headwater.runtime.java.jars import ensure
from projections.archive.rebuilding.engine import TaskEngine
from projections.archive.rebuilding.own_tasks import OwnTasks
from projections.archive.replay import replay
from projections.archive.task import ReplayTarget
from projections.job.spark.session import start_session
from projections.job.spark_tasks import SparkTasks
from projections.planning.job_config import JobConfig
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.table_sink import TableSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from benchmarks.change_archive import ChangeArchive
    from benchmarks.result import Measure
    from projections.archive.rebuilding.tasks import TaskRunner
    from projections.planning.view_plan import ViewPlan

RATIO: Final = 1.2
MEMORY_MIB: Final = 1_536.0
_CHANGES: Final = 5_000_000
_CHANGES_QUICK: Final = 1_000_000
_CHANGES_HISTORY: Final = 1_000_000
_CHANGES_HISTORY_QUICK: Final = 200_000
_CHANGES_WARM: Final = 300_000
_CHANGES_PER_KEY: Final = 5
_ORDER: Final = ("replay", "own", "spark", "spark", "own", "replay")
_SAMPLE_S: Final = 0.25
_MIB: Final = 1 << 20


@dataclass(slots=True)
class Side:
    """What one side took; each figure of every round."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)


def run(quick: bool) -> Report:
    """Measures; `quick` takes a fifth of the changes."""
    changes = _CHANGES_QUICK if quick else _CHANGES
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        place = Path(folder)
        made = change_archive.make(place / "archive", changes, changes // _CHANGES_PER_KEY)
        keys = _CHANGES_WARM // _CHANGES_PER_KEY
        small = change_archive.make(place / "small", _CHANGES_WARM, keys)
        session = _session(place)
        filled(small, place / "warm", SparkTasks(session))
        sides, right = _measured(made, place, session, PLAN)
        shutil.rmtree(made.folder)
        filled(small, place / "warm", SparkTasks(session), HISTORY)
        of_history = _CHANGES_HISTORY_QUICK if quick else _CHANGES_HISTORY
        made = change_archive.make(place / "of_history", of_history, of_history // _CHANGES_PER_KEY)
        histories, same = _measured(made, place, session, HISTORY)
        session.stop()
    figures = _figures(f"{changes:,} changes of an archive to a table", changes, sides)
    metric = f"{of_history:,} changes of an archive to a history"
    figures += _figures(metric, of_history, histories)
    by_cpu = rate(
        f"{metric}, changes per second of processor time",
        ours=of_history / statistics.median(histories["spark"].cpu_s),
        peer=of_history / statistics.median(histories["replay"].cpu_s),
        limit=None,
        target=RATIO,
    )
    return Report("rebuild_spark", right and same, (*figures, by_cpu))


def _figures(metric: str, changes: int, sides: dict[str, Side]) -> tuple[Measure, ...]:
    ours, today = sides["spark"], sides["replay"]
    return (
        rate(
            f"{metric}, in tasks of one process, changes/s",
            ours=changes / statistics.median(sides["own"].seconds),
            peer=changes / statistics.median(today.seconds),
            limit=None,
            target=1.0,
        ),
        rate(
            f"{metric}, changes/s",
            ours=changes / statistics.median(ours.seconds),
            peer=changes / statistics.median(today.seconds),
            limit=None,
            target=RATIO,
        ),
        at_most(
            f"{metric}, MiB of driver, JVM and workers",
            ours=max(ours.memory_mib),
            target=MEMORY_MIB,
        ),
    )


def _session(place: Path) -> SparkSession:
    jars = tuple(ensure("spark", progress=False))
    conf = {"spark.log.level": "ERROR"}
    return start_session(JobConfig.of_tables("benchmark", place / "home", jars, conf=conf))


def _measured(
    made: ChangeArchive, place: Path, session: SparkSession, plan: ViewPlan
) -> tuple[dict[str, Side], bool]:
    sides = {name: Side() for name in _ORDER}
    expected, right = made.expected(), True
    names = [plan.name, f"{plan.name}.deleted" if plan.history is None else f"{plan.name}.changes"]
    kept: list[pa.Table] | None = None
    for name in _ORDER:
        side, root = sides[name], place / "tables"
        shutil.rmtree(root, ignore_errors=True)
        runners: dict[str, TaskRunner] = {"own": OwnTasks(), "spark": SparkTasks(session)}
        with watched(side, tasks=name == "spark"):
            filled(made, root, runners.get(name), plan)
        found = [rows_of(root / each) for each in names]
        rows = found[0] if plan.history is None else found[0].filter(found[0]["is_current"])
        rows = rows.select(expected.column_names)
        kept = kept or found
        right &= rows.equals(expected.cast(rows.schema)) and found == kept
        say(
            f"{name}: {made.changes / side.seconds[-1]:,.0f} changes/s, {side.cpu_s[-1]:.1f} s of"
            f" processor time, {side.memory_mib[-1]:,.0f} MiB, {'right' if right else 'WRONG'}"
        )
    return sides, right


def filled(
    made: ChangeArchive, root: Path, tasks: TaskRunner | None, plan: ViewPlan = PLAN
) -> None:
    """Fills tables below a folder; in tasks, if there is something that runs them."""
    bulk = None if tasks is None else TaskEngine(tasks, root, plan.name)
    sink = TableSink if plan.history is None else HistorySink
    replay(made.folder, [ReplayTarget((plan,), lambda: sink(root), bulk=bulk)])


def rows_of(table: Path) -> pa.Table:
    """The rows of a table by rising key and log position, without the number of their commit."""
    rows = DeltaTable(str(table)).to_pyarrow_table()
    rows = rows.drop([name for name in rows.column_names if name == "_commit"])
    order = [("id", "ascending"), ("_version", "ascending")]
    return rows.sort_by(order).combine_chunks()


@contextmanager
def watched(side: Side, *, tasks: bool) -> Iterator[None]:
    """Adds what a round takes: of the memory that this process has before, nothing counts.

    That of JVM and workers counts as a whole for the side that has them, `tasks`.
    """
    own, done = psutil.Process(), threading.Event()
    idle = own.memory_info().rss
    greatest = 0

    def sample() -> None:
        nonlocal greatest
        while not done.wait(_SAMPLE_S):
            greatest = max(
                greatest, own.memory_info().rss - idle + (_of_children(own) if tasks else 0)
            )

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    cpu_s, began = _cpu_s(own), time.monotonic()
    try:
        yield
    finally:
        side.seconds.append(time.monotonic() - began)
        side.cpu_s.append(_cpu_s(own) - cpu_s)
        done.set()
        thread.join()
        side.memory_mib.append(greatest / _MIB)


def _of_children(own: psutil.Process) -> int:
    """Memory of the JVM and of its workers, which share pages of the daemon that forked them."""
    total = 0
    for child in own.children(recursive=True):
        try:
            total += child.memory_full_info().pss
        except psutil.Error:
            continue  # it has ended
    return total


def _cpu_s(own: psutil.Process) -> float:
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
