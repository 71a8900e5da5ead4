"""Derived watch: the job verifies tables of derived views on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from cdc.errors import CdcError
from projections.common.background_task import BackgroundTask
from projections.errors import ProjectionError, WriterLockedError
from projections.incremental.spark.maintainer import DerivedMaintainer
from projections.incremental.spark.table_reader import TableVersions
from projections.job.batch.verify_derived import derived_report
from projections.publishing.other_sources import published_views
from projections.publishing.published_versions import Published
from projections.verification.derived_checks import CheckAnswer, Checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from projections.definition.views import DerivedView
    from projections.planning.job_spec import JobSpec
    from projections.verification.derived_checks import CheckRequest

_TICK_S: Final = 0.2
_FAILURES: Final = (
    ProjectionError,
    CdcError,
    PySparkException,
    Py4JError,
    DeltaError,
    OSError,
)
_log = structlog.get_logger(__name__)


class DerivedChecksTask(BackgroundTask):
    """Verifies one table at a time, and answers with the result.

    A request is answered as fast as possible; a caller with a budget limits its requests.

    Args:
        session: The Spark session.
        spec: The job.
        pool: Spark's scheduler pool.
        views: Returns the views that are maintained at this moment.
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
        self._checks = Checks(spec.config)
        self._views = views

    def work(self) -> None:
        """Answers until stopped."""
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        while not self.rested(_TICK_S):
            try:
                with self._checks.serving():
                    self._serve()
            except WriterLockedError:
                continue  # a caller probes the lock, or the previous job still holds it

    def _serve(self) -> None:
        self._checks.clear()
        while not self.rested(_TICK_S):
            for check in self._checks.asked():
                if self._stopped.is_set():
                    return
                self._checks.answer(check, self._answer(check))

    def _answer(self, check: CheckRequest) -> CheckAnswer:
        view = next((each for each in self._views() if each.name == check.view), None)
        if view is None or view.fingerprint != check.fingerprint:
            return CheckAnswer(compared=False)
        try:
            return self._compared(view)
        except _FAILURES as error:
            if not self._stopped.is_set():
                _log.warning("a view is not verified", view=view.name, kind=type(error).__name__)
            return CheckAnswer(compared=False)

    def _compared(self, view: DerivedView) -> CheckAnswer:
        tables = self._spec.config.addresses.tables
        published = Published(tables, self._spec.config.source)
        latest, physical_names = published.latest(), published.current()
        if latest is None:
            return CheckAnswer(compared=True)
        # a separate one with Delta's own reader, independent of the one that computed the view
        maintainer = DerivedMaintainer(
            tables, view, TableVersions(self._session, tables, files_max=0)
        )
        others = published_views(tables, self._spec.cross_reads.read)
        report = derived_report(
            maintainer, latest, physical_names, self._spec.config.source, others
        )
        return CheckAnswer(compared=True, report=report)
