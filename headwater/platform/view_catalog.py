"""Views that are kept: what they are bound to, how far they are, and whether they are right."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from cdc.lsn import Lsn
from cdc.postgres import catalog, own_schema
from cdc.upkeep.difference import Difference, Part
from foundation.suggestion import did_you_mean
from headwater.errors import UnhealthyError, UsageError
from projections.definition.diff import DefinitionChangeKind
from projections.definition.views import DerivedView, Store, view_of
from projections.errors import VerificationError, ViewPausedError
from projections.planning import binding
from projections.planning.job_config import FUNCTIONS
from projections.publishing.published_versions import Published, stable_path
from projections.versions import derived as versions_derived
from projections.versions import function_store, registry
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from headwater.platform.deployment import Site
    from headwater.platform.job_status import JobReport
    from projections.definition.views import View
    from projections.incremental.explain import ViewExplanation
    from projections.planning.binding import Binding, NotedChange
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.publishing.positions import ViewPosition
    from projections.verification.repair import Repaired
    from projections.verification.report import Uncompared, ViewReport
    from projections.verification.results_table import Verified
    from projections.verification.trace import Trace

_THERE: Final = frozenset({VersionState.HELD, VersionState.CURRENT, VersionState.FORMER})
_log = structlog.get_logger(__name__)


class KeptViews:
    """The views of one project, with every version of theirs that the job keeps.

    Args:
        site: The project, and where its servers are.
        job_report: The job's report on itself.
    """

    def __init__(self, site: Site, job_report: JobReport) -> None:
        self._site = site
        self._job_report = job_report

    def captured(self) -> bool:
        """Whether the source was ever captured."""
        with self._site.connect() as connection:
            return own_schema.exists(connection)

    def require_captured(self) -> None:
        """Refuses a source that was never captured.

        Raises:
            UnhealthyError: It was not.
        """
        if not self.captured():
            raise UnhealthyError(
                f"source {self._site.source} was never captured",
                hint="headwater up captures it and builds the views",
            )

    def bound(self) -> Binding:
        """Binds the views that are kept to the source's tables; decides nothing about changes.

        Those are the declared ones, with every version of theirs that the job keeps.
        """
        with self._site.connect() as connection:
            return registry.bind_maintained(
                connection, self._site.source, self._declared(), hiding=self._site.hiding
            )

    def plans(self) -> tuple[ViewPlan, ...]:
        """Binds the declared views that are not paused."""
        return self.bound().plans

    def derived(self) -> tuple[DerivedView, ...]:
        """Versions of derived views that the job keeps, under their places."""
        declared = self._declared_derived()
        if not declared:  # then nobody has to be asked
            return ()
        with self._site.connect() as connection:
            return versions_derived.maintained_views(
                connection, self._site.source, declared, self._functions
            )

    def derived_shown(self) -> dict[str, DerivedView]:
        """Those of them that readers see, by the names of their views."""
        published = Published(self._site.project.home.root / "tables", self._site.source)
        places = published.current()
        kept = {view.name: view for view in self.derived()}
        shown = {view.name: places.get(view.name, view.name) for view in self._declared_derived()}
        return {name: kept[place] for name, place in shown.items() if place in kept}

    def taken_over(self) -> tuple[tuple[ViewPlan, ...], tuple[DerivedView, ...]]:
        """Returns what of them can be waited for and compared: all but versions that are coming.

        The job has yet to bring these to where the others are. They have no position in some store
        for minutes, and have no readers.
        """
        plans, derived = self.plans(), self.derived()
        with self._site.connect() as connection:
            versions = registry.read(connection, self._site.source)
        # read after the others: whatever joins no more by now has come to all its stores
        not_there = {each.physical_name for each in versions if each.state not in _THERE}
        return (
            tuple(plan for plan in plans if plan.name not in not_there),
            tuple(view for view in derived if view.name not in not_there),
        )

    def job_spec(self) -> JobSpec:
        """Says what the job works on, with every version that it keeps, and what is paused."""
        bound = self.bound()
        return replace(self._site.job_spec(bound.plans, self.derived()), paused=bound.paused)

    def register(self) -> None:
        """Notes the definitions of this start; tells of views that go on by another one."""
        with self._site.connect() as connection:
            name = self._site.source
            declared = (*self._declared(), *self._declared_derived())
            shared = self._site.project.shares_home
            with function_store.noting(connection, name, self._functions, declared, shared=shared):
                differing = registry.register(connection, name, declared)
        for view, state in sorted(differing.items()):
            _log.warning(
                "a view is kept as it was declared before",
                view=view,
                differs=state,
                repair=f"headwater view rebuild {view}",
            )

    def resume(self, name: str) -> ViewPlan:
        """Lets a paused view go on with the columns that its table has now.

        Raises:
            UsageError: No view of that name is declared.
            UnhealthyError: The source was never captured.
            ViewPausedError: It is not paused, or cannot go on as it is declared.
            PlanError: It does not fit its table.
        """
        view = self._site.project.declarations.views.get(name)
        if view is None:
            raise UsageError(f"no view is named {name}", hint="headwater view list")
        self.require_captured()
        with self._site.connect() as connection:
            source = self._site.source
            # the version that readers see is the last
            *others, shown = registry.maintained(connection, source, [view])
            for each in others:
                with suppress(ViewPausedError):  # it goes on already
                    binding.resume(connection, source, each.view, hiding=self._site.hiding)
            return binding.resume(connection, source, shown.view, hiding=self._site.hiding)

    def explain(self, name: str) -> ViewExplanation:
        """Says how a view is kept.

        Raises:
            UsageError: No view of that name is kept.
        """
        from projections.incremental.explain import explain, explain_derived  # noqa: PLC0415

        plans = self._kept()
        shown = Published(self._site.project.home.root / "tables", self._site.source).current()
        derived = {view.name: view for view in self.derived()}
        place = shown.get(name, name)
        if place in derived:
            state = self._job_report.derived().get(place, {})
            source = next(plan.source for plan in plans.values())
            found = explain_derived(derived[place], source, state, [*plans, *derived])
        else:
            plan = _named(plans, name)
            table = plan.schema.table
            with self._site.connect() as connection:
                unlogged = catalog.generated_columns(connection, [table]).get(table, ())
            found = explain(plan, plans.values(), unlogged)
        if Store.TABLE not in found.sinks:
            return found
        path = stable_path(self._site.project.home.root / "tables", view_of(name))
        lines = (*found.sinks[Store.TABLE], f"read it at {path}", *self._vector(place))
        return replace(found, sinks={**found.sinks, str(Store.TABLE): lines})

    def _vector(self, place: str) -> list[str]:
        """Where the rows of a view over several sources are in each of these."""
        tables = self._site.project.home.root / "tables"
        latest = Published(tables, self._site.source).latest()
        table = None if latest is None else latest.views.get(place)
        if table is None or not table.others:
            return []
        own = f"rows of source {self._site.source} at {table.applied_through}"
        return [
            own,
            *(f"rows of source {name} at {Lsn(at.lsn)}" for name, at in table.others.items()),
        ]

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
        from projections.changes.documents import key_text  # noqa: PLC0415
        from projections.verification.trace import trace  # noqa: PLC0415

        plans = self._kept()
        plan = _named(plans, name)
        if len(key) != len(plan.keys):
            raise UsageError(
                f"the key of view {name} has {len(plan.keys)} parts",
                detail=", ".join(plan.keys),
                hint=f"headwater trace {name} " + " ".join(f"<{part}>" for part in plan.keys),
            )
        spec = self._site.job_spec(plans.values())
        return trace(spec.config, plan, key_text(key), changes_max)

    def schema_changes(self) -> list[NotedChange]:
        """Returns what is known of changes of the captured tables, the oldest first."""
        with self._site.connect() as connection:
            return binding.noted_changes(connection, self._site.project.source.tables)

    def to_build(self, *, job_runs: bool) -> list[Difference]:
        """Views that were never in a store of theirs, but for those that the job is filling.

        Args:
            job_runs: Whether the job runs at this moment.
        """
        return [
            Difference(
                Part.VIEW, f"{name} in {store}", "", None, "is built", repaired=False, hint=hint
            )
            for (name, store), hint in self._unbuilt(job_runs=job_runs).items()
            if hint
        ]

    def building(self) -> list[tuple[str, Store]]:
        """Returns by view and store what the job, which runs, is filling for the first time."""
        return [place for place, hint in self._unbuilt(job_runs=True).items() if not hint]

    def _unbuilt(self, *, job_runs: bool) -> dict[tuple[str, Store], str]:
        """Views by their stores in which they never were, and what is to be done about each.

        That is nothing where the job is at work on it.
        """
        bound, job = self.bound(), self._job_report
        with self._site.connect() as connection:
            noted = {each.physical_name for each in registry.read(connection, self._site.source)}
        kept = {(position.view, position.store) for position in self.positions()}
        stuck = {view.name for view in bound.paused}
        apart = job.halted() | job.failing_derived()

        def remedy(name: str, store: Store) -> str:
            if not job_runs:
                return "the job builds it: run headwater up"
            if name not in noted:
                return "the job builds it when it starts: run headwater down, then headwater up"
            if name in stuck or (name, store) in apart or job.fault_of(name, store) is not None:
                return "headwater view status shows what keeps the job from it"
            return ""

        views = [(plan.name, plan.to) for plan in bound.plans]
        views += [(paused.name, paused.to) for paused in bound.paused]
        views += [(derived.name, derived.to) for derived in self.derived()]
        return {
            (name, store): remedy(name, store)
            for name, stores in views
            for store in sorted(stores)
            if (name, store) not in kept
        }

    def to_rebuild(self) -> list[Difference]:
        """Views that are kept by another definition than the declared one.

        Those too of which the rows change in place as soon as the job starts again: computed by a
        function that cannot be stored.
        """
        with self._site.connect() as connection:
            source, found = self._site.source, []
            versions = registry.read(connection, source)
            for view in (*self._declared(), *self._declared_derived()):
                own = [each for each in versions if each.view == view.name]
                shown = next((v for v in own if v.state is VersionState.CURRENT), None)
                if shown is None:
                    continue
                change = registry.changed(connection, shown, view)
                if change.kind is DefinitionChangeKind.REBUILD:
                    there = registry.made_for(own, view)
                    verb = "rebuild" if there is None else "cutover"
                    hint = f"headwater view {verb} {view.name}"
                elif change.rows and isinstance(view, DerivedView):
                    hint = function_store.in_place(view)
                else:
                    continue
                found.append(
                    Difference(
                        Part.VIEW,
                        view.name,
                        "definition",
                        f"version {shown.number}",
                        "; ".join(change.differences),
                        repaired=False,
                        hint=hint,
                    )
                )
        return found

    def to_withdraw(self) -> list[Difference]:
        """Views that are declared no more, and lie in their stores as they were."""
        declared = {view.name for view in (*self._declared(), *self._declared_derived())}
        with self._site.connect() as connection:
            versions = registry.read(connection, self._site.source)
        left = [each for each in versions if each.state is not VersionState.DROPPED]
        return [
            Difference(
                Part.VIEW,
                view,
                "",
                "no longer declared or maintained",
                None,
                repaired=False,
                hint=f"run headwater view drop {view} --yes, or declare it again",
            )
            for view in sorted({each.view for each in left} - declared)
        ]

    def positions(self) -> list[ViewPosition]:
        """Returns how far each view is in each store; nothing before the first capture."""
        from projections.publishing import positions  # noqa: PLC0415

        with self._site.connect() as connection:
            return positions.read(connection) if own_schema.exists(connection) else []

    def waiting(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Returns by view and store how many records wait, and how many keys for a value only."""
        from projections.changes.quarantine import admin as quarantine_admin  # noqa: PLC0415

        with self._site.connect() as connection:
            return quarantine_admin.counts(connection, self._site.source)

    def verify(
        self,
        views: Collection[str] = (),
        stores: Collection[Store] = (),
        *,
        budget: float = 1.0,
        but: Collection[tuple[str, Store]] = (),
        uncompared: Callable[[Uncompared], None] | None = None,
    ) -> list[ViewReport]:
        """Compares views in their stores with the source; writes may continue.

        The table of a derived view is compared with its query, and its other stores with its table.
        A version that the job has not adopted yet is left out.

        Args:
            views: Which; all if empty.
            stores: In which stores; in all of their own if empty.
            budget: Greatest share of the time that it may use.
            but: Views in stores that are left out.
            uncompared: Receives views that cannot be compared in one store; without it, the error
                is raised.
        """
        from projections.common.throttle import Throttle  # noqa: PLC0415
        from projections.verification import results_table, verify  # noqa: PLC0415

        plans, kept = self.taken_over()
        spec = self._site.job_spec(
            (replace(each, to=_without(but, each)) for each in plans),
            tuple(replace(each, to=_without(but, each)) for each in kept),
        )
        # every version of a view is verified with it
        places = {*views, *(plan.name for plan in spec.plans if plan.view in views)}
        places |= {each.name for each in spec.derived if view_of(each.name) in views}
        reports = verify.verify(
            spec,
            views=places,
            stores=stores,
            throttle=Throttle(budget, error=VerificationError),
            uncompared=uncompared,
        )
        derived = tuple(view for view in spec.derived if not views or view_of(view.name) in views)
        if derived and (not stores or "table" in stores):
            reports += _verify_derived(replace(spec, derived=derived), uncompared)
        with self._site.connect() as connection:
            results_table.publish(connection, spec.config.source, reports)
        return reports

    def verified(self) -> list[Verified]:
        """Returns what each view was found to be when it was verified last."""
        from projections.verification import results_table  # noqa: PLC0415

        with self._site.connect() as connection:
            return results_table.read(connection, self._site.source)

    def repair(self, reports: Sequence[ViewReport], say: Callable[[str], None]) -> list[Repaired]:
        """Has what a verification found wrong read again, and judges it once more.

        Args:
            reports: Of `verify`.
            say: Receives each step.
        """
        from projections.verification.repair import repair  # noqa: PLC0415

        return repair(self._site.capture_spec(), self.job_spec(), reports, _verify_derived, say=say)

    def _kept(self) -> dict[str, ViewPlan]:
        """Versions of views by their places, and by a view's name the one that readers see."""
        plans = self.plans()
        return {plan.name: plan for plan in plans} | {p.view: p for p in plans if p.active}

    @property
    def _functions(self) -> Path:
        return self._site.project.home.root / FUNCTIONS

    def _declared(self) -> list[View]:
        return list(self._site.project.declarations.views.values())

    def _declared_derived(self) -> list[DerivedView]:
        return list(self._site.project.declarations.derived.values())


def _verify_derived(
    spec: JobSpec, uncompared: Callable[[Uncompared], None] | None = None
) -> list[ViewReport]:
    """Compares derived views with their queries, by the job or, without one, by Spark here."""
    from projections.verification.derived_checks import verified_by_job  # noqa: PLC0415

    answers = verified_by_job(spec.config, spec.derived)
    reports = [each.report for each in answers.values() if each.report is not None]
    left = tuple(view for view in spec.derived if view.name not in answers)
    if left:
        # here and not above: it loads Spark
        from projections.job.batch.verify_derived import verify_derived  # noqa: PLC0415

        reports += verify_derived(replace(spec, derived=left), uncompared)
    return reports


def _without(
    places: Collection[tuple[str, Store]], view: ViewPlan | DerivedView
) -> frozenset[Store]:
    return frozenset(store for store in view.to if (view.name, store) not in places)


def _named(plans: Mapping[str, ViewPlan], name: str) -> ViewPlan:
    plan = plans.get(name)
    if plan is None:
        hint = did_you_mean(name, plans, "headwater view list")
        raise UsageError(f"no view named {name} is stored", hint=hint)
    return plan
