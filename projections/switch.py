"""Switch: readers of views are moved to another version, in all stores, and back the same way.

Each store has one word that says which version readers of a view see: search an alias, the cache a
field of one hash, the tables a file that names the current place of every view. All three change in
one step each, while no batch is being written anywhere, so the version that readers leave and the
one that they come to have the same changes at that moment. What is to be done is noted first: if
whoever does it dies, the job or the next command does the rest. Meanwhile some stores show the old
version and some the new one; both are kept, so nobody reads anything that is not whole.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol, cast

import structlog

from cdc.table import TableName, TableSchema
from projections import positions, store_turn, view_shapes, view_versions
from projections.derived_delivery import delivered
from projections.errors import VersionBehindError, VersionBusyError
from projections.plan import ViewPlan
from projections.published import Published
from projections.sinks.open import open_sink
from projections.stable_table import StableTable
from projections.view import DerivedView, Store
from projections.view_versions import VersionState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import psycopg

    from projections.published import PublishedVersion
    from projections.spec import JobSpec
    from projections.view_versions import ViewVersion

    Connection = psycopg.Connection[Any]

_log = structlog.get_logger(__name__)


class Showing(Protocol):
    """A sink that shows readers of a view one of its versions."""

    def show(self, plan: ViewPlan) -> None:
        """Lets readers of the view see this version and no other, in one step."""
        ...

    def shows(self, plan: ViewPlan) -> bool:
        """Tells whether readers of the view see this version."""
        ...

    def drop(self, plan: ViewPlan) -> None:
        """Removes the place of a version that readers do not see."""
        ...


class ShowingSink(Showing, Protocol):
    """It, with what closes it."""

    def close(self) -> None:
        """Lets go of connections."""
        ...


def switch(connection: Connection, spec: JobSpec, targets: Collection[ViewVersion]) -> None:
    """Moves readers of some views to other versions, all at once.

    Args:
        connection: To the source, in autocommit; it holds the views' locks.
        spec: The job.
        targets: The versions; of each view one.

    Raises:
        VersionBehindError: One is not where the version that readers see is.
        VersionBusyError: A batch takes too long.
        SinkError: A store cannot be reached: what is left is done by whoever comes next.
    """
    current = {
        each.view: each
        for each in view_versions.read(connection, spec.source)
        if each.state is VersionState.CURRENT
    }
    with store_turn.alone(connection, spec.source, turns_of(targets)):
        for target in targets:
            refuse_behind(connection, spec, current[target.view], target)
    view_versions.note_switching(connection, spec.source, [each.place for each in targets])
    finish(connection, spec)


def finish(connection: Connection, spec: JobSpec) -> list[ViewVersion]:
    """Does what is left of a switch that was begun; returns the versions that readers see by it.

    Raises:
        VersionBusyError: A batch takes too long.
        SinkError: A store cannot be reached.
    """
    source = spec.source
    targets = [each for each in view_versions.read(connection, source) if each.switching]
    if not targets:
        return []
    with store_turn.alone(connection, source, turns_of(targets)):
        _show(spec, targets)
        known = view_versions.read(connection, source)
        views = {each.view for each in targets}
        for each in known:
            if each.view in views and each.state is VersionState.CURRENT and not each.switching:
                before = [VersionState.CURRENT]
                view_versions.move(connection, source, each.place, VersionState.FORMER, before)
        for each in targets:
            before = [VersionState.HELD, VersionState.FORMER, VersionState.CURRENT]
            view_versions.move(connection, source, each.place, VersionState.CURRENT, before)
    for each in targets:
        _log.info("readers see another version", view=each.view, version=each.number)
    return targets


def resume(connection: Connection, spec: JobSpec) -> None:
    """Finishes a switch that somebody began and did not end; nothing while they are at it.

    Raises:
        SinkError: A store cannot be reached.
    """
    begun = [each for each in view_versions.read(connection, spec.source) if each.switching]
    if not begun:
        return
    try:
        first = min(each.view for each in begun)
        with view_versions.alone(connection, spec.source, first, wait_s=0):
            finish(connection, spec)
    except VersionBusyError:
        return


def assert_shown(connection: Connection, spec: JobSpec) -> None:
    """Shows readers of each store what they are to see, where the store has forgotten it.

    Raises:
        SinkError: A store cannot be reached.
    """
    later = _later(connection, spec)
    if not later:
        return
    with store_turn.alone(connection, spec.source, turns_of(later)):
        # nobody is moving readers at this moment, and what is noted is what they are to see
        if current := _later(connection, spec):
            _show(spec, current)


def _later(connection: Connection, spec: JobSpec) -> list[ViewVersion]:
    """Versions that readers see and that are not the first; none while readers are being moved."""
    versions = view_versions.read(connection, spec.source)
    if any(each.switching for each in versions):
        return []
    return [each for each in versions if each.state is VersionState.CURRENT and each.number > 1]


def stores_of(version: ViewVersion) -> frozenset[Store]:
    """Returns the stores that a version is kept in.

    A view that is made from others always has a table: what is made from it reads that.
    """
    view = version.declared()
    return view.to | {Store.TABLE} if isinstance(view, DerivedView) else view.to


def turns_of(versions: Iterable[ViewVersion]) -> frozenset[str]:
    """Returns whose turns have to be waited for while readers of some versions are moved.

    Tables of views made from others need no turn: all that is read of them is published at once.
    """
    found: set[str] = set()
    for version in versions:
        stores = stores_of(version)
        if version.derived:
            found |= {store_turn.of_derived(store) for store in stores - {Store.TABLE}}
        else:
            found |= stores
    return frozenset(found)


def refuse_behind(
    connection: Connection, spec: JobSpec, current: ViewVersion, target: ViewVersion
) -> None:
    """Refuses a version that has less than the one that readers see.

    Raises:
        VersionBehindError: It has, in a store.
    """
    if target.derived:
        _refuse_derived_behind(spec, current, target)
        return
    reached = {(p.view, p.store): p.applied_through for p in positions.read(connection)}
    behind = []
    for store in sorted(target.declared().to):
        own, seen = reached.get((target.place, store)), reached.get((current.place, store))
        if own is None or (seen is not None and own < seen):
            behind.append(f"{store}: {own or 'nothing yet'}, readers see {seen}")
    if Store.TABLE in target.declared().to:
        latest = Published(spec.addresses.tables, spec.source).latest()
        if not _published(latest, target.place):
            behind.append("table: not published yet")
    if behind:
        shape = view_shapes.read(connection, spec.source).get(target.place)
        still = shape is not None and shape.paused is not None
        raise VersionBehindError(
            f"version {target.number} of view {target.view} is behind",
            detail="; ".join(behind),
            hint=f"it stands still since its table has changed: headwater view resume {target.view}"
            if still
            else "the job brings it there: headwater status; then try again",
        )


def _refuse_derived_behind(spec: JobSpec, current: ViewVersion, target: ViewVersion) -> None:
    """Refuses a version that is not where it is published, or is published earlier.

    What another store has of the present one is what is published, or older.
    """
    latest = Published(spec.addresses.tables, spec.source).latest()
    views = {} if latest is None else latest.views
    own, seen = views.get(target.place), views.get(current.place)
    behind = []
    if own is None or (seen is not None and (own.epoch, own.lsn) < (seen.epoch, seen.lsn)):
        at, shown = own and own.applied_through, seen and seen.applied_through
        behind.append(f"table: {at or 'not published yet'}, readers see {shown}")
    for store in sorted(stores_of(target) - {Store.TABLE}):
        had = delivered(spec, store).get(target.place)
        if own is None or had is None or not had.table or had.version != own.version:
            behind.append(f"{store}: not yet what is published")
    if behind:
        raise VersionBehindError(
            f"version {target.number} of view {target.view} is behind",
            detail="; ".join(behind),
            hint="the job brings it there: headwater view status; then try again",
        )


def place_of(name: str, stores: Collection[Store]) -> ViewPlan:
    """Returns what stands for a place where only its name matters."""
    schema = TableSchema(TableName("", ""), (), ())
    return ViewPlan(name, "", "", schema, (), frozenset(stores))


def showing(store: Store, spec: JobSpec) -> ShowingSink:
    """Opens a store as what shows versions; see `Showing`."""
    return cast("ShowingSink", open_sink(store, spec.addresses))


def _show(spec: JobSpec, targets: Iterable[ViewVersion]) -> None:
    by_store: dict[Store, list[ViewPlan]] = {}
    for target in targets:
        stores = stores_of(target)
        for store in stores:
            by_store.setdefault(store, []).append(place_of(target.place, stores))
    if tables := by_store.get(Store.TABLE):  # the one that may refuse comes first
        _show_tables(spec, {plan.view: plan.name for plan in tables})
    for store in (Store.SEARCH, Store.CACHE):
        if store in by_store:
            with closing(showing(store, spec)) as sink:
                for plan in by_store[store]:
                    if not sink.shows(plan):
                        sink.show(plan)


def _show_tables(spec: JobSpec, places: Mapping[str, str]) -> None:
    published = Published(spec.addresses.tables, spec.source)
    published.switch(places)
    for view in places:
        StableTable(spec.addresses.tables, view).follow(published)


def _published(latest: PublishedVersion | None, place: str) -> bool:
    if latest is None or place not in latest.views:
        return False
    table = latest.views[place]
    return (table.epoch, table.lsn) == (latest.epoch, latest.lsn)
