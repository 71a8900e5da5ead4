"""SparkTasks: runs the tasks of a rebuild in a session's executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from projections.archive.rebuilding.tasks import TasksFailedError
from projections.common.throttle import Pace
from projections.job.spark.task_runs import TaskRuns, tasks_at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from projections.archive.rebuilding.tasks import RebuildTask, T

_POOL = "rebuild"


class SparkTasks:
    """Runs tasks; see `TaskRunner`.

    Args:
        session: The session.
        name: Name of the work, for Spark's log and for threads.
    """

    def __init__(self, session: SparkSession, name: str = "rebuild") -> None:
        self._session = session
        self._runs = TaskRuns(session, name, _POOL)

    @staticmethod
    def pace(share: float) -> Pace:
        """Returns the pace of tasks; Spark stops them."""
        return Pace(share)

    def results(
        self, task: RebuildTask, pieces: int, share: float = 1.0, *, tasks_max: int | None = None
    ) -> pa.Table:
        """Runs a task for all pieces; see `TaskRunner`.

        Args:
            task: The task.
            pieces: How many pieces there are.
            share: Greatest share of the session's slots; others find free ones.
            tasks_max: Most of Spark's tasks at a time.
        """
        tasks = tasks_at_once(self._session, share)
        numbers = self._runs.numbers(pieces, min(tasks, tasks_max or tasks))
        columns = from_arrow_schema(task.result_schema)
        found: pa.Table = numbers.mapInArrow(task.run, columns).toArrow()
        return found

    def watched(self, work: Callable[[], T], look: Callable[[], Any]) -> T:
        """Does work in Spark; see `TaskRunner`."""

        def run() -> T:
            try:
                return work()
            except (PySparkException, Py4JError) as error:
                raise TasksFailedError(str(error), type(error).__name__) from None

        return self._runs.watched(run, look)
