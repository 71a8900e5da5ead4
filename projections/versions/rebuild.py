"""Rebuild: fills another version of a view, which the job then maintains beside the active one.

The command plans and runs a rebuild under the lock of the view's versions, so it carries out the
plan that it shows. It replays the archive into physical names that no reader uses, in its own
process, while the job continues. Records that the archive receives meanwhile are replayed in
catch-up rounds. The job then adopts the version (`handover`): it reads the remaining records from
the topics and keeps the version up to date. Every write is guarded by its row's version, so an
interrupted step can be repeated without effect.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import CdcError
from cdc.postgres import table_size
from foundation.disk import free_bytes
from projections.archive import coverage
from projections.archive.event_compatibility import refuse_unread
from projections.common.fault import Fault
from projections.definition.views import tables_of
from projections.errors import (
    ArchiveIncompleteError,
    ProjectionError,
    RebuildRefusedError,
    RebuildStoppedError,
    ReplayStoppedError,
    VersionBehindError,
    VersionUnknownError,
)
from projections.publishing import positions
from projections.stores.capacity import store_capacities
from projections.versions import fill_from_archive, function_store, registry, routing
from projections.versions.fill import prepare, whole_reads
from projections.versions.fill_way import way_planned
from projections.versions.handover import HandoverProgress
from projections.versions.rate_estimate import rate_of
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import psycopg

    from projections.definition.views import AnyView, View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.stores.capacity import StoreCapacity
    from projections.versions.fill import FillOptions
    from projections.versions.fill_way import FillWay
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

STILL_MAX_S: Final = 600.0
"""How long a joining version may make no progress in any store, seconds. A batch can take a
minute, and a derived view shows no progress while it is computed."""

DISK_SPARE: Final = 1.5
"""Free disk needed, as a multiple of the current version's size: files are compacted meanwhile."""
REPORT_INTERVAL_S: Final = 5.0
"""Interval at which the command reports the stores that a filled version waits for, seconds."""
_POLL_S: Final = 0.2
_COMING: Final = frozenset({VersionState.BUILDING, VersionState.JOINING})


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """The planned work of a rebuild.

    Attributes:
        view: The view.
        differs: How its definition differs from the current version's; empty if it does not.
        source: Where the rows come from: `archive`, `source` (a snapshot of the table), or `views`
            for a derived view.
        changes: Changes to replay; for a snapshot, the approximate number of rows.
        seconds: Estimated duration.
        disk_bytes: Estimated disk space of the new version.
        disk_free_bytes: Free disk space.
        followers: Derived views that read it; they follow when readers are moved.
        lacking: Why the archive cannot fill it; None if it can, or is not used.
        instead: Alternative in that case; None if there is none.
        stand_still: Followers that would pause once the version is active, and why; see
            `dependents`.
        known_by: The basis of the estimated duration, in words.
        stores: For each store beside the tables, the capacity that the current version uses and
            the free capacity.
        filled_by: Whether the job's Spark or the command replays the archive, and why; None if the
            archive is not used.
    """

    view: str
    differs: tuple[str, ...]
    source: str
    changes: int
    seconds: float
    disk_bytes: int
    disk_free_bytes: int
    followers: tuple[str, ...]
    lacking: str | None = None
    instead: str | None = None
    stand_still: Mapping[str, str] = field(default_factory=dict)
    known_by: str = ""
    stores: Mapping[str, StoreCapacity] = field(default_factory=dict)
    filled_by: FillWay | None = None


@dataclass(frozen=True, slots=True)
class PlannedRebuild:
    """A rebuild that is planned and not begun.

    Attributes:
        connection: To the source; it holds the lock of the view's versions.
        spec: The job.
        view: The view as it is declared now.
        plan: The plan.
        spare_bytes: Disk space that must stay free.
        job_runs: Returns whether the job runs.
    """

    connection: Connection
    spec: JobSpec
    view: AnyView
    plan: RebuildPlan
    spare_bytes: int
    job_runs: Callable[[], bool]

    def run(self, filling: FillOptions, *, held_too: bool = False) -> ViewVersion:
        """Builds a version by the plan, or continues with one, until the job holds it.

        Args:
            filling: How the archive fills it, and what pauses it.
            held_too: Also accept a version that is built and held already.

        Raises:
            ArchiveIncompleteError: The archive does not go back to the first change.
            RebuildRefusedError: It cannot be rebuilt, or not like that.
            RebuildStoppedError: It was paused, or the job does not run: another run continues it.
            SinkError: A store refuses everything or cannot be reached.
        """
        connection, config = self.connection, self.spec.config
        version = begin(
            connection, config, self.view, self.plan, self.spare_bytes, held_too=held_too
        )
        if version.state is VersionState.BUILDING:
            build(connection, self.spec, version, self.plan, filling)
        return await_held(
            connection,
            config,
            version,
            stopped=filling.stopped.is_set,
            running=self.job_runs,
            report=filling.waits,
        )


