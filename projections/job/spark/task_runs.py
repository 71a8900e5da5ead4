"""Task runs: bulk work in Spark's tasks, which the driver watches until it ends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.util import inheritable_thread_target

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from pyspark.sql import DataFrame, SparkSession

POLL_S: Final = 0.2
TASKS_END_S: Final = 30.0
"""Tasks that were cancelled end within seconds; the next run waits for those that do not."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TaskRuns:
    """Runs work of one kind in a session.

    Attributes:
        session: The session.
        name: Name of the work, for Spark's log and for threads.
        pool: The scheduler pool of its tasks.
    """

    session: SparkSession
    name: str
    pool: str

    def numbers(self, pieces: int, tasks: int) -> DataFrame:
        """Returns the numbers of pieces of work, in as many tasks at most."""
        return self.session.range(0, pieces, 1, max(1, min(pieces, tasks)))

    def watched(self, work: Callable[[], _T], look: Callable[[], None]) -> _T:
        """Does work in Spark; an exception of `look` cancels its tasks, and is raised.

        Args:
            work: The work; it runs in a thread of its own.
            look: Called several times a second during the work.
        """
        context: Any = self.session.sparkContext
        group = f"{self.name} {uuid4()}"

        def run() -> _T:
            context.setLocalProperty("spark.scheduler.pool", self.pool)
            context.setJobGroup(group, self.name, interruptOnCancel=True)
            return work()

        with ThreadPoolExecutor(1, self.name) as pool:
            watched_run = inheritable_thread_target(self.session)(run)
            under_way: Future[_T] = pool.submit(watched_run)
            while not under_way.done():
                wait([under_way], POLL_S)
                try:
                    look()
                except BaseException:
                    _cancel(context, group, under_way)
                    raise
            return under_way.result()


def slots_of(session: SparkSession) -> int:
    """Returns how many tasks the present executors can run at once, the driver's included."""
    # public in Scala only; Spark's default parallelism is two where there is one core
    context = session.sparkContext._jsc.sc()  # noqa: SLF001
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def tasks_at_once(session: SparkSession, share: float = 1.0) -> int:
    """Returns how many tasks of bulk work may run at once, leaving a slot to live batches.

    On a single machine, where slots are no cores, no more than it has of these: each task takes a
    core, and some 150 MiB.
    """
    slots, jvm = slots_of(session), session._jvm  # noqa: SLF001
    tasks = min(slots - 1, round(slots * share))
    if jvm is not None and str(session.sparkContext.master).startswith("local"):
        tasks = min(tasks, jvm.java.lang.Runtime.getRuntime().availableProcessors())
    return max(1, tasks)


def _cancel(context: Any, group: str, under_way: Future[Any]) -> None:
    """Cancels a group of jobs until its thread has ended: a job may begin between two calls."""
    ended = threading.Event()
    under_way.add_done_callback(lambda _: ended.set())
    while not ended.is_set():
        with suppress(Py4JError, OSError):
            context.cancelJobGroup(group)
        ended.wait(POLL_S)
