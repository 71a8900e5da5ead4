"""JobPass: the running job's Spark finds the keys of a mirror that differ in its table.

A table of many millions of rows is read by as many tasks as the job has slots, also on a cluster.
The verification itself stays in the caller's process: it compares the keys again that differ. If
the job does not do it, the caller does it by column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from projections.errors import ReplayError, WriterLockedError
from projections.verification.column_pass import ColumnPass
from projections.versions.bulk_requests import BulkComparison, BulkRequests, compared_place
from projections.versions.job_engine import answered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan
    from projections.stores.delta.sink import WarehouseSink
    from projections.verification.source_batches import SourceBatches

_log = structlog.get_logger(__name__)


class JobPass:
    """Has the job compare a view's table with its source once.

    Args:
        plan: The view.
        rows_expected: Approximate number of its rows.
        requests: The requests to the job.
        otherwise: Compares it in this process.

    Attributes:
        rows: Number of rows read from the source.
        withheld: Number of rows read that the view excludes.
        suspects: Texts of the keys that differ.
        unsuited: Whether the rows have to be compared as documents.
    """

    def __init__(
        self, plan: ViewPlan, rows_expected: int, requests: BulkRequests, otherwise: ColumnPass
    ) -> None:
        self.rows = self.withheld = 0
        self.suspects: list[str] = []
        self.unsuited = False
        self._work = BulkComparison(plan, rows_expected)
        self._place = compared_place(plan.name)
        self._requests = requests
        self._otherwise = otherwise

    def steps(self) -> Iterator[None]:
        """Compares both sides; see `ColumnPass.steps`."""
        try:
            self._requested()
        except (ReplayError, WriterLockedError) as error:
            _log.info("a view is compared without the job", code=error.code, reason=error.detail)
            yield from self._otherwise.steps()
            done = self._otherwise
            self.rows, self.withheld, self.suspects = done.rows, done.withheld, done.suspects
            self.unsuited = done.unsuited

    def _requested(self) -> None:
        """Has the job do it.

        Raises:
            ReplayError: The job cannot do it, or is gone.
            WriterLockedError: Another process has the same view compared.
        """
        requests, place = self._requests, self._place
        with answered(requests, place, self._work) as answer:
            self.rows, self.withheld = answer.compared, answer.withheld
            self.suspects = requests.keys(place, answer.id)


def fastest_pass(
    plan: ViewPlan, source: SourceBatches, sink: WarehouseSink, config: JobConfig | None
) -> ColumnPass | JobPass:
    """Returns the fastest pass over a view's table.

    Args:
        plan: The view.
        source: The rows that it should have.
        sink: The warehouse.
        config: The configuration of the job that may do it; None for this process.

    Raises:
        psycopg.Error: The source cannot be read.
    """
    columns = ColumnPass(plan, source, sink)
    rows = 0 if config is None else source.rows_expected()
    if config is None or rows < config.rebuild_rows_min:
        return columns
    requests = BulkRequests(config)
    return JobPass(plan, rows, requests, columns) if requests.comparing() else columns
