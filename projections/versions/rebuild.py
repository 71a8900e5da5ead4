"""Rebuild: another version of a view, filled from the archive, that the job then keeps beside it.

The archive is replayed into places that no one reads, by a process of its own, while the job goes
on. What the archive gets meanwhile is replayed too, in laps. What is left then is in the topics:
from there the job takes the version over (`joining`), and holds it. Every write is guarded by its
row's version, so whatever is killed on the way is done again, and nothing comes of doing it twice.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg

from cdc.postgres import session, table_size
from cdc.schema_change import history, trigger
from projections.archive import coverage
from projections.archive.event_compatibility import refuse_unread
from projections.common import store_lock
from projections.errors import (
    ArchiveIncompleteError,
    RebuildRefusedError,
    RebuildStoppedError,
    VersionBehindError,
    VersionUnknownError,
)
from projections.planning import binding, view_schemas
from projections.publishing import positions
from projections.stores.capacity import rooms
from projections.stores.factory import open_sink
from projections.versions import function_store, registry, routing
from projections.versions.bulk_requests import BulkRequests
from projections.versions.fill import whole_reads
from projections.versions.fill_way import way_planned
from projections.versions.handover import Approach
from projections.versions.rate_estimate import rate_of
from projections.versions.version import KEPT, VersionState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from projections.definition.views import AnyView, View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.stores.capacity import Room
    from projections.versions.fill_way import FillWay
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

STILL_MAX_S: Final = 600.0
"""How long a version that joins may come no nearer to any store, seconds. A batch can take a
minute, and a view that is made from others shows nothing while it is computed."""

DISK_SPARE: Final = 1.5
"""How much more room than the present version has is wanted: files are compacted on the way."""
TOLD_EVERY_S: Final = 5.0
"""How often it is told what a version waits for that is filled."""
_POLL_S: Final = 0.2
_COMING: Final = frozenset({VersionState.BUILDING, VersionState.JOINING})


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What a rebuild will do.

    Attributes:
        view: The view.
        differs: What of its definition is not as the current version's; empty if it is the same.
        source: What it is filled from: `archive`, `source` for a whole read of its table, or
            `views` for a derived view.
        changes: Changes to replay; for a read of tables, about how many rows.
        seconds: About how long that takes.
        disk_bytes: About how much room it needs beside what is there.
        disk_free_bytes: How much there is.
        followers: Views that are made from it: they follow it when readers do.
        lacking: Why the archive cannot fill it; None if it can, or need not.
        instead: What to do then; None if there is nothing to be done.
        stand_still: Followers that would stand still once readers see the version, and why; see
            `succession`.
        known_by: By what it is known how long it takes, or what is assumed, in words.
        stores: By store beside the tables, about what it needs of it, as the present version takes,
            and what there is.
        filled_by: Who replays the archive, `job` for the job's Spark or `command`, and why; None
            of what is not filled from the archive.
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
    stores: Mapping[str, Room] = field(default_factory=dict)
    filled_by: FillWay | None = None


def plan_rebuild(
    connection: Connection, spec: JobSpec, view: View, source: str, share: float = 1.0
) -> RebuildPlan:
    """Tells what a rebuild of a view will do; changes nothing.

    Args:
        connection: To the source, in autocommit.
        spec: The job.
        view: The view as it is declared now.
        source: `archive` or `source`.
        share: Of the time, how much a replay takes at most, above 0 to 1.

    Raises:
        RebuildRefusedError: The archive cannot be read, or events that are stored cannot.
    """
    refuse_unread(connection, view)
    versions = registry.read(connection, spec.config.source)
    own = [each for each in versions if each.view == view.name]
    current = next((each for each in own if each.state is VersionState.CURRENT), None)
    differs = () if current is None else registry.changed(connection, current, view).said
    size = table_size.of_tables(connection, coverage.tables_of(view))
    changes, lacking = size.rows, None
    if source == "archive":
        place = view.name if current is None else current.place
        there = coverage.of_view(
            connection, spec.config, view, place, whole_reads(connection, spec.config)
        )
        changes, lacking = there.records, there.lacking
    archived = source == "archive"
    begun = next((each.replayed for each in own if each.state in _COMING), None)
    # a read of the table is the job's, which is held to no share
    rate = rate_of(versions, view, 1.0 if source == "source" else share)
    return RebuildPlan(
        view.name,
        differs,
        source,
        changes,
        round(changes / rate.per_s, 1),
        int((parquet_bytes(spec.config, current) or size.size_bytes) * DISK_SPARE),
        shutil.disk_usage(spec.config.home).free,
        followers(spec, view),
        lacking=lacking,
        instead=None if lacking is None else coverage.instead(view),
        known_by=rate.known_by,
        stores=stores_room(spec.config, view, current),
        filled_by=way_planned(connection, spec.config, view, changes, begun) if archived else None,
    )


def stores_room(config: JobConfig, view: AnyView, current: ViewVersion | None) -> dict[str, Room]:
    """Returns what another version of a view will take of its stores beside the tables."""
    if current is None:
        return {}
    return rooms(config.addresses, current.place, view.to & current.declared().to)


def followers(spec: JobSpec, view: AnyView) -> tuple[str, ...]:
    """Returns the views that are made from one."""
    derived = (*spec.declared_derived, *spec.cross_reads.derived)
    return tuple(each.name for each in derived if view.name in each.inputs)


def begin(  # noqa: PLR0913  # who begins knows all of this
    connection: Connection,
    config: JobConfig,
    view: AnyView,
    planned: RebuildPlan,
    spare_bytes: int,
    *,
    held_too: bool = False,
) -> ViewVersion:
    """Makes the version that a rebuild fills, or finds the one that was begun.

    Args:
        connection: To the source; it holds the lock of the view's versions.
        config: The job's configuration.
        view: The view as it is declared now.
        planned: What will be done.
        spare_bytes: Room that has to be left.
        held_too: A version that is built already is found as well.

    Raises:
        ArchiveIncompleteError: It is to be filled from the archive, which lacks records.
        RebuildRefusedError: There is such a version already, another one is being built, or the
            disk is too small.
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
        if not own:  # the job has not noted it yet
            registry.register(connection, config.source, [view])
        number = registry.add(connection, config.source, view, reasons=planned.differs)
    return numbered(connection, config, view.name, number)


