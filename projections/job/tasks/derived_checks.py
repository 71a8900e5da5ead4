"""Derived watch: tables of views made from others, verified by the job as it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
import structlog
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from cdc.errors import CdcError
from cdc.postgres import session as postgres
from projections.common.background_task import Attendant
from projections.errors import ProjectionError
from projections.incremental.spark.maintainer import DerivedKeeper
from projections.incremental.spark.table_reader import TableVersions
from projections.job.batch.verify_derived import derived_report
from projections.publishing.published_versions import Published
from projections.verification import results_table
from projections.verification.requests import Checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from projections.definition.views import DerivedView
    from projections.planning.job_spec import JobSpec

_TICK_S: Final = 1.0
_FAILURES: Final = (
    ProjectionError,
    CdcError,
    PySparkException,
    Py4JError,
    DeltaError,
    psycopg.Error,
    OSError,
)
_log = structlog.get_logger(__name__)


class DerivedWatch(Attendant):
    """Verifies one table at a time, and publishes what it finds.

    Nothing is asked for as fast as it is answered: whoever asks keeps to a budget. A view that
    cannot be verified is said to be done, with nothing published.

    Args:
        session: Where.
        spec: The job.
        pool: Which of Spark's pools it works in.
        views: Returns the views that are kept at this moment.
    """

    def __init__(
        self,
        session: SparkSession,
        spec: JobSpec,
        pool: str,
        views: Callable[[], Iterable[DerivedView]],
    ) -> None:
        super().__init__("derived watch")
        self._session = session
        self._spec = spec
        self._pool = pool
        self._checks = Checks(spec)
        self._views = views

    def attend(self) -> None:
        """Answers until stopped."""
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        while not self.rested(_TICK_S):
            for name in self._checks.asked():
                if self._stopped.is_set():
                    return
                view = next((each for each in self._views() if each.name == name), None)
                try:
                    if view is not None:
                        self._check(view)
                except _FAILURES as error:
                    if not self._stopped.is_set():
                        _log.warning("a view is not verified", view=name, kind=type(error).__name__)
                self._checks.done(name)

    def _check(self, view: DerivedView) -> None:
        tables = self._spec.addresses.tables
        published = Published(tables, self._spec.source)
        latest, places = published.latest(), published.current()
        if latest is None:
            return
        # of its own, by Delta's own reader: what is verified was made from what the other one reads
        keeper = DerivedKeeper(tables, view, TableVersions(self._session, tables, files_max=0))
        report = derived_report(keeper, latest, places, self._spec.source)
        if report is not None:
            with postgres.connect(self._spec.source_dsn) as connection:
                results_table.publish(connection, self._spec.source, [report])
