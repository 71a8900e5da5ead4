"""The driver of a cluster, which takes requests of rebuilds as a job does, and nothing else.

It reads its configuration from its input, and ends with that.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from projections.job.rebuilding import engine
from projections.job.rebuilding.engine import SparkEngine
from projections.job.spark import cluster
from projections.job.spark.session import start_session
from projections.job.spark.task_runs import slots_of
from projections.job.tasks.rebuilds import RebuildServer
from tests.support.task_halts import TaskHalts
from tests.waiting import wait_until

COMMITS = ("before the deletes", "before the rows", "after the rows")


def main() -> None:
    config, slots, folder = pickle.load(sys.stdin.buffer)  # noqa: S301  # of the test
    engine.TASK_ROWS, engine.KEYS_PER_TASK = 600, 2_000
    halting_commits(TaskHalts(folder))
    session = start_session(config)
    if not config.local:
        wait_until(lambda: slots_of(session) == slots, "all executors", timeout_s=120)
        cluster.shared(session, config.addresses.tables, config.source)
    server = RebuildServer(session, config)
    server.start()
    sys.stdin.buffer.read()  # until the test ends it
    server.stop()
    server.join(30)
    session.stop()


def halting_commits(halts: TaskHalts) -> None:
    commit = SparkEngine._commit

    def committed(own: SparkEngine, name: str, *what: Any) -> None:
        deletes = name.endswith(".deleted")
        halts.reach(COMMITS[0] if deletes else COMMITS[1])
        commit(own, name, *what)
        if not deletes:
            halts.reach(COMMITS[2])

    SparkEngine._commit = committed  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