def refuse_small(view: AnyView, disk_bytes: int, free_bytes: int, spare_bytes: int) -> None:
    """Refuses a rebuild for which the disk has no room.

    Raises:
        RebuildRefusedError: It has none.
    """
    if free_bytes < disk_bytes + spare_bytes:
        raise RebuildRefusedError(
            f"the disk is too small to rebuild view {view.name}",
            detail=f"about {disk_bytes:,} bytes beside {spare_bytes:,} to be left;"
            f" {free_bytes:,} are free",
            hint="drop versions that no one needs: headwater view list --versions",
        )


def _refuse_full(view: AnyView, stores: Mapping[str, Room]) -> None:
    """Refuses a version that would fill a store: whoever writes there would have to wait then."""
    for store, room in stores.items():
        if room.free_bytes is not None and room.free_bytes < room.taken_bytes:
            raise RebuildRefusedError(
                f"the {store} is too small to rebuild view {view.name}",
                detail=f"about {room.taken_bytes:,} bytes of memory, as the present version takes;"
                f" {room.free_bytes:,} are free, and once it is full no view is written there",
                hint="raise its maxmemory, or drop versions that no one needs:"
                " headwater view list --versions",
            )


def bind(connection: Connection, spec: JobSpec, version: ViewVersion) -> ViewPlan:
    """Binds a version to its table.

    Raises:
        PlanError: Its definition does not fit the table.
        RebuildRefusedError: Its table is gone, or was given another name.
    """
    view = cast("View", version.declared(spec.views))
    plan = _bound(connection, spec.config, view)
    if binding.read_unlogged(connection, spec.config.source, view, hiding=spec.config.hiding):
        return _bound(connection, spec.config, view)
    return plan


