"""Versions of a project's views: built beside the ones that readers see, compared, switched."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from cdc.postgres import session
from foundation.suggestion import did_you_mean
from headwater.errors import UsageError
from headwater.operations.cutover_refusals import differs, left_behind
from headwater.platform import others
from headwater.platform.specs import job_spec
from projections.definition.views import DerivedView
from projections.errors import (
    SinkUnavailableError,
    VersionBehindError,
)
from projections.planning import binding
from projections.versions import compare as versions_compare
from projections.versions import cutover as versions_cutover
from projections.versions import (
    dependents,
    derived_rebuild,
    rebuild,
    registry,
    retire,
)
from projections.versions.rebuild import PlannedRebuild
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import psycopg

    from headwater.platform.platform import Platform
    from projections.definition.views import AnyView, View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.versions.compare import VersionDifference
    from projections.versions.dependents import Dependents
    from projections.versions.rebuild import RebuildPlan
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

Origin = Literal["archive", "source"]
"""What fills a version: the archive of the log, or a whole read of its table. A derived view is
computed from its inputs."""

_MIB: Final = 1 << 20
_BEHIND_WAIT_S: Final = 30.0
_POLL_S: Final = 0.3
Made = TypeVar("Made")
_READABLE: Final = (VersionState.HELD, VersionState.FORMER)


@dataclass(frozen=True, slots=True)
class Switched:
    """What became of a switch.

    Attributes:
        view: The view.
        number: The version that readers see now, or that they were to see.
        difference: How it differs from the one before; None of a way back.
        moved: Whether readers see it.
        stand_still: Views made from it that do not fit it, or would not, and why.
    """

    view: str
    number: int
    difference: VersionDifference | None = None
    moved: bool = True
    stand_still: Mapping[str, str] = field(default_factory=dict)


class Versions:
    """The versions of a project's views.

    Args:
        platform: The project, and where its servers are.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        declarations = platform.project.declarations
        self._declared: Mapping[str, AnyView] = {**declarations.views, **declarations.derived}

    def all(self) -> list[ViewVersion]:
        """Returns all versions that are not dropped, by view and number."""
        with self._connected() as connection:
            versions = registry.read(connection, self._source)
        return [each for each in versions if each.state is not VersionState.DROPPED]

    def plan(self, name: str, origin: Origin = "archive", *, share: float = 1.0) -> RebuildPlan:
        """Tells what a rebuild of a view will do; changes nothing.

        Args:
            name: The view.
            origin: What it is filled from.
            share: Of the time, how much a replay takes at most, above 0 to 1.

        Raises:
            UsageError: No view of that name can be rebuilt, or not from there.
            RebuildRefusedError: Events of it that are stored cannot be read, or it would be made
                from itself.
            SinkUnavailableError: A table that a view made from it reads cannot be read.
        """
        view, spec = self._view(name), self._spec()
        with self._connected() as connection:
            return _planned(connection, spec, view, origin, share)

    @contextmanager
    def planned_rebuild(
        self, name: str, origin: Origin = "archive", *, share: float = 1.0
    ) -> Iterator[PlannedRebuild]:
        """Plans a rebuild of a view by its present definition, and yields it to be run.

        No other command changes the view's versions until the block ends, so the plan holds. A
        block that does not run it changes nothing.

        Args:
            name: The view.
            origin: What it is filled from.
            share: Of the time, how much a replay takes at most, above 0 to 1.

        Raises:
            UsageError: See `plan`, as for the other errors of a plan.
            VersionBusyError: Another command holds the view's versions.
        """
        view, spec = self._view(name), self._spec()
        spare_bytes = self._platform.project.settings.disk_free_min_mib * _MIB
        with (
            self._connected() as connection,
            registry.version_lock(connection, self._source, name),
        ):
            # no other command can, while this one holds the view
            versions_cutover.finish(connection, spec.config, name)
            plan = _planned(connection, spec, view, origin, share)
            yield PlannedRebuild(connection, spec, view, plan, spare_bytes, self._platform.job_runs)

    def compare(self, name: str, number: int | None = None) -> VersionDifference:
        """Compares a version with the one that readers see, at one position.

        Args:
            name: The view.
            number: The version; the newest that readers could be moved to if left out.

        Raises:
            VersionUnknownError: There is none.
            VersionBehindError: It is not where the one that readers see is.
        """
        self._view(name)
        with self._connected() as connection:
            spec = self._spec()
            target = rebuild.chosen(connection, spec.config, name, number, _READABLE)
            return self._compared(connection, spec.config, target)

    def cutover(
        self, name: str, number: int | None = None, *, accept_differences: bool = False
    ) -> Switched:
        """Moves readers of a view to another version in all stores.

        Args:
            name: The view.
            number: The version; the newest that is held if left out.
            accept_differences: Even with unexplained differences, or if derived views would pause.

        Raises:
            VersionUnknownError: There is none.
            VersionBehindError: It is behind the active version.
            VersionDiffersError: It differs, or derived views do not fit it, and that was not
                accepted.
            VersionBusyError: Another command holds the view's versions.
            SwitchUnfinishedError: It is recorded, and unfinished in some stores: the job completes
                it.
        """
        target, switched = self._cut_over(name, number, accept_differences=accept_differences)
        if switched.difference is None or switched.moved:
            return switched
        if switched.difference.same:
            raise left_behind(target, switched.stand_still)
        raise differs(target, switched.difference, switched.stand_still)

    def cutover_when_explained(self, name: str, number: int) -> Switched:
        """Moves readers of a view to another version if its definition explains all differences.

        If derived views would pause, readers are not moved either.

        Args:
            name: The view.
            number: The version.

        Returns:
            Whether they were moved, the differences, and the views that would pause.

        Raises:
            VersionUnknownError: There is no such version.
            VersionBehindError: It is behind the active version.
            VersionBusyError: Another command holds the view's versions.
        """
        return self._cut_over(name, number, accept_differences=False)[1]

    def _cut_over(
        self, name: str, number: int | None, *, accept_differences: bool
    ) -> tuple[ViewVersion, Switched]:
        self._view(name)
        with (
            self._connected() as connection,
            registry.version_lock(connection, self._source, name),
        ):
            spec = self._spec()
            versions_cutover.finish(connection, spec.config, name)
            target = rebuild.chosen(connection, spec.config, name, number, _READABLE)
            compared = self._compared(connection, spec.config, target)
            still = _stand_still(spec.config, dependents.of_version(connection, spec, target))
            moved = (compared.same and not still) or accept_differences
            if moved:
                # as soon as it is where the one is that they see
                _patiently(lambda: versions_cutover.switch(connection, spec.config, target))
            return target, Switched(name, target.number, compared, moved, still)

    def rollback(self, name: str) -> Switched:
        """Moves readers of a view back to the previously active version.

        Derived views that do not fit that version are reported, and do not prevent it.

        Raises:
            VersionUnknownError: There is none, or it was dropped.
            VersionBehindError: It is behind the active version.
            VersionBusyError: Another command holds the view's versions.
            SwitchUnfinishedError: It is recorded, and unfinished in some stores: the job completes
                it.
        """
        self._view(name)
        with (
            self._connected() as connection,
            registry.version_lock(connection, self._source, name),
        ):
            spec = self._spec()
            then = _succession(
                connection, spec, versions_cutover.before(connection, spec.config, name)
            )
            target = _patiently(lambda: versions_cutover.roll_back(connection, spec.config, name))
        # to ask Spark takes seconds, which readers who are to be moved back do not have to wait
        return Switched(name, target.number, stand_still=_stand_still(spec.config, then))

    def drop(self, name: str, number: int) -> ViewVersion:
        """Removes a version that readers do not see, from every store.

        Raises:
            VersionUnknownError: There is none, or readers see it.
            VersionBusyError: Another command is building it.
        """
        self._view(name)
        with (
            self._connected() as connection,
            registry.version_lock(connection, self._source, name),
        ):
            spec = self._spec()
            versions_cutover.finish(connection, spec.config, name)
            version = rebuild.numbered(connection, spec.config, name, number)
            retire.drop(connection, spec.config, version)
            return version

    def withdraw(self, name: str) -> tuple[ViewVersion, ...]:
        """Removes a view that is no longer declared, with all its versions, from every store.

        Raises:
            UsageError: It is declared, or the running job still maintains it.
            VersionUnknownError: There never was such a view.
            VersionBusyError: Another command is building one of its versions.
            SinkError: A store does not answer; repeating the command completes it.
        """
        again = f"headwater down, headwater up, then headwater view drop {name} --yes"
        if name in self._declared:
            raise UsageError(
                f"view {name} is declared, and would be created again",
                detail="without a number, all of a view is removed",
                hint=f"take it out of the file of views; {again}",
            )
        if self._platform.job_runs() and name in self._platform.job_report.views():
            raise UsageError(f"the job that runs keeps view {name}, as it was declared", hint=again)
        with (
            self._connected() as connection,
            registry.version_lock(connection, self._source, name),
        ):
            removed = retire.withdraw(connection, self._spec(), name)
        others.forget_view(self._platform.project, name)
        return removed

    def _compared(
        self, connection: Connection, config: JobConfig, target: ViewVersion
    ) -> VersionDifference:
        versions = registry.of_view(connection, self._source, target.view)
        current = next(each for each in versions if each.state is VersionState.CURRENT)
        if target.derived:
            return _patiently(lambda: derived_rebuild.compare(connection, config, current, target))
        change = registry.changed(connection, current, registry.defined(target))
        old, still = self._standing(connection, config, current)
        new = self._bound(connection, config, target)
        return _patiently(
            lambda: versions_compare.compare_versions(
                connection, config, old, new, change, still=still
            )
        )

    def _standing(
        self, connection: Connection, config: JobConfig, version: ViewVersion
    ) -> tuple[ViewPlan, bool]:
        """A version bound to its table, or to what that was when it paused; and whether it is."""
        view = cast("View", version.declared(self._declared.values()))
        bound = binding.bind(connection, config.source, [view], hiding=config.hiding)
        if bound.paused:
            return binding.standing(connection, config.source, view, hiding=config.hiding), True
        return bound.plans[0], False

    def _bound(self, connection: Connection, config: JobConfig, version: ViewVersion) -> ViewPlan:
        views = [cast("View", version.declared(self._declared.values()))]
        bound = binding.bind(connection, config.source, views, hiding=config.hiding)
        for paused in bound.paused:
            fault = paused.fault
            raise VersionBehindError(fault.message, detail=fault.detail, hint=fault.hint)
        return bound.plans[0]

    def _view(self, name: str) -> AnyView:
        view = self._declared.get(name)
        if view is not None:
            return view
        there = "views: " + ", ".join(sorted(self._declared))
        raise UsageError(
            f"no view is named {name[:80]}", hint=did_you_mean(name, self._declared, there)
        )

    def _spec(self) -> JobSpec:
        platform = self._platform
        return job_spec(platform.project, (), platform.source_dsn, platform.endpoints)

    @property
    def _source(self) -> str:
        return self._platform.project.source.name

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with session.connect(self._platform.source_dsn) as connection:
            yield connection


