"""The platform assembled: servers, capture and the job of one project, behind one object."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from cdc import source as capture
from cdc.broker.reading.tail import first_change
from cdc.lsn import Lsn
from cdc.snapshot.reader import keep_reading
from cdc.snapshot.report import report
from cdc.topic_names import TopicNames
from cdc.upkeep.capture_supervisor import supervise
from foundation.waiting import looks
from headwater import runtime
from headwater.errors import UnhealthyError
from headwater.platform import others
from headwater.platform.deployment import Site
from headwater.platform.impact import Impact
from headwater.platform.job_status import JobReport
from headwater.platform.project_plan import ProjectPlan
from headwater.platform.specs import (
    JOB,
    WATCH,
    alert_spec,
    applied_file,
    command_name,
    job_config,
    job_folder,
    ready_file,
    runtime_spec,
)
from headwater.platform.view_catalog import KeptViews
from headwater.project import optional
from headwater.project.project import remember
from headwater.runtime.spec import ServiceName
from projections.common.fault import Fault
from projections.verification.report import Uncompared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from cdc.capture import CaptureSpec
    from cdc.change_event import ChangeEvent
    from cdc.postgres.check import Check
    from cdc.snapshot.report import ReadReport
    from cdc.upkeep.difference import Difference
    from headwater.platform.impact import Effect
    from headwater.project.project import Project
    from headwater.project.settings.errors import ConflictingSettingsError
    from headwater.runtime import Endpoints, RuntimeStatus, StatusEvent
    from projections.alerting.watcher import AlertSpec
    from projections.definition.views import Store
    from projections.planning.job_spec import JobSpec

_POLL_S = 0.2
_WATCH_S = 2.0
_STOP_S = 10.0
_PROGRESS_EVERY_S = 2.0
_STORE_S = 30.0  # a store that is started again answers by then
_STORES = (ServiceName.CACHE, ServiceName.SEARCH)


class Platform:
    """One project's servers, capture and job.

    Attributes:
        project: The project.
        job_report: The job's report on itself.
        views: The views that it keeps.

    Args:
        project: The project.
        config: Its settings file, which the job opens again in its own process.
        lifeline: Stop everything when this process ends, however it ends.

    Raises:
        PlatformMissingError: The extra `platform` is not installed.
    """

    def __init__(self, project: Project, config: Path, *, lifeline: bool = False) -> None:
        optional.require()
        self.project = project
        self._config = config
        self._spec = runtime_spec(project, config, lifeline=lifeline)
        self._site = Site(project, self._spec)
        self.job_report = JobReport(job_folder(project))
        self.views = KeptViews(self._site, self.job_report)
        self._plan = ProjectPlan(self._site, self.views)

    def start(self, on_event: Callable[[StatusEvent], None]) -> Endpoints:
        """Starts or joins the servers and the job; returns when every server answers."""
        self.project.home.create()
        if not self.running():
            # job and watch wait until this start has looked at the source: it may refuse to go on
            for part in self.project.parts:
                applied_file(part).unlink(missing_ok=True)
        remember(self.project, self._config)
        # of several sources, one whose job gave up does not keep the others from starting
        names = [command.name for command in self._spec.commands]
        endpoints = runtime.up(
            self._spec,
            on_event=on_event,
            await_commands=False,
            may_fail=names if self.project.shares_home else (),
        )
        self.ensure_database()
        return endpoints

    @property
    def config(self) -> Path:
        """The project's settings file."""
        return self._config

    @property
    def endpoints(self) -> Endpoints:
        """Where the servers answer, once they were started."""
        return self._site.endpoints

    @property
    def source_dsn(self) -> str:
        """How the source is reached: as the settings say, else in the local Postgres."""
        return self._site.source_dsn

    def ensure_database(self) -> None:
        """Creates the databases that the local Postgres is to hold and does not yet."""
        settings = self.project.settings
        for name in self.project.sources:
            if settings.for_source(name).dsn is not None:
                continue
            with psycopg.connect(self.endpoints.postgres_dsn or "", autocommit=True) as connection:
                query = "SELECT 1 FROM pg_database WHERE datname = %s"
                if connection.execute(query, (name,)).fetchone() is None:
                    create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
                    connection.execute(create)

    def same_database(self) -> ConflictingSettingsError | None:
        """Says that an earlier source is the same database; one that is down is not compared."""
        return others.same_database(self._site)

    def apply(self) -> list[str]:
        """Makes the source be captured; returns what had to be changed for that."""
        others.refuse_moved(self.project)
        if (error := self.same_database()) is not None:
            raise error
        self.views.plans()  # a view that does not fit is refused before anything is changed
        changes = capture.apply(self.capture_spec())
        self.project.home.create()  # servers of somebody else need no `up` before
        self._note_applied()
        return changes

    def capture_spec(self) -> CaptureSpec:
        """Says how the source is captured."""
        return self._site.capture_spec()

    def plan_repair(self) -> capture.RepairPlan:
        """Returns what a repair of the capture would do; changes nothing."""
        return capture.plan_repair(self.capture_spec())

    def repair(self, say: Callable[[str], None]) -> list[str]:
        """Recreates a capture that has lost changes; reports each step, and returns all of them."""
        done = capture.repair(self.capture_spec(), say)
        self._note_applied()  # job and watch may have waited for it
        return done

    def _note_applied(self) -> None:
        path = applied_file(self.project)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def first_change(self, deadline_s: float) -> ChangeEvent | None:
        """Returns the first captured change; None if none comes in time, or all was empty."""
        source = self.project.source
        names = TopicNames(source.name, source.escaped_topics)
        topics = [names.of(table) for table in source.tables]
        deadline = time.monotonic() + deadline_s
        while (left_s := deadline - time.monotonic()) > 0:
            read = self.reads()  # before it is looked at: what they sent is there by then
            found = first_change(
                self.endpoints.kafka_bootstrap, topics, min(_PROGRESS_EVERY_S, left_s)
            )
            if found is not None or all(r.state == "done" and not r.rows_read for r in read):
                return found
        return None

    def plan(self) -> list[Difference]:
        """Returns what differs from what is declared; changes nothing.

        While servers of this folder are down, what is in them is left out: `unseen` names it.
        Before their first start, everything of theirs is to be made.
        """
        return self._plan.differences(lambda: self._impact, job_runs=self.job_runs())

    def unseen(self) -> list[Check]:
        """Names what `plan` cannot see, because servers of this folder are down."""
        return self._plan.unseen()

    def building(self) -> list[tuple[str, Store]]:
        """Returns by view and store what the job has yet to fill for the first time."""
        return self.views.building() if self.job_runs() else []

    def migration_effects(self, migration: str) -> list[Effect]:
        """Returns what becomes of the views by a migration; changes nothing.

        Args:
            migration: SQL statements, which are tried on copies of the tables without rows.

        Raises:
            MigrationError: It fails, or reaches beyond the copies.
        """
        return self._impact.of_migration(migration)

    def warnings(self) -> list[Check]:
        """Returns warnings about the source; changes nothing."""
        return self._plan.warnings()

    def watch(self) -> None:
        """Keeps the connector running until stopped: Connect restarts no failed task itself.

        Raises:
            ConnectorFailedError: It failed in a way that a restart cannot repair.
            CaptureStalledError: It claims to run, and nothing moves.
            PublicationDriftError: Its publication is gone.
        """
        self._await_capture()
        spec = self.capture_spec()
        stop = threading.Event()
        reader = threading.Thread(
            target=keep_reading, args=(spec, stop), name="snapshots", daemon=True
        )
        reader.start()
        beside = [*self._alerting(stop), *self._verifying(stop)]
        try:
            supervise(spec, _WATCH_S, begun=ready_file(self.project, WATCH).touch)
        finally:
            stop.set()
            reader.join(_STOP_S)
            for thread in beside:
                thread.join(_STOP_S)

    def alert_spec(self) -> AlertSpec:
        """Returns the alerts as they are declared, and where everything is."""
        given = self.project, self.source_dsn, self.endpoints
        return alert_spec(*given, self.views.plans, self.views.derived_shown)

    def _alerting(self, stop: threading.Event) -> list[threading.Thread]:
        """Begins to look at views for alerts, and to tell, if any are declared."""
        from projections.alerting import watcher  # noqa: PLC0415  # only a process that keeps at it

        return watcher.begin(self.alert_spec(), stop) if self.project.declarations.alerts else []

    def _verifying(self, stop: threading.Event) -> list[threading.Thread]:
        """Begins to verify the views in the background, unless the settings say otherwise."""
        from projections.verification.background import BackgroundVerification  # noqa: PLC0415

        settings = self.project.settings.verify
        if not settings.enabled:
            return []
        base: JobSpec | None = None

        def bound() -> JobSpec:
            nonlocal base
            if base is None:
                base = self._site.job_spec(())
            plans, derived = self.views.taken_over()
            return replace(base, plans=plans, derived=derived)

        verification = BackgroundVerification(bound, settings.budget, stop)
        thread = threading.Thread(target=verification.run, name="verification", daemon=True)
        thread.start()
        return [thread]

    def run_job(self) -> int:
        """Keeps the views in this process until told to stop; returns its exit code."""
        from projections.job import driver as job  # noqa: PLC0415  # only the job's process loads Spark

        # Spark takes as long to start as the servers do: it need not wait for them, except for
        # those that are its own
        endpoints = self.endpoints if self._spec.spark else runtime.Endpoints()
        job.begin(job_config(self.project, "", endpoints))
        self._await_capture()
        others.refuse_moved(self.project)
        self.views.register()
        others.note_views(self.project)
        return job.run(self._site.job_spec(self.views.plans()))

    def await_job(
        self, deadline_s: float, progress: Callable[[list[ReadReport]], None] | None = None
    ) -> None:
        """Waits until the job keeps the views.

        Args:
            deadline_s: Longest wait, seconds.
            progress: Called periodically with the progress of the snapshots.

        Raises:
            UnhealthyError: It gave up, or did not start in time.
        """
        reported_at = 0.0

        def ready() -> bool:
            nonlocal reported_at
            if progress is not None and time.monotonic() > reported_at + _PROGRESS_EVERY_S:
                progress(self.reads())
                reported_at = time.monotonic()
            return self._job_ready()

        self._await(ready, deadline_s, "the job is not ready")

    def reads(self) -> list[ReadReport]:
        """Returns how far the source's tables have been read."""
        return report(self.capture_spec())

    def current_lsn(self) -> Lsn:
        """Returns the source's end of log after a heartbeat, which makes it pass by."""
        with self._site.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        return Lsn.parse(str(row[0] if row else ""))

    def await_applied(
        self, lsn: Lsn, deadline_s: float, everywhere: Collection[tuple[str, Store]] = ()
    ) -> None:
        """Waits until every view in every store has applied everything up to a position.

        Versions that the job has not adopted yet are left out.

        Args:
            lsn: The position.
            deadline_s: Longest wait, seconds.
            everywhere: Views in stores that are waited for even if they are paused.

        Raises:
            UnhealthyError: One is behind after the deadline; it is named.
        """

        def behind() -> list[str]:
            return [f"{name} in {store}" for name, store in self._behind(lsn, everywhere)]

        try:
            self._await(lambda: not behind(), deadline_s, f"views have not reached {lsn}")
        except UnhealthyError as error:
            detail, hint = ", ".join(behind()), error.hint
            wrong = self.job_report.attendant_errors() | self.job_report.store_errors()
            for part, fault in wrong.items():
                detail += f"; {part}: {fault['code']} {fault['message']}"
                hint = fault["hint"] or hint
            raise UnhealthyError(error.message, detail=detail, hint=hint) from None

    def await_stores(
        self, lsn: Lsn, deadline_s: float, store_s: float = _STORE_S
    ) -> list[Uncompared]:
        """Waits as `await_applied` does, but not for stores that the job cannot write.

        Args:
            lsn: The position.
            deadline_s: Longest wait, seconds.
            store_s: Shortest wait for a store that cannot be written, seconds.

        Returns:
            What is behind in such stores once nothing else is.

        Raises:
            UnhealthyError: A view is behind after the deadline in a store that is written.
        """
        faults: dict[tuple[str, Store], Fault] = {}
        began, places = time.monotonic(), self._behind(lsn)
        while places and time.monotonic() - began < deadline_s:
            faults |= {each: found for each in places if (found := self.job_report.fault_of(*each))}
            if faults.keys() >= set(places) and time.monotonic() - began > store_s:
                return [Uncompared(*each, faults[each]) for each in places]
            self._check_failed(but=_STORES)
            time.sleep(_POLL_S)
            places = self._behind(lsn)
        if places:
            self.await_applied(lsn, 0.0)
        return []

    def _behind(
        self, lsn: Lsn, everywhere: Collection[tuple[str, Store]] = ()
    ) -> list[tuple[str, Store]]:
        """Returns the views in stores that are behind a position, without paused ones.

        Those in `everywhere` are checked even if paused.
        """
        plans, derived = self.views.taken_over()
        wanted = {(plan.name, store) for plan in plans for store in plan.to}
        wanted |= {(view.name, store) for view in derived for store in view.to}
        reached = {(p.view, p.store) for p in self.views.positions() if p.applied_through >= lsn}
        found = (wanted - reached) - self.job_report.halted().keys()
        return sorted(found | (set(everywhere) - reached))

    def captured(self) -> bool:
        """Whether the source was ever captured."""
        return self.views.captured()

    def require_captured(self) -> None:
        """Refuses a source that was never captured.

        Raises:
            UnhealthyError: It was not.
        """
        self.views.require_captured()

    def status(self) -> RuntimeStatus | None:
        """Returns what runs; changes nothing."""
        return runtime.status(self.project.settings.home)

    def running(self) -> bool:
        """Whether the servers of this project's home run."""
        found = self.status()
        return found is not None and found.running

    def stop(self) -> bool:
        """Stops everything in order; returns whether anything ran."""
        return runtime.down(self.project.settings.home)

    def suspend(self, source: str) -> list[str]:
        """Stops the job and the watch of a source until the next `start`; the servers go on.

        Args:
            source: Name of the source, which need not be declared any more.

        Returns:
            Names of the commands that ran.

        Raises:
            StopTimeoutError: One did not stop.
        """
        for part in self.project.parts:
            if part.source.name == source:
                applied_file(part).unlink(missing_ok=True)  # a job that is started waits
        names = {f"{command}.{source}" for command in (JOB, WATCH)}
        if self.project.shares_home or self.project.source.name == source:
            names |= {JOB, WATCH}  # they run so if they were started as those of the only source
        return runtime.suspend(self.project.settings.home, names)

    @property
    def _impact(self) -> Impact:
        failing = None
        if self.job_runs():
            errors = {view: state["error"] for view, state in self.job_report.derived().items()}
            failing = {view: Fault(**error) for view, error in errors.items() if error}
        return Impact(self.project, self.source_dsn, self.endpoints, self._site.hiding, failing)

    def job_runs(self) -> bool:
        """Whether the job keeps the views at this moment."""
        return self._job_ready()

    def _job_ready(self) -> bool:
        found = self.status()
        job = found.service(command_name(self.project, JOB)) if found else None
        return job is not None and job.state is runtime.ServiceState.READY

    def _await_capture(self) -> None:
        """Waits as long as it takes: a lost capture waits for its repair."""
        while not applied_file(self.project).exists():
            self._check_failed()
            time.sleep(_POLL_S)

    def _await(self, reached: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
        for _ in looks(deadline_s, _POLL_S):
            if reached():
                return
            self._check_failed()
        log = runtime.log_path(self.project.settings.home, command_name(self.project, JOB))
        before = f"; its last error was {error}" if (error := self.job_report.error) else ""
        detail = f"after {deadline_s:.0f} s{before}"
        raise UnhealthyError(otherwise, detail=detail, hint=f"see {log}")

    def _check_failed(self, but: Collection[str] = ()) -> None:
        found = self.status()
        beside = self._beside()
        for service in found.failed if found else ():
            if service.name in but or service.name in beside:
                continue
            log = runtime.log_path(self.project.settings.home, service.name)
            detail = (
                self.job_report.error if service.name == command_name(self.project, JOB) else None
            )
            raise UnhealthyError(
                f"{service.name} has failed",
                detail=str(detail or service.last_error),
                hint=f"see {log}",
            )

    def _beside(self) -> set[str]:
        """Names of the supervised programs of other sources."""
        own = self.project.source.name
        beside = [part for part in self.project.parts if part.source.name != own]
        return {command_name(part, each) for part in beside for each in (JOB, WATCH)}