def _bound(connection: Connection, config: JobConfig, view: View) -> ViewPlan:
    bound = binding.bind(connection, config.source, [view], decides=True, hiding=config.hiding)
    if bound.paused:
        fault = bound.paused[0].fault
        raise RebuildRefusedError(fault.message, detail=fault.detail, hint=fault.hint)
    return replace(bound.plans[0], shown=False)


def bind_again(connection: Connection, spec: JobSpec, version: ViewVersion) -> ViewPlan:
    """Binds a version to its table as that is now.

    A change of a table commits before any row of the new shape can be in the archive. So whoever
    looks once it is known up to where the archive is read knows of every change that its records
    come after.
    """
    view = cast("View", version.declared(spec.views))
    if view_schemas.ready(connection) and not trigger.active(connection):
        with suppress(psycopg.errors.LockNotAvailable):  # no row of that shape is there yet
            history.observe(connection, coverage.tables_of(view))
    return _bound(connection, spec.config, view)


def prepare(config: JobConfig, plan: ViewPlan) -> None:
    """Makes the places of a version in its stores.

    Raises:
        SinkError: A store refuses or cannot be reached.
    """
    for store in sorted(plan.to):
        with closing(open_sink(store, config.addresses)) as sink:
            sink.prepare(plan)


def join(connection: Connection, config: JobConfig, version: ViewVersion) -> None:
    """Has the job take a version over that is filled."""
    before = [VersionState.BUILDING]
    registry.move(connection, config.source, version.place, VersionState.JOINING, before)


def await_held(  # noqa: PLR0913  # a wait, and all that may end it
    connection: Connection,
    config: JobConfig,
    version: ViewVersion,
    *,
    stopped: Callable[[], bool],
    running: Callable[[], bool],
    told: Callable[[str], None] = lambda _: None,
) -> ViewVersion:
    """Waits until the job holds a version, as long as it comes nearer; tells now and then how far.

    Raises:
        RebuildStoppedError: It was told to stop, the job does not run, or the version stands still:
            it goes on by itself.
        RebuildRefusedError: The job cannot take it over.
    """
    began = time.monotonic()
    approach, tell_at = Approach(config, version.place), began + TOLD_EVERY_S
    while True:
        now = numbered(connection, config, version.view, version.number)
        if now.state not in _COMING:
            return now
        if now.fault is not None:
            raise RebuildRefusedError(
                now.fault.message, detail=now.fault.detail, hint=now.fault.hint
            )
        approach.look({p.store for p in positions.read(connection) if p.view == now.place})
        if stopped() or not running() or approach.still_s > STILL_MAX_S:
            why = None if stopped() else f"it has come no nearer for {approach.still_s:,.0f} s"
            raise RebuildStoppedError(
                f"version {version.number} of view {version.view} is filled, and not held yet",
                detail=why if running() else "the job does not run",
                hint="the job takes it over as soon as it can: headwater view list --versions",
            )
        if time.monotonic() > tell_at:
            told(_awaited(connection, now, time.monotonic() - began) + approach.said())
            tell_at += TOLD_EVERY_S
        time.sleep(_POLL_S)


def _awaited(connection: Connection, version: ViewVersion, waited_s: float) -> str:
    there = {p.store for p in positions.read(connection) if p.view == version.place}
    lacking = ", ".join(sorted(routing.stores_of(version) - there)) or "no store"
    return (
        f"version {version.number} of view {version.view} is filled; the job takes it over:"
        f" {waited_s:,.0f} s, not yet in {lacking}"
    )


