"""The Spark of a job on a cluster: at each line of its input it uses all its executors.

It reads its configuration from its input, answers each line with one, and ends with its input.
"""

from __future__ import annotations

import json
import pickle
import sys
from typing import TYPE_CHECKING, Any

from projections.common.shared_folder import SharedFolder
from projections.errors import ClusterError
from projections.job.spark import cluster
from projections.job.spark.session import SparkSession, start_session
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa


def main() -> None:
    config, executors, wait_s = pickle.load(sys.stdin.buffer)  # noqa: S301  # of the test
    cluster.EXECUTORS_WAIT_S = cluster.TAKEN_WAIT_S = wait_s
    try:
        session = start_session(config)
    except ClusterError as error:
        answer(code=error.code, hint=error.hint)
        return
    await_executors(session, executors)
    tables = config.addresses.tables
    folder = SharedFolder(tables, config.source, cluster.shared(session, tables, config.source))
    answer(executors=cluster.executors(session))
    for _ in iter(sys.stdin.buffer.readline, b""):
        await_executors(session, executors)
        answer(counted=counted(session), checked=checked(session, executors, folder))
    session.stop()


def await_executors(session: SparkSession, executors: int) -> None:
    wait_until(lambda: cluster.executors(session) == executors, "executors", timeout_s=LONG_S)


def counted(session: SparkSession) -> int:
    """Groups that a shuffle between the executors finds."""
    return session.range(1000, numPartitions=4).selectExpr("id % 7 AS k").distinct().count()


def checked(session: SparkSession, executors: int, folder: SharedFolder) -> int:
    """Tasks that saw the mark of this job."""

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            folder.check()
            yield batch

    tasks = session.range(executors, numPartitions=executors)
    return tasks.mapInArrow(check, "id bigint").count()


def answer(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
