"""A job's server of bulk work, in this process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from projections.job.tasks.rebuilds import RebuildServer
from projections.versions.bulk_requests import BulkRequests
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from projections.planning.job_config import JobConfig


@contextmanager
def server(session: SparkSession, config: JobConfig) -> Iterator[RebuildServer]:
    """Answers requests for as long as the block runs."""
    made = RebuildServer(session, config)
    made.start()
    try:
        wait_until(lambda: BulkRequests(config).server() is not None, timeout_s=30)
        yield made
    finally:
        made.stop()
        made.join(30)
        assert not made.is_alive()
        assert made.fault is None