def chosen(
    connection: Connection,
    config: JobConfig,
    view: str,
    number: int | None,
    states: Collection[VersionState],
) -> ViewVersion:
    """Returns a version of a view, or the newest of some states.

    Raises:
        VersionUnknownError: There is none.
        VersionBehindError: It is still being built.
    """
    own = registry.of_view(connection, config.source, view)
    found = [
        each for each in own if each.number == number or (number is None and each.state in states)
    ]
    if number is None and VersionState.HELD in states:
        # what was never shown comes first, then what readers were moved away from
        current = next((v.number for v in own if v.state is VersionState.CURRENT), 0)
        building = [each for each in own if each.state in _COMING]
        found = [each for each in found if each.number > current] or building
    if not found:
        there = ", ".join(f"{each.number} ({each.state})" for each in own) or "none"
        what = "no version" if number is None else f"no version {number}"
        raise VersionUnknownError(
            f"view {view} has {what} that readers could be moved to",
            detail=f"versions: {there}",
            hint=f"headwater view rebuild {view} makes one",
        )
    version = found[-1]
    if version.state in _COMING:
        raise VersionBehindError(
            f"version {version.number} of view {view} is still being built",
            detail=str(version.state),
            hint=f"headwater view rebuild {view} goes on with it and waits",
        )
    if version.state not in states:
        raise VersionUnknownError(
            f"version {version.number} of view {view} is what readers see"
            if version.state is VersionState.CURRENT
            else f"version {version.number} of view {view} is {version.state}"
        )
    return version


def drop(connection: Connection, config: JobConfig, version: ViewVersion) -> None:
    """Removes a version that readers do not see from every store, and what is known of it.

    Args:
        connection: To the source; it holds the lock of the view's versions.
        config: The job's configuration.
        version: The version.

    Raises:
        VersionUnknownError: It is the one that readers see, or may be.
        SinkError: A store cannot be reached: give the command again.
    """
    own = registry.of_view(connection, config.source, version.view)
    if any(each.switching for each in own):  # a store may show any of them that does not answer
        raise VersionUnknownError(
            f"readers of view {version.view} are on their way to another version",
            hint="the job brings them there: headwater view list --versions; then try again",
        )
    if version.state is VersionState.CURRENT:
        raise VersionUnknownError(
            f"version {version.number} of view {version.view} is what readers see",
            hint="headwater view cutover or rollback moves them to another one first",
        )
    stores = routing.stores_of(version)
    turns = {store_lock.of_derived(store) for store in stores} if version.derived else stores
    # the job sees that before its next batch, and writes nothing there any more
    before = [*(KEPT - {VersionState.CURRENT}), VersionState.BUILDING, VersionState.DROPPED]
    registry.move(connection, config.source, version.place, VersionState.DROPPED, before)
    plan = routing.place_of(version.place, stores)
    with store_lock.alone(connection, config.source, turns):
        pass  # whatever was being written there has been written
    for store in sorted(stores):
        with closing(routing.showing(store, config)) as sink:
            sink.drop(plan)
    BulkRequests(config).forget(version.place)
    registry.forget(connection, config.source, version.place)
    function_store.tidy(connection, config.functions, shared=config.shares_home)


def _same(version: ViewVersion, view: AnyView) -> bool:
    return registry.made_for([replace(version, state=VersionState.HELD)], view) is not None


def numbered(connection: Connection, config: JobConfig, view: str, number: int) -> ViewVersion:
    """Returns a version by its number, whatever became of it.

    Raises:
        VersionUnknownError: There never was one.
    """
    for each in registry.read(connection, config.source):
        if (each.view, each.number) == (view, number):
            return each
    raise VersionUnknownError(f"view {view} has no version {number}")


def size_bytes(config: JobConfig, version: ViewVersion | None) -> int:
    """Returns about how much room a version takes; what other stores have of it is of that order.

    That is the size of its table; of one that has none, that of the table that it is made from.
    """
    found = parquet_bytes(config, version)
    if found or version is None or version.derived:
        return found
    with session.connect(config.source_dsn) as connection:
        return table_size.of_tables(
            connection, coverage.tables_of(cast("View", version.declared()))
        ).size_bytes


def parquet_bytes(config: JobConfig, version: ViewVersion | None) -> int:
    """Returns how much room the tables of a version take; none of one that has none."""
    if version is None:
        return 0
    names = (version.place, f"{version.place}.deleted", f"{version.place}.changes")
    folders = [config.addresses.tables / name for name in names]
    files = (path for folder in folders for path in folder.rglob("*.parquet"))
    return sum(path.stat().st_size for path in files if path.is_file())
