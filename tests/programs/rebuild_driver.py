"""The driver of a cluster, which takes requests of rebuilds as a job does.

It reads its configuration from its input. For each view that follows there, it writes what the
view's topic has into its table, as the tables' query does, and then an empty file of the view's
name. It ends with its input.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from typing import Any

from cdc.snapshot import ranges
from projections.archive.rebuilding import task_ranges
from projections.archive.rebuilding.engine import TaskEngine
from projections.job import backlog_tasks, comparison, streaming_query
from projections.job.spark import cluster
from projections.job.spark.session import SparkSession, start_session
from projections.job.spark.task_runs import slots_of
from projections.job.tasks.rebuilds import RebuildServer
from tests.support.tables_query import TablesQuery
from tests.support.task_halts import TaskHalts
from tests.waiting import wait_until

PIECE = 250
"""Records of a piece of a large batch; two are a large one."""

COMMITS = ("before the deletes", "before the rows", "after the rows")


def main() -> None:
    config, slots, folder = pickle.load(sys.stdin.buffer)  # noqa: S301  # of the test
    task_ranges.TASK_ROWS, task_ranges.KEYS_PER_TASK = 600, 2_000
    vars(backlog_tasks).update(LARGE_RECORDS=PIECE, PIECE_RECORDS=PIECE, TASKS_MIN=2)
    vars(comparison).update(PIECE_ROWS=100)
    vars(ranges).update(RANGE_ROWS=100)
    vars(streaming_query).update(PIECE_RECORDS=PIECE)
    halting_commits(TaskHalts(folder))
    session = start_session(config)
    if not config.local:
        await_slots(session, slots)
        cluster.shared(session, config.addresses.tables, config.source)
    server = RebuildServer(session, config)
    server.start()
    with suppress(EOFError):  # when the test ends it
        while plan := pickle.load(sys.stdin.buffer):  # noqa: S301  # of the test
            await_slots(session, slots)  # a worker that was killed comes back
            TablesQuery(session, config, plan).run()
            (config.home / plan.name).touch()
    server.stop()
    server.join(30)
    session.stop()


def await_slots(session: SparkSession, slots: int) -> None:
    wait_until(lambda: slots_of(session) == slots, "all executors", timeout_s=120)


def halting_commits(halts: TaskHalts) -> None:
    commit = TaskEngine._commit

    def committed(own: TaskEngine, name: str, *what: Any) -> None:
        deletes = name.endswith(".deleted")
        halts.reach(COMMITS[0] if deletes else COMMITS[1])
        commit(own, name, *what)
        if not deletes:
            halts.reach(COMMITS[2])

    TaskEngine._commit = committed  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
