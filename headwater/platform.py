"""The platform assembled: servers, capture and the job of one project, behind one object."""

from __future__ import annotations

import difflib
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import structlog
from psycopg import sql

from cdc import source as capture
from cdc.broker.tail import first_change
from cdc.column_rule import Hiding
from cdc.lsn import Lsn
from cdc.postgres import own_schema, session
from cdc.postgres.check import Check, CheckState
from cdc.snapshot.reader import keep_reading
from cdc.snapshot.report import report
from cdc.upkeep.difference import Difference, Part
from cdc.upkeep.keeper import keep
from headwater import extra, runtime
from headwater.errors import UnhealthyError, UsageError
from headwater.impact import Impact
from headwater.job_report import JobReport
from headwater.project import remember
from headwater.wiring import (
    JOB,
    WATCH,
    alert_spec,
    applied_file,
    capture_spec,
    job_spec,
    ready_file,
    runtime_spec,
    unsigned,
    with_database,
)
from projections import binding, derived_versions, view_versions
from projections.errors import ViewPausedError
from projections.fault import Fault
from projections.published import Published, stable_path
from projections.view import Store
from projections.view_definition import ChangeKind
from projections.view_versions import VersionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from cdc.capture import CaptureSpec
    from cdc.change_event import ChangeEvent
    from cdc.snapshot.report import ReadReport
    from headwater.impact import Effect
    from headwater.project import Project
    from headwater.runtime import Endpoints, RuntimeStatus, StatusEvent
    from projections.alerting.watch import AlertSpec
    from projections.binding import Binding, NotedChange
    from projections.explanation import ViewExplanation
    from projections.plan import ViewPlan
    from projections.positions import ViewPosition
    from projections.repair import Repaired
    from projections.spec import JobSpec
    from projections.trace import Trace
    from projections.verification.ledger import Verified
    from projections.view import DerivedView, View
    from projections.view_report import ViewReport

_POLL_S = 0.2
_WATCH_S = 2.0
_STOP_S = 10.0
_TOLD_EVERY_S = 2.0

_log = structlog.get_logger(__name__)