def plan_rebuild(
    connection: Connection, spec: JobSpec, view: View, source: str, share: float = 1.0
) -> RebuildPlan:
    """Plans the rebuild of a view; changes nothing.

    Args:
        connection: To the source, in autocommit.
        spec: The job.
        view: The view as it is declared now.
        source: `archive` or `source`.
        share: Greatest share of the time that a replay may take, above 0 to 1.

    Raises:
        RebuildRefusedError: The archive or the stored events cannot be read.
    """
    refuse_unread(connection, view)
    versions = registry.read(connection, spec.config.source)
    own = [each for each in versions if each.view == view.name]
    current = next((each for each in own if each.state is VersionState.CURRENT), None)
    differs = () if current is None else registry.changed(connection, current, view).differences
    size = table_size.of_tables(connection, tables_of(view))
    changes, lacking = size.rows, None
    if source == "archive":
        physical_name = view.name if current is None else current.physical_name
        there = coverage.of_view(
            connection, spec.config, view, physical_name, whole_reads(connection, spec.config)
        )
        changes, lacking = there.records, there.lacking
    archived = source == "archive"
    begun = next((each.replayed for each in own if each.state in _COMING), None)
    # the job reads the table, and no share limits the job
    rate = rate_of(versions, view, 1.0 if source == "source" else share)
    return RebuildPlan(
        view.name,
        differs,
        source,
        changes,
        round(changes / rate.per_s, 1),
        int((parquet_bytes(spec.config, current) or size.size_bytes) * DISK_SPARE),
        free_bytes(spec.config.addresses.tables),
        followers(spec, view),
        lacking=lacking,
        instead=None if lacking is None else coverage.instead(view),
        known_by=rate.known_by,
        stores=stores_capacity(spec.config, view, current),
        filled_by=way_planned(connection, spec.config, view, changes, begun) if archived else None,
    )


def stores_capacity(
    config: JobConfig, view: AnyView, current: ViewVersion | None
) -> dict[str, StoreCapacity]:
    """Estimates the capacity that another version of a view uses in each other store."""
    if current is None:
        return {}
    return store_capacities(
        config.addresses, current.physical_name, view.to & current.declared().to
    )


def followers(spec: JobSpec, view: AnyView) -> tuple[str, ...]:
    """Returns the derived views that read a view."""
    derived = (*spec.declared_derived, *spec.cross_reads.derived)
    return tuple(each.name for each in derived if view.name in each.inputs)


def begin(  # noqa: PLR0913  # a rebuild and its options
    connection: Connection,
    config: JobConfig,
    view: AnyView,
    planned: RebuildPlan,
    spare_bytes: int,
    *,
    held_too: bool = False,
) -> ViewVersion:
    """Creates the version that a rebuild fills, or returns the one that is being built.

    Args:
        connection: To the source; it holds the lock of the view's versions.
        config: The job's configuration.
        view: The view as it is declared now.
        planned: The plan.
        spare_bytes: Disk space that must stay free.
        held_too: Whether to return a version that is already built.

    Raises:
        ArchiveIncompleteError: The archive must fill it and lacks records.
        RebuildRefusedError: Such a version exists, another one is being built, or the disk is too
            small.
    """
    own = registry.of_view(connection, config.source, view.name)
    building = [each for each in own if each.state in _COMING]
    for each in building:
        if not _same(each, view):
            raise RebuildRefusedError(
                f"version {each.number} of view {view.name} is being built for another definition",
                hint=f"headwater view drop {view.name} {each.number}, then rebuild",
            )
        return each
    held = [each for each in own if each.state is VersionState.HELD]
    if held and _same(held[-1], view):
        if held_too:
            return held[-1]
        raise RebuildRefusedError(
            f"version {held[-1].number} of view {view.name} is built and held",
            hint=f"headwater view cutover {view.name}; or drop it, to build it again",
        )
    if planned.lacking is not None:
        raise ArchiveIncompleteError(
            f"view {view.name} cannot be filled from the archive",
            detail=planned.lacking,
            hint=planned.instead,
        )
    refuse_small(view, planned.disk_bytes, planned.disk_free_bytes, spare_bytes)
    _refuse_full(view, planned.stores)
    shared = config.shares_home
    with function_store.noting(connection, config.source, config.functions, [view], shared=shared):
        if not own:  # the job has not recorded it yet
            registry.register(connection, config.source, [view])
        number = registry.add(connection, config.source, view, reasons=planned.differs)
    return numbered(connection, config, view.name, number)


