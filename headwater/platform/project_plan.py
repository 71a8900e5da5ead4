"""Plan of one source: what `up` would make, also while the servers of the folder are down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc import source as capture
from cdc.postgres import session
from cdc.postgres.check import Check, CheckState
from headwater import runtime
from headwater.platform import others
from headwater.platform.specs import capture_spec, unsigned
from headwater.runtime.spec import ServiceName

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.capture import CaptureSpec
    from cdc.upkeep.difference import Difference
    from headwater.platform.deployment import Site
    from headwater.platform.impact import Impact
    from headwater.platform.view_catalog import KeptViews

_CAPTURING = (ServiceName.KAFKA, ServiceName.CONNECT)


class ProjectPlan:
    """What differs from what is declared for the source of a project; changes nothing.

    Args:
        site: The project, and where its servers are.
        views: The views that it keeps.
    """

    def __init__(self, site: Site, views: KeptViews) -> None:
        self._site = site
        self._views = views

    def differences(self, impact: Callable[[], Impact], *, job_runs: bool) -> list[Difference]:
        """Returns the differences that can be seen; `unseen` names what cannot.

        Args:
            impact: Says which views do not fit the source as it is, once the servers were started.
            job_runs: Whether the job keeps the views at this moment.

        Raises:
            ViewMovedError: A view has the rows of another source.
            PlanError: A view does not fit its table.
            CdcError: The source, or a server that runs, does not answer.
        """
        others.refuse_moved(self._site.project)
        if self._source_down():
            return []
        self._views.plans()
        return [
            *self._of_capture(),
            *self._views.to_build(job_runs=job_runs),
            *self._views.to_rebuild(),
            *self._views.to_withdraw(),
            *([] if self._never_started() else impact().of_source()),
        ]

    def unseen(self) -> list[Check]:
        """Names what cannot be seen, because servers of this folder are down."""
        if self._source_down():
            name = f"source {self._site.source}"
            why = "its database is in the Postgres of this folder, which is down"
        elif self._down(*_CAPTURING) and not self._first_start():
            name, why = "topics and connector", "servers of this folder are down"
        else:
            return []
        return [Check(name, CheckState.WARN, f"cannot be seen: {why}", hint="headwater up")]

    def warnings(self) -> list[Check]:
        """Returns warnings about the source."""
        found = []
        if not self._source_down():
            spec = self._spec()
            with session.connect(spec.dsn) as connection:
                found = capture.checks(connection, spec)
        found += unsigned(self._site.project)
        return [check for check in found if check.state is CheckState.WARN]

    def _of_capture(self) -> list[Difference]:
        if not self._down(*_CAPTURING):
            return capture.plan(self._site.capture_spec())
        if self._first_start():
            return capture.plan_first(self._spec())
        return capture.plan_at_source(self._spec())

    def _spec(self) -> CaptureSpec:
        """Says how the source is captured, without the addresses of servers."""
        return capture_spec(self._site.project, self._site.source_dsn, runtime.Endpoints())

    def _first_start(self) -> bool:
        """Whether Kafka and Connect are this folder's own, and were never started here."""
        return self._site.runtime.spawned.keys() >= set(_CAPTURING) and self._never_started()

    def _never_started(self) -> bool:
        """Whether a server of this folder has no address yet."""
        return bool(self._site.runtime.spawned) and self._status() is None

    def _source_down(self) -> bool:
        given = self._site.project.settings.for_source(self._site.source).dsn
        return given is None and self._down(ServiceName.POSTGRES)

    def _down(self, *names: ServiceName) -> bool:
        """Whether one of the servers is this folder's own, and those of the folder do not run."""
        found = self._status()
        own = not self._site.runtime.spawned.keys().isdisjoint(names)
        return own and (found is None or not found.running)

    def _status(self) -> runtime.RuntimeStatus | None:
        return runtime.status(self._site.project.settings.home)
