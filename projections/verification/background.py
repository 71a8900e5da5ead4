"""Background verification: one view after another, continuously, in a small share of the time.

A pass over a view consists of steps of some thousand rows, with pauses between them as the budget
demands. The view verified least recently comes next, so a restart continues where the last run
ended. A view that could not be verified counts as visited and delays no other. The results are
stored in the source; a view that differs is logged, with counts and never a value. Only Spark can
compute the expected tables of derived views: the job is asked for one at a time, with the same
share of the time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from cdc.errors import CdcError
from cdc.postgres import session
from projections.common.fault import kind_and_place
from projections.common.throttle import Throttle
from projections.definition.views import Store
from projections.errors import NotCaughtUpError, ProjectionError, VerificationError
from projections.publishing.published_versions import Published
from projections.verification import results_table
from projections.verification.derived_checks import Checks, verified_by_job
from projections.verification.verify import DEADLINE_S, JobVerification

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import psycopg

    from projections.definition.views import DerivedView
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.verification.report import Uncompared, ViewReport

FIRST_S: Final = 60.0
"""Delay before the first pass: a job that has just started has more urgent work."""

PAUSE_S: Final = 10.0
"""Pause between two views; small ones would otherwise be compared continuously."""

ANSWER_S: Final = 300.0
"""How long the job may take for a table; a slower one is left to a later turn."""

REST_MAX_S: Final = 1800.0
"""Longest pause after a table, however long it took."""

_NOW: Final = "SELECT clock_timestamp()"
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_log = structlog.get_logger(__name__)


class BackgroundVerification:
    """Verifies one view after the other.

    Args:
        bound: Returns the job with its present views.
        budget: Greatest share of the time to use.
        stop: Stops it.
        deadline_s: Longest wait for a view to reach a position, seconds.
    """

    def __init__(
        self,
        bound: Callable[[], JobSpec],
        budget: float,
        stop: threading.Event,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._bound = bound
        self._throttle = Throttle(budget, stop, error=VerificationError)
        self._budget = budget
        self._stop = stop
        self._deadline_s = deadline_s
        self._reported: dict[tuple[str, str], tuple[int, ...]] = {}
        self._begun: dict[tuple[str, bool], datetime] = {}

    def run(self, first_s: float = FIRST_S, pause_s: float = PAUSE_S) -> None:
        """Runs until it is stopped; no failure of a view or store ends it."""
        self._stop.wait(first_s)
        while not self._stop.is_set():
            try:
                self.look()
            except (ProjectionError, CdcError) as error:
                _log.warning("a view is not verified", code=error.code)
            except Exception as error:  # noqa: BLE001  # otherwise the thread would end silently
                _log.warning("a view is not verified", kind=kind_and_place(error))
            self._stop.wait(pause_s)

    def look(self) -> list[ViewReport]:
        """Verifies the view verified least recently; returns the result."""
        spec = self._bound()
        verification = JobVerification(
            spec, self._throttle, deadline_s=self._deadline_s, uncompared=_log_uncompared
        )
        with session.connect(spec.config.source_dsn) as connection:
            seen = {
                (v.view, v.store): v.looked_at
                for v in results_table.read(connection, spec.config.source)
            }
            now = _now(connection)
        derived = {view.name for view in spec.derived}
        plans = {plan.name: plan for plan in verification.plans()}
        # the table of a derived view is verified separately
        places = {
            (name, False): plan.to - {Store.TABLE} if name in derived else plan.to
            for name, plan in plans.items()
        }
        tables = (
            {view.name: view for view in _published(spec)} if Checks(spec.config).served() else {}
        )
        places |= {(name, True): frozenset({Store.TABLE}) for name in tables}
        if not places:
            return []

        def looked_at(place: tuple[str, bool]) -> datetime:
            name, _ = place
            times = (seen.get((name, store), _NEVER) for store in places[place])
            return max(min(times), self._begun.get(place, _NEVER))

        chosen = min(places, key=looked_at)
        # recorded first: if this turn ends without a result, the next one is another view's
        self._begun[chosen] = now
        if chosen[1]:
            return self._look_at_table(spec.config, tables[chosen[0]])
        plan = plans[chosen[0]]
        reports: list[ViewReport] = []
        steps = verification.steps(plan, sorted(places[chosen]), reports)
        self._throttle.rest(0)
        for _ in steps:
            self._throttle.step()
            if self._stop.is_set():
                break
        if self._stop.is_set():
            return []  # an unfinished wait gives no result
        with session.connect(spec.config.source_dsn) as connection:
            results_table.publish(connection, spec.config.source, reports)
        for report in reports:
            self._log_difference(report)
        return reports

    def _look_at_table(self, config: JobConfig, view: DerivedView) -> list[ViewReport]:
        """Requests that the job verifies the table of a view; returns its answer."""
        began = time.monotonic()
        answers = verified_by_job(config, [view], within_s=ANSWER_S, stop=self._stop)
        reports = [each.report for each in answers.values() if each.report is not None]
        worked_s = time.monotonic() - began
        with session.connect(config.source_dsn) as connection:
            results_table.publish(connection, config.source, reports)
        for report in reports:
            self._log_difference(report)
        self._stop.wait(min(REST_MAX_S, worked_s * (1 / self._budget - 1)))
        return reports

    def _log_difference(self, report: ViewReport) -> None:
        """Logs a difference, once until it changes."""
        place = report.view, str(report.store)
        counts = report.missing, report.extra, report.different, report.quarantined
        if counts == self._reported.get(place, (0, 0, 0, 0)):
            return
        self._reported[place] = counts
        if report.equal:
            _log.info("view equals its source again", view=report.view, store=str(report.store))
            return
        names = ("missing", "extra", "different", "quarantined")
        _log.error(
            "view differs from its source",
            view=report.view,
            store=str(report.store),
            **dict(zip(names, counts, strict=True)),
        )


def _log_uncompared(uncompared: Uncompared) -> None:
    """Logs that a view could not be compared; its next turn repeats that."""
    place = {"view": uncompared.view, "store": str(uncompared.store)}
    if uncompared.fault.code == NotCaughtUpError.code:
        _log.info("a view is behind, and is verified later", **place)
    else:
        _log.warning("a view is not verified", code=uncompared.fault.code, **place)


def _now(connection: psycopg.Connection[Any]) -> datetime:
    """Returns the source's time, as in its tables; the local clock may differ by an hour."""
    (now,) = connection.execute(_NOW).fetchone() or (_NEVER,)
    source_time: datetime = now
    return source_time


def _published(spec: JobSpec) -> list[DerivedView]:
    """Returns the derived views with a published table."""
    latest = Published(spec.config.addresses.tables, spec.config.source).latest()
    known = {} if latest is None else latest.views
    return [view for view in spec.derived if view.name in known]