def refuse_small(view: AnyView, disk_bytes: int, free_bytes: int, spare_bytes: int) -> None:
    """Refuses a rebuild that does not fit on the disk.

    Raises:
        RebuildRefusedError: The disk lacks the capacity.
    """
    if free_bytes < disk_bytes + spare_bytes:
        raise RebuildRefusedError(
            f"the disk is too small to rebuild view {view.name}",
            detail=f"about {disk_bytes:,} bytes beside {spare_bytes:,} to be left;"
            f" {free_bytes:,} are free",
            hint="drop versions that no one needs: headwater view list --versions",
        )


def _refuse_full(view: AnyView, stores: Mapping[str, StoreCapacity]) -> None:
    """Refuses a version that would fill a store and so block all its writers."""
    for store, room in stores.items():
        if room.free_bytes is not None and room.free_bytes < room.taken_bytes:
            raise RebuildRefusedError(
                f"the {store} is too small to rebuild view {view.name}",
                detail=f"about {room.taken_bytes:,} bytes of memory, as the present version takes;"
                f" {room.free_bytes:,} are free, and once it is full no view is written there",
                hint="raise its maxmemory, or drop versions that no one needs:"
                " headwater view list --versions",
            )


def build(
    connection: Connection,
    spec: JobSpec,
    version: ViewVersion,
    planned: RebuildPlan,
    filling: FillOptions,
) -> None:
    """Fills a version that is being built, and lets the job adopt it.

    The job itself computes a derived view, and reads the table if the source is to be read.

    Args:
        connection: To the source; it holds the lock of the view's versions.
        spec: The job.
        version: The version; its table must exist in the source unless it is derived.
        planned: The plan.
        filling: How to fill it from the archive.

    Raises:
        RebuildStoppedError: It was paused; another call continues it.
        ArchiveIncompleteError: The archive lacks records.
        RebuildRefusedError: The table was dropped or renamed.
        SinkError: A store refuses everything or cannot be reached.
    """
    try:
        if not version.derived:
            plan = prepare(connection, spec, version)
            if planned.source != "source":
                fill_from_archive.fill(
                    connection, spec, version, plan, filling, changes=planned.changes
                )
    except ReplayStoppedError:
        raise RebuildStoppedError(
            f"the rebuild of view {version.view} is paused",
            detail=f"version {version.number} stays half built",
            hint=f"headwater view rebuild {version.view} goes on with it",
        ) from None
    except (CdcError, ProjectionError) as error:
        fault = Fault.of(error)
        registry.note_fault(connection, spec.config.source, version.physical_name, fault)
        raise
    join(connection, spec.config, version)


def join(connection: Connection, config: JobConfig, version: ViewVersion) -> None:
    """Lets the job adopt a filled version."""
    before = [VersionState.BUILDING]
    registry.move(connection, config.source, version.physical_name, VersionState.JOINING, before)