def _patiently(done: Callable[[], Made]) -> Made:
    """Does something as soon as a version is where the one is that readers see."""
    deadline = time.monotonic() + _BEHIND_WAIT_S
    while True:
        try:
            return done()
        except VersionBehindError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _succession(connection: Connection, spec: JobSpec, target: ViewVersion) -> Dependents:
    """What views made from one read then; nothing is known of it where a table cannot be read.

    The way back is open all the same.
    """
    try:
        return dependents.of_version(connection, spec, target)
    except SinkUnavailableError:
        return dependents.NO_DEPENDENTS


def _stand_still(config: JobConfig, then: Dependents) -> dict[str, str]:
    """Returns the derived views that would pause after a cutover."""
    if then.alike:
        return {}
    from projections.job.batch.check_dependents import stand_still  # noqa: PLC0415  # loads Spark

    return stand_still(config, then)


def _planned(
    connection: Connection, spec: JobSpec, view: AnyView, origin: Origin, share: float
) -> RebuildPlan:
    if not isinstance(view, DerivedView):
        plan = rebuild.plan_rebuild(connection, spec, view, origin, share)
    elif origin == "archive":
        plan = derived_rebuild.plan_rebuild(connection, spec, view)
    else:
        raise UsageError(
            f"view {view.name} is a derived view, and has no table to be read",
            detail="it reads " + ", ".join(view.inputs),
            hint=f"headwater view rebuild {view.name} computes it from these",
        )
    then = dependents.of_plan(connection, spec, view)
    return replace(plan, stand_still=_stand_still(spec.config, then))