class Platform:
    """One project's servers, capture and job.

    Attributes:
        project: The project.
        told: What the job says of itself.

    Args:
        project: The project.
        config: Its settings file, which the job opens again in its own process.
        lifeline: Stop everything when this process ends, however it ends.

    Raises:
        PlatformMissingError: The extra `platform` is not installed.
    """

    def __init__(self, project: Project, config: Path, *, lifeline: bool = False) -> None:
        extra.require()
        self.project = project
        self._config = config
        self._spec = runtime_spec(project, config, lifeline=lifeline)
        self.told = JobReport(project.home.run)

    def start(self, on_event: Callable[[StatusEvent], None]) -> Endpoints:
        """Starts or joins the servers and the job; returns when every server answers."""
        self.project.home.create()
        if not self.running():
            # job and watch wait until this start has looked at the source: it may refuse to go on
            applied_file(self.project).unlink(missing_ok=True)
        remember(self.project, self._config)
        endpoints = runtime.up(self._spec, on_event=on_event, await_commands=False)
        self.ensure_database()
        return endpoints

    @property
    def config(self) -> Path:
        """The project's settings file."""
        return self._config

    @property
    def endpoints(self) -> Endpoints:
        """Where the servers answer, once they were started."""
        return runtime.endpoints(self._spec)

    @property
    def source_dsn(self) -> str:
        """How the source is reached: as the settings say, else in the local Postgres."""
        name = self.project.source.name
        external = self.project.settings.for_source(name).dsn
        if external is not None:
            return external.get_secret_value()
        return with_database(self.endpoints.postgres_dsn or "", name)

    def ensure_database(self) -> None:
        """Creates the source's database if the local Postgres is to hold it and does not yet."""
        name = self.project.source.name
        if self.project.settings.for_source(name).dsn is not None:
            return
        with psycopg.connect(self.endpoints.postgres_dsn or "", autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if found.fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def bound(self) -> Binding:
        """Binds the views that are kept to the source's tables; decides nothing about changes.

        Those are the declared ones, with every version of theirs that the job keeps.
        """
        with session.connect(self.source_dsn) as connection:
            name = self.project.source.name
            kept = view_versions.kept(connection, name, self._views())
            views = [each.view for each in kept]
            bound = binding.bind(connection, name, views, hiding=self._hiding)
        shown = {each.view.name: each.shown for each in kept}
        plans = tuple(replace(plan, shown=shown[plan.name]) for plan in bound.plans)
        return replace(bound, plans=plans)

    def plans(self) -> tuple[ViewPlan, ...]:
        """Binds the declared views that are not paused."""
        return self.bound().plans

    def resume_view(self, name: str) -> ViewPlan:
        """Lets a paused view go on with the columns that its table has now.

        Raises:
            UsageError: No view of that name is declared.
            ViewPausedError: It is not paused, or cannot go on as it is declared.
            PlanError: It does not fit its table.
        """
        view = self.project.declarations.views.get(name)
        if view is None:
            raise UsageError(f"no view is named {name}", hint="headwater view list")
        with session.connect(self.source_dsn) as connection:
            source = self.project.source.name
            # the version that readers see is the last
            *others, shown = view_versions.kept(connection, source, [view])
            for each in others:
                with suppress(ViewPausedError):  # it goes on already
                    binding.resume(connection, source, each.view, hiding=self._hiding)
            return binding.resume(connection, source, shown.view, hiding=self._hiding)

    def explain(self, name: str) -> ViewExplanation:
        """Says how a view is kept.

        Raises:
            UsageError: No view of that name is kept.
        """
        from projections.explanation import explain, explain_derived  # noqa: PLC0415

        plans = self._kept()
        shown = Published(self.project.home.root / "tables", self.project.source.name).current()
        derived = {view.name: view for view in self._derived_kept()}
        place = shown.get(name, name)
        if place in derived:
            said = self.told.derived().get(place, {})
            source = next(plan.source for plan in plans.values())
            found = explain_derived(derived[place], source, said, [*plans, *derived])
        else:
            found = explain(_named(plans, name), plans.values())
        if Store.TABLE not in found.sinks:
            return found
        path = stable_path(self.project.home.root / "tables", name.partition(".")[0])
        lines = (*found.sinks[Store.TABLE], f"read it at {path}")
        return replace(found, sinks={**found.sinks, str(Store.TABLE): lines})

    def trace(self, name: str, key: Sequence[str], changes_max: int) -> Trace:
        """Follows a row of a view from its commits to each store.

        Args:
            name: The view.
            key: The row's key, part by part, as text.
            changes_max: How many of its changes to tell, the newest.

        Raises:
            UsageError: No view of that name is kept.
            TraceError: The view's rows are not named by their table's key.
        """
        from projections.documents import key_text  # noqa: PLC0415
        from projections.trace import trace  # noqa: PLC0415

        plans = self._kept()
        plan = _named(plans, name)
        if len(key) != len(plan.keys):
            raise UsageError(
                f"the key of view {name} has {len(plan.keys)} parts",
                detail=", ".join(plan.keys),
                hint=f"headwater trace {name} " + " ".join(f"<{part}>" for part in plan.keys),
            )
        spec = job_spec(self.project, tuple(plans.values()), self.source_dsn, self.endpoints)
        return trace(spec, plan, key_text(key), changes_max)

    def _kept(self) -> dict[str, ViewPlan]:
        """Versions of views by their places, and by a view's name the one that readers see."""
        plans = self.plans()
        return {plan.name: plan for plan in plans} | {p.view: p for p in plans if p.shown}

    def schema_changes(self) -> list[NotedChange]:
        """Returns what is known of changes of the captured tables, the oldest first."""
        with session.connect(self.source_dsn) as connection:
            return binding.noted_changes(connection, self.project.source.tables)

    def apply(self) -> list[str]:
        """Makes the source be captured; returns what had to be changed for that."""
        self.plans()  # a view that does not fit is refused before anything is changed
        changes = capture.apply(capture_spec(self.project, self.source_dsn, self.endpoints))
        self.project.home.create()  # servers of somebody else need no `up` before
        applied_file(self.project).touch()
        return changes

    def capture_spec(self) -> CaptureSpec:
        """Says how the source is captured."""
        return capture_spec(self.project, self.source_dsn, self.endpoints)

    def plan_repair(self) -> capture.RepairPlan:
        """Returns what a repair of the capture would do; changes nothing."""
        return capture.plan_repair(self.capture_spec())

    def repair(self, say: Callable[[str], None]) -> list[str]:
        """Captures anew what has lost changes; says each step, and returns all of them."""
        done = capture.repair(self.capture_spec(), say)
        applied_file(self.project).touch()  # job and watch may have waited for it
        return done

    def first_change(self, deadline_s: float) -> ChangeEvent | None:
        """Returns the first captured change; None if none comes in time, or all was empty."""
        topics = [table.topic(self.project.source.name) for table in self.project.source.tables]
        deadline = time.monotonic() + deadline_s
        while (left_s := deadline - time.monotonic()) > 0:
            read = self.reads()  # before it is looked at: what they sent is there by then
            found = first_change(self.endpoints.kafka_bootstrap, topics, min(_TOLD_EVERY_S, left_s))
            if found is not None or all(r.state == "done" and not r.rows_read for r in read):
                return found
        return None

    def plan(self) -> list[Difference]:
        """Returns what differs from what is declared; changes nothing."""
        self.plans()
        spec = capture_spec(self.project, self.source_dsn, self.endpoints)
        return [
            *capture.plan(spec),
            *self._views_to_build(),
            *self._views_to_rebuild(),
            *self._impact.of_source(),
        ]

    def foresee(self, migration: str) -> list[Effect]:
        """Returns what becomes of the views by a migration; changes nothing.

        Args:
            migration: SQL statements, which are tried on copies of the tables without rows.

        Raises:
            MigrationError: It fails, or reaches beyond the copies.
        """
        return self._impact.of_migration(migration)

    def warnings(self) -> list[Check]:
        """Returns what works at the source and somebody should know; changes nothing."""
        spec = capture_spec(self.project, self.source_dsn, self.endpoints)
        with session.connect(spec.dsn) as connection:
            found = capture.checks(connection, spec)
        found += unsigned(self.project)
        return [check for check in found if check.state is CheckState.WARN]

    def _views_to_build(self) -> list[Difference]:
        """Views that no job has ever kept in a store of theirs."""
        with session.connect(self.source_dsn) as connection:
            known = own_schema.exists(connection)
        kept = {(p.view, p.store) for p in self.positions()} if known else set()
        bound = self.bound()
        views = [(plan.name, plan.to) for plan in bound.plans]
        views += [(paused.name, paused.to) for paused in bound.paused]
        views += [(derived.name, derived.to) for derived in self._derived_kept()]
        return [
            Difference(
                Part.VIEW,
                f"{name} in {store}",
                "",
                None,
                "is built",
                repaired=False,
                hint="the job builds it: headwater down, then headwater up",
            )
            for name, stores in views
            for store in sorted(stores)
            if (name, store) not in kept
        ]

    def _views_to_rebuild(self) -> list[Difference]:
        """Views that are kept by another definition than the declared one."""
        with session.connect(self.source_dsn) as connection:
            source, found = self.project.source.name, []
            versions = view_versions.read(connection, source)
            for view in (*self._views(), *self._derived()):
                own = [each for each in versions if each.view == view.name]
                shown = next((v for v in own if v.state is VersionState.CURRENT), None)
                change = None if shown is None else view_versions.changed(connection, shown, view)
                if shown is None or change is None or change.kind is not ChangeKind.REBUILD:
                    continue
                there = view_versions.made_for(own, view)
                verb = "rebuild" if there is None else "cutover"
                found.append(
                    Difference(
                        Part.VIEW,
                        view.name,
                        "definition",
                        f"version {shown.number}",
                        "; ".join(change.said),
                        repaired=False,
                        hint=f"headwater view {verb} {view.name}",
                    )
                )
        return found

    def watch(self) -> None:
        """Keeps the connector at work until told to stop: Connect restarts no failed task itself.

        Raises:
            ConnectorFailedError: It failed in a way that a restart does not cure.
            CaptureStalledError: It says that it runs, and nothing moves.
            PublicationDriftError: Its publication is gone.
        """
        self._await_capture()
        spec = capture_spec(self.project, self.source_dsn, self.endpoints)
        stop = threading.Event()
        reader = threading.Thread(
            target=keep_reading, args=(spec, stop), name="snapshots", daemon=True
        )
        reader.start()
        beside = [*self._alerting(stop), *self._verifying(stop)]
        try:
            keep(spec, _WATCH_S, begun=ready_file(self.project, WATCH).touch)
        finally:
            stop.set()
            reader.join(_STOP_S)
            for thread in beside:
                thread.join(_STOP_S)

    def alert_spec(self) -> AlertSpec:
        """Returns the alerts as they are declared, and where everything is."""
        given = self.project, self.source_dsn, self.endpoints
        return alert_spec(*given, self.plans, self._derived_shown)

    def _alerting(self, stop: threading.Event) -> list[threading.Thread]:
        """Begins to look at views for alerts, and to tell, if any are declared."""
        from projections.alerting import watch  # noqa: PLC0415  # only a process that keeps at it

        return watch.begin(self.alert_spec(), stop) if self.project.declarations.alerts else []

    def _verifying(self, stop: threading.Event) -> list[threading.Thread]:
        """Begins to verify the views in the background, unless the settings say otherwise."""
        from projections.watch_verification import BackgroundVerification  # noqa: PLC0415

        settings = self.project.settings.verify
        if not settings.enabled:
            return []
        base: JobSpec | None = None

        def bound() -> JobSpec:
            nonlocal base
            if base is None:
                base = job_spec(self.project, (), self.source_dsn, self.endpoints)
            return replace(base, plans=self.plans(), derived=self._derived_kept())

        verification = BackgroundVerification(bound, settings.budget, stop)
        thread = threading.Thread(target=verification.run, name="verification", daemon=True)
        thread.start()
        return [thread]

    def bound_spec(self) -> JobSpec:
        """Says what the job works on, with every version that it keeps."""
        spec = job_spec(self.project, self.plans(), self.source_dsn, self.endpoints)
        return replace(spec, derived=self._derived_kept())

    def run_job(self) -> int:
        """Keeps the views in this process until told to stop; returns its exit code."""
        from projections.spark import job  # noqa: PLC0415  # only the job's process loads Spark

        # Spark takes as long to start as the servers do: it need not wait for them, except for
        # those that are its own
        endpoints = self.endpoints if self._spec.spark else runtime.Endpoints()
        job.begin(job_spec(self.project, (), "", endpoints))
        self._await_capture()
        self._register()
        return job.run(job_spec(self.project, self.plans(), self.source_dsn, self.endpoints))

    def _register(self) -> None:
        """Notes the definitions of this start; tells of views that go on by another one."""
        with session.connect(self.source_dsn) as connection:
            name = self.project.source.name
            declared = (*self._views(), *self._derived())
            differing = view_versions.register(connection, name, declared)
        for view, said in sorted(differing.items()):
            _log.warning(
                "a view is kept as it was declared before",
                view=view,
                differs=said,
                repair=f"headwater view rebuild {view}",
            )

    def await_job(
        self, deadline_s: float, told: Callable[[list[ReadReport]], None] | None = None
    ) -> None:
        """Waits until the job keeps the views.

        Args:
            deadline_s: Longest wait, seconds.
            told: Told now and then how far tables have been read.

        Raises:
            UnhealthyError: It gave up, or did not start in time.
        """
        told_at = 0.0

        def ready() -> bool:
            nonlocal told_at
            if told is not None and time.monotonic() > told_at + _TOLD_EVERY_S:
                told(self.reads())
                told_at = time.monotonic()
            return self._job_ready()

        self._await(ready, deadline_s, "the job is not ready")

    def reads(self) -> list[ReadReport]:
        """Returns how far the source's tables have been read."""
        return report(capture_spec(self.project, self.source_dsn, self.endpoints))

    def positions(self) -> list[ViewPosition]:
        """Returns how far each view is in each store."""
        from projections import positions  # noqa: PLC0415

        with session.connect(self.source_dsn) as connection:
            return positions.read(connection)

    def waiting(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Returns by view and store how many records wait, and how many keys for a value only."""
        from projections.quarantine import desk  # noqa: PLC0415

        with session.connect(self.source_dsn) as connection:
            return desk.counts(connection, self.project.source.name)

    def current_lsn(self) -> Lsn:
        """Returns the source's end of log after a heartbeat, which makes it pass by."""
        with session.connect(self.source_dsn) as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        return Lsn.parse(str(row[0] if row else ""))

    def await_applied(self, lsn: Lsn, deadline_s: float) -> None:
        """Waits until every view in every store has applied everything up to a position.

        Raises:
            UnhealthyError: One is behind after the deadline; it is named.
        """

        def behind() -> list[str]:
            # a view that is paused meanwhile is not waited for, nor one that stands still there
            wanted = {(plan.name, store) for plan in self.plans() for store in plan.to}
            wanted |= {(view.name, store) for view in self._derived_kept() for store in view.to}
            reached = {(p.view, p.store) for p in self.positions() if p.applied_through >= lsn}
            found = (wanted - reached) - self.told.halted().keys()
            return sorted(f"{name} in {store}" for name, store in found)

        try:
            self._await(lambda: not behind(), deadline_s, f"views have not reached {lsn}")
        except UnhealthyError as error:
            detail, hint = ", ".join(behind()), error.hint
            wrong = self.told.store_errors() | self.told.attendant_errors()
            for part, said in wrong.items():
                detail += f"; {part}: {said['code']} {said['message']}"
                hint = said["hint"] or hint
            raise UnhealthyError(error.message, detail=detail, hint=hint) from None

    def verify(
        self,
        views: Collection[str] = (),
        stores: Collection[Store] = (),
        *,
        budget: float = 1.0,
    ) -> list[ViewReport]:
        """Compares views in their stores with the source; writes may go on.

        Of a view made from others, the table is compared with its query over theirs, and what the
        other stores have with its table.

        Args:
            views: Which; all if empty.
            stores: In which stores; in all of their own if empty.
            budget: Share of the time that may be worked.
        """
        from projections import verify  # noqa: PLC0415
        from projections.verification import ledger  # noqa: PLC0415
        from projections.verification.pace import Pace  # noqa: PLC0415

        spec = self.bound_spec()
        # every version of a view is verified with it
        places = {*views, *(plan.name for plan in spec.plans if plan.view in views)}
        places |= {each.name for each in spec.derived if each.name.partition(".")[0] in views}
        reports = verify.verify(spec, views=places, stores=stores, pace=Pace(budget))
        derived = tuple(
            view for view in spec.derived if not views or view.name.partition(".")[0] in views
        )
        if derived and (not stores or "table" in stores):
            from projections.spark.derived_verification import verify_derived  # noqa: PLC0415

            reports += verify_derived(replace(spec, derived=derived))
        with session.connect(self.source_dsn) as connection:
            ledger.publish(connection, spec.source, reports)
        return reports

    def verified(self) -> list[Verified]:
        """Returns what each view was found to be when it was verified last."""
        from projections.verification import ledger  # noqa: PLC0415

        with session.connect(self.source_dsn) as connection:
            return ledger.read(connection, self.project.source.name)

    def repair_view(
        self, reports: Sequence[ViewReport], say: Callable[[str], None]
    ) -> list[Repaired]:
        """Has what a verification found wrong read again, and judges it once more.

        Args:
            reports: Of `verify`.
            say: Is told each step.
        """
        from projections.repair import repair  # noqa: PLC0415

        return repair(self.capture_spec(), self.bound_spec(), reports, say=say)

    def captured(self) -> bool:
        """Whether the source was ever captured."""
        with session.connect(self.source_dsn) as connection:
            return own_schema.exists(connection)

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

    @property
    def _impact(self) -> Impact:
        failing = None
        if self.job_runs():
            errors = {view: told["error"] for view, told in self.told.derived().items()}
            failing = {view: Fault(**error) for view, error in errors.items() if error}
        return Impact(self.project, self.source_dsn, self.endpoints, self._hiding, failing)

    @property
    def _hiding(self) -> Hiding:
        source = self.project.source
        salt = self.project.settings.for_source(source.name).salt
        return Hiding(source.columns, salt.get_secret_value() if salt else None)

    def _views(self) -> list[View]:
        return list(self.project.declarations.views.values())

    def _derived_kept(self) -> tuple[DerivedView, ...]:
        """Versions of views made from others that the job keeps, under their places."""
        declared = self._derived()
        if not declared:  # then nobody has to be asked
            return ()
        with session.connect(self.source_dsn) as connection:
            return derived_versions.places(connection, self.project.source.name, declared)

    def _derived_shown(self) -> dict[str, DerivedView]:
        """Those of them that readers see, by the names of their views."""
        published = Published(self.project.home.root / "tables", self.project.source.name)
        places = published.current()
        kept = {view.name: view for view in self._derived_kept()}
        shown = {view.name: places.get(view.name, view.name) for view in self._derived()}
        return {name: kept[place] for name, place in shown.items() if place in kept}

    def _derived(self) -> list[DerivedView]:
        return list(self.project.declarations.derived.values())

    def job_runs(self) -> bool:
        """Whether the job keeps the views at this moment."""
        return self._job_ready()

    def _job_ready(self) -> bool:
        found = self.status()
        job = found.service(JOB) if found else None
        return job is not None and job.state is runtime.ServiceState.READY

    def _await_capture(self) -> None:
        """Waits as long as it takes: a capture that was lost is repaired when somebody has time."""
        while not applied_file(self.project).exists():
            self._check_failed()
            time.sleep(_POLL_S)

    def _await(self, reached: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
        deadline = time.monotonic() + deadline_s
        while not reached():
            self._check_failed()
            if time.monotonic() > deadline:
                log = runtime.log_path(self.project.settings.home, JOB)
                raise UnhealthyError(
                    otherwise, detail=f"after {deadline_s:.0f} s", hint=f"look at {log}"
                )
            time.sleep(_POLL_S)

    def _check_failed(self) -> None:
        found = self.status()
        for service in found.failed if found else ():
            log = runtime.log_path(self.project.settings.home, service.name)
            detail = self.told.error if service.name == JOB else None
            raise UnhealthyError(
                f"{service.name} has failed",
                detail=str(detail or service.last_error),
                hint=f"look at {log}",
            )


def _named(plans: Mapping[str, ViewPlan], name: str) -> ViewPlan:
    plan = plans.get(name)
    if plan is None:
        near = difflib.get_close_matches(name, plans, n=1)
        hint = f"did you mean {near[0]}?" if near else "headwater view list"
        raise UsageError(f"no view named {name} is kept", hint=hint)
    return plan