def await_held(  # noqa: PLR0913  # a wait, and each condition that may end it
    connection: Connection,
    config: JobConfig,
    version: ViewVersion,
    *,
    stopped: Callable[[], bool],
    running: Callable[[], bool],
    report: Callable[[str], None] = lambda _: None,
) -> ViewVersion:
    """Waits until the job has adopted a version, while it makes progress; reports the progress.

    Raises:
        RebuildStoppedError: The caller stopped it, the job does not run, or the version makes no
            progress; the job continues without the caller.
        RebuildRefusedError: The job cannot adopt it.
    """
    began = time.monotonic()
    approach, report_at = HandoverProgress(config, version.physical_name), began + REPORT_INTERVAL_S
    while True:
        now = numbered(connection, config, version.view, version.number)
        if now.state not in _COMING:
            return now
        if now.fault is not None:
            raise RebuildRefusedError(
                now.fault.message, detail=now.fault.detail, hint=now.fault.hint
            )
        approach.look({p.store for p in positions.read(connection) if p.view == now.physical_name})
        if stopped() or not running() or approach.still_s > STILL_MAX_S:
            why = None if stopped() else f"it has come no nearer for {approach.still_s:,.0f} s"
            raise RebuildStoppedError(
                f"version {version.number} of view {version.view} is filled, and not held yet",
                detail=why if running() else "the job does not run",
                hint="the job adopts it as soon as it can: headwater view list --versions",
            )
        if time.monotonic() > report_at:
            report(_awaited(connection, now, time.monotonic() - began) + approach.report())
            report_at += REPORT_INTERVAL_S
        time.sleep(_POLL_S)


def _awaited(connection: Connection, version: ViewVersion, waited_s: float) -> str:
    there = {p.store for p in positions.read(connection) if p.view == version.physical_name}
    lacking = ", ".join(sorted(routing.stores_of(version) - there)) or "no store"
    return (
        f"version {version.number} of view {version.view} is filled; the job adopts it:"
        f" {waited_s:,.0f} s, not yet in {lacking}"
    )


def chosen(
    connection: Connection,
    config: JobConfig,
    view: str,
    number: int | None,
    states: Collection[VersionState],
) -> ViewVersion:
    """Returns a version by its number or, without one, the newest in some states.

    Raises:
        VersionUnknownError: There is none.
        VersionBehindError: It is still being built.
    """
    own = registry.of_view(connection, config.source, view)
    candidates = [
        each for each in own if each.number == number or (number is None and each.state in states)
    ]
    if number is None and VersionState.HELD in states:
        # versions that were never active first, then formerly active ones
        current = next((v.number for v in own if v.state is VersionState.CURRENT), 0)
        building = [each for each in own if each.state in _COMING]
        candidates = [each for each in candidates if each.number > current] or building
    if not candidates:
        there = ", ".join(f"{each.number} ({each.state})" for each in own) or "none"
        missing = "no version" if number is None else f"no version {number}"
        raise VersionUnknownError(
            f"view {view} has {missing} that readers could be moved to",
            detail=f"versions: {there}",
            hint=f"headwater view rebuild {view} makes one",
        )
    version = candidates[-1]
    if version.state in _COMING:
        raise VersionBehindError(
            f"version {version.number} of view {view} is still being built",
            detail=str(version.state),
            hint=f"headwater view rebuild {view} continues it and waits",
        )
    if version.state not in states:
        raise VersionUnknownError(
            f"version {version.number} of view {view} is the active one"
            if version.state is VersionState.CURRENT
            else f"version {version.number} of view {view} is {version.state}"
        )
    return version


def _same(version: ViewVersion, view: AnyView) -> bool:
    return registry.made_for([replace(version, state=VersionState.HELD)], view) is not None


def numbered(connection: Connection, config: JobConfig, view: str, number: int) -> ViewVersion:
    """Returns a version by its number, in any state.

    Raises:
        VersionUnknownError: There never was one.
    """
    for each in registry.read(connection, config.source):
        if (each.view, each.number) == (view, number):
            return each
    raise VersionUnknownError(f"view {view} has no version {number}")


def parquet_bytes(config: JobConfig, version: ViewVersion | None) -> int:
    """Returns the size of a version's Delta tables; 0 if it has none."""
    if version is None:
        return 0
    names = (
        version.physical_name,
        f"{version.physical_name}.deleted",
        f"{version.physical_name}.changes",
    )
    folders = [config.addresses.tables / name for name in names]
    files = (path for folder in folders for path in folder.rglob("*.parquet"))
    return sum(path.stat().st_size for path in files if path.is_file())
