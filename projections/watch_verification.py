"""Verification in the background: view after view, for good, in a small share of the time.

A pass over a view is cut into steps of some thousand rows, with pauses between them as the budget
asks. The view that was not looked at for the longest time comes next, so whoever starts this again
goes on where it ended. What it finds lies in the source; a view that differs is logged, with counts
and never a value. Views made from others are compared in search and cache; what their tables should
be only Spark can tell.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import psycopg
import structlog

from cdc.errors import CdcError
from cdc.postgres import session
from projections.errors import NotCaughtUpError, ProjectionError
from projections.verification import ledger
from projections.verification.pace import Pace
from projections.verify import Verification

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from projections.plan import ViewPlan
    from projections.spec import JobSpec
    from projections.view_report import ViewReport

FIRST_S: Final = 60.0
"""Before the first pass: whatever has just been started has better to do."""

PAUSE_S: Final = 10.0
"""Between two views; small ones would be compared all the time otherwise."""

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_log = structlog.get_logger(__name__)


class BackgroundVerification:
    """Verifies one view after the other.

    Args:
        bound: Returns the job, with its views as they are bound now.
        budget: Share of the time that it may work.
        stop: Ends it.
    """

    def __init__(self, bound: Callable[[], JobSpec], budget: float, stop: threading.Event) -> None:
        self._bound = bound
        self._pace = Pace(budget, stop)
        self._stop = stop
        self._said: dict[tuple[str, str], tuple[int, ...]] = {}

    def run(self, first_s: float = FIRST_S, pause_s: float = PAUSE_S) -> None:
        """Goes on until it is stopped; nothing that a view or a store does ends it."""
        self._stop.wait(first_s)
        while not self._stop.is_set():
            try:
                self.look()
            except NotCaughtUpError:
                _log.info("a view is behind, and is verified later")
            except (ProjectionError, CdcError) as error:
                _log.warning("a view is not verified", code=error.code)
            except (psycopg.Error, OSError) as error:
                _log.warning("a view is not verified", kind=type(error).__name__)
            self._stop.wait(pause_s)

    def look(self) -> list[ViewReport]:
        """Verifies the view that was not looked at for the longest time; returns what was found."""
        spec = self._bound()
        verification = Verification(spec, self._pace)
        with session.connect(spec.source_dsn) as connection:
            seen = {(v.view, v.store): v.looked_at for v in ledger.read(connection, spec.source)}
        plans = list(verification.plans())
        if not plans:
            return []

        def looked_at(plan: ViewPlan) -> datetime:
            return min(seen.get((plan.name, store), _NEVER) for store in plan.to)

        plan = min(plans, key=looked_at)
        reports: list[ViewReport] = []
        steps = verification.steps(plan, sorted(plan.to), reports)
        self._pace.rest(0)
        for _ in steps:
            self._pace.step()
            if self._stop.is_set():
                break
        if self._stop.is_set():
            return []  # what was not waited for to its end says nothing
        with session.connect(spec.source_dsn) as connection:
            ledger.publish(connection, spec.source, reports)
        for report in reports:
            self._tell(report)
        return reports

    def _tell(self, report: ViewReport) -> None:
        """Logs what differs, once until it is otherwise."""
        place = report.view, str(report.store)
        counts = report.missing, report.extra, report.different, report.quarantined
        if counts == self._said.get(place, (0, 0, 0, 0)):
            return
        self._said[place] = counts
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
