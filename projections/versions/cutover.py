"""Switch: readers of a view are moved to another version, in all stores, and back the same way.

Each store has one word that says which version readers of a view see (`showing`). All change in one
step each, while no batch is being written there, so the version that readers leave and the one that
they come to have the same changes at that moment. What is to be done is noted first, by view: if
whoever does it dies, or a store ceases to answer, the job or the next command does the rest.
Meanwhile some stores show the old version and some the new one; both are kept, so no one reads
anything that is not whole.

Whether a version of a view has less than the one that readers see: they are not moved there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import structlog

from cdc.postgres import session
from projections.common import store_lock
from projections.definition.views import Store
from projections.errors import (
    PlaceBehindError,
    SinkError,
    StableTableError,
    SwitchUnfinishedError,
    VersionBehindError,
    VersionBusyError,
    VersionUnknownError,
)
from projections.incremental.delivery import delivered
from projections.planning import view_schemas
from projections.publishing import positions
from projections.publishing.published_versions import Published
from projections.versions import registry
from projections.versions.routing import in_order, show, shows, stores_of
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import psycopg

    from projections.errors import ProjectionError
    from projections.planning.job_config import JobConfig
    from projections.publishing.published_versions import PublishedVersion
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

_ONE_SWITCH: Final = timedelta(seconds=1)
"""Less than between two switches; earlier releases noted the two states of one a moment apart."""
_log = structlog.get_logger(__name__)


def switch(connection: Connection, config: JobConfig, target: ViewVersion) -> None:
    """Moves readers of a view to another version, in all stores.

    All stores are asked before anything changes. Readers who are on their way to another version
    already come to this one instead, in the stores that do not answer as soon as they do.

    Args:
        connection: To the source, in autocommit; it holds the lock of the view's versions.
        config: The job's configuration.
        target: The version.

    Raises:
        VersionBehindError: It is not where the version that readers see is; nothing has changed.
        VersionBusyError: A batch takes too long; nothing has changed.
        SinkError: A store does not answer; nothing has changed.
        SwitchUnfinishedError: It is noted, and not done in all stores: whoever comes next does the
            rest.
    """
    under_way = _under_way(connection, config, target.view) is not None
    asked = _ask(config, target)
    if not under_way:
        _refuse_away(target, asked)
    here = stores_of(target) - asked.away.keys()
    with (
        session.connect(config.source_dsn) as noting,  # a turn's own session notes all at its end
        store_lock.alone(connection, config.source, _turns(target, here)),
    ):
        for each in registry.of_view(connection, config.source, target.view):
            seen = each.state is VersionState.CURRENT or each.switching
            if seen and each.place != target.place:
                refuse_behind(connection, config, each, target, here)
        if not under_way:  # they may have been waited for since
            _refuse_away(target, _ask(config, target))
        registry.note_switching(noting, config.source, target.place)
        _complete(connection, config, target, here, asked.away)


def back(connection: Connection, config: JobConfig, view: str) -> ViewVersion:
    """Moves readers of a view back to the version that they saw before; returns it.

    Readers who are on their way to a later version, or to one that they never saw, stay with the
    one that they see; a way back that was begun is gone to its end.

    Args:
        connection: To the source, in autocommit; it holds the lock of the view's versions.
        config: The job's configuration.
        view: The view.

    Raises:
        VersionUnknownError: There is none, or it was dropped.
        VersionBehindError: It is not where the one that readers see is; nothing has changed.
        VersionBusyError: A batch takes too long; nothing has changed.
        SinkError: A store does not answer; nothing has changed.
        SwitchUnfinishedError: It is noted, and not done in all stores: whoever comes next does the
            rest.
    """
    target = before(connection, config, view)
    if target.switching:
        finish(connection, config, view)
    else:
        switch(connection, config, target)
    return target


def finish(connection: Connection, config: JobConfig, view: str) -> ViewVersion | None:
    """Does what is left of a switch of a view that was begun; returns what readers see by it.

    Args:
        connection: To the source, in autocommit; it holds the lock of the view's versions.
        config: The job's configuration.
        view: The view.

    Raises:
        VersionBusyError: A batch takes too long.
        SwitchUnfinishedError: A store does not answer: whoever comes next does the rest.
    """
    target = _under_way(connection, config, view)
    if target is None:
        return None
    asked = _ask(config, target)
    # no more batches wait than have to, as it may be tried again and again
    with store_lock.alone(connection, config.source, _turns(target, asked.lacking)):
        _complete(connection, config, target, asked.lacking, asked.away)
    return target


def resume(connection: Connection, config: JobConfig) -> None:
    """Finishes switches that someone began and did not end; none while they are at it.

    Raises:
        SwitchUnfinishedError: A store of one does not answer; the others are finished.
    """
    unfinished: SwitchUnfinishedError | None = None
    for view in _to_finish(connection, config):
        try:
            with registry.alone(connection, config.source, view, wait_s=0):
                finish(connection, config, view)
        except VersionBusyError:
            continue
        except SwitchUnfinishedError as error:
            unfinished = error
    if unfinished is not None:
        raise unfinished


def _to_finish(connection: Connection, config: JobConfig) -> list[str]:
    """Views whose switch can be finished; one that is declared again has to be made first."""
    moving = [v for v in registry.read(connection, config.source) if v.switching]
    if not moving:
        return []
    there = {(p.view, p.store) for p in positions.read(connection)}
    return sorted(
        each.view
        for each in moving
        # of one that is made from others its table is looked at, which is not long in coming
        if each.derived or all((each.place, store) in there for store in stores_of(each))
    )


def assert_shown(connection: Connection, config: JobConfig) -> None:
    """Shows readers of each store what they are to see, where the store has forgotten it.

    Raises:
        SinkError: A store cannot be reached.
    """
    later = _later(connection, config)
    if not later:
        return
    turns = frozenset[str]().union(*(_turns(each, stores_of(each)) for each in later))
    with store_lock.alone(connection, config.source, turns):
        # no one is moving readers at this moment, and what is noted is what they are to see
        for version in _later(connection, config):
            for store in in_order(stores_of(version)):
                show(config, store, version)


def _later(connection: Connection, config: JobConfig) -> list[ViewVersion]:
    """Versions that readers see and that are not the first; none of views whose are being moved."""
    versions = registry.read(connection, config.source)
    moved = {each.view for each in versions if each.switching}
    current = [each for each in versions if each.state is VersionState.CURRENT]
    return [each for each in current if each.number > 1 and each.view not in moved]


def _under_way(connection: Connection, config: JobConfig, view: str) -> ViewVersion | None:
    """The version of a view that readers are being moved to."""
    versions = registry.of_view(connection, config.source, view)
    return next((each for each in versions if each.switching), None)


def before(connection: Connection, config: JobConfig, view: str) -> ViewVersion:
    """Returns the version that readers saw before the one that they see, or are on their way to.

    Args:
        connection: To the source, in autocommit.
        config: The job's configuration.
        view: The view.

    Raises:
        VersionUnknownError: There is none, or it was dropped.
    """
    return _before(registry.of_view(connection, config.source, view), view)


def _before(versions: Iterable[ViewVersion], view: str) -> ViewVersion:
    """The version that readers saw before.

    The version that readers leave and the one that they come to change their states at one time. So
    what was left last is what they saw before, unless it was left earlier: then that was dropped.
    """
    known = list(versions)
    current = next((each for each in known if each.state is VersionState.CURRENT), None)
    moved_to = next((each for each in known if each.switching), None)
    if current is not None and moved_to is not None:
        onward = moved_to.state is VersionState.HELD or moved_to.number > current.number
        return current if onward else moved_to
    former = [each for each in known if each.state is VersionState.FORMER]
    there = ", ".join(f"{each.number} ({each.state})" for each in known) or "none"
    if current is None or not former:
        raise VersionUnknownError(
            f"view {view} has no version that readers saw before",
            detail=f"versions: {there}",
            hint=f"headwater view rebuild {view} makes another one",
        )
    last = max(former, key=_changed_at)
    if _changed_at(current) - _changed_at(last) > _ONE_SWITCH:
        raise VersionUnknownError(
            f"the version of view {view} that readers saw before was dropped",
            detail=f"versions: {there}",
            hint=f"headwater view cutover {view} {last.number} shows what they saw earlier",
        )
    return last


def _changed_at(version: ViewVersion) -> datetime:
    return version.changed_at or datetime.min.replace(tzinfo=UTC)


def _turns(version: ViewVersion, stores: Iterable[Store]) -> frozenset[str]:
    """Whose turns have to be waited for while readers of a version are moved in some stores.

    Tables of views made from others need no turn: all that is read of them is published at once.
    """
    if version.derived:
        return frozenset(store_lock.of_derived(each) for each in stores if each is not Store.TABLE)
    return frozenset(stores)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the stores of a version say when they are asked what readers see.

    Attributes:
        lacking: Those that answer, and show another version.
        away: Those that do not answer, and why.
    """

    lacking: frozenset[Store]
    away: Mapping[Store, ProjectionError]


def _ask(config: JobConfig, target: ViewVersion) -> _Asked:
    lacking: set[Store] = set()
    away: dict[Store, ProjectionError] = {}
    for store in stores_of(target):
        try:
            if not shows(config, store, target):
                lacking.add(store)
        except (SinkError, StableTableError) as error:
            away[store] = error
    return _Asked(frozenset(lacking), away)


def _refuse_away(target: ViewVersion, asked: _Asked) -> None:
    """Refuses a switch of which a part would have to wait; nothing has changed so far.

    Raises:
        SinkError: A store does not answer.
        StableTableError: The log of the view's stable table cannot be read.
    """
    for store, error in sorted(asked.away.items()):
        raise type(error)(
            f"readers of view {target.view} stay with the version that they see:"
            f" {store} cannot be asked",
            detail=error.message if error.detail is None else f"{error.message}: {error.detail}",
            hint="nothing has changed; once it answers, give the command again",
        )


def _complete(
    connection: Connection,
    config: JobConfig,
    target: ViewVersion,
    stores: Collection[Store],
    away: Mapping[Store, ProjectionError],
) -> None:
    """Shows readers of some stores a version that is noted; once all do, notes that they see it.

    Args:
        connection: It has the stores' turns.
        config: The job's configuration.
        target: The version.
        stores: The stores.
        away: Those for which it is left to be done, and why.

    Raises:
        SwitchUnfinishedError: Some is left.
    """
    left = dict(away)
    for store in in_order(stores):
        try:
            show(config, store, target)
        except SinkError as error:
            left[store] = error
        except StableTableError as error:  # a version that is behind is shown nowhere else, either
            left[store] = error
            break
    if left:
        raise _unfinished(target, left)
    before = [VersionState.CURRENT]
    for each in registry.of_view(connection, config.source, target.view):
        if each.place != target.place:
            registry.move(connection, config.source, each.place, VersionState.FORMER, before)
    before = [VersionState.HELD, VersionState.FORMER, VersionState.CURRENT]
    registry.move(connection, config.source, target.place, VersionState.CURRENT, before)
    _log.info("readers see another version", view=target.view, version=target.number)


def _unfinished(
    target: ViewVersion, left: Mapping[Store, ProjectionError]
) -> SwitchUnfinishedError:
    back_too = f"; headwater view rollback {target.view} takes them back"
    return SwitchUnfinishedError(
        f"readers of view {target.view} do not see version {target.number} everywhere yet",
        detail="; ".join(f"{store}: {error.message}" for store, error in sorted(left.items())),
        hint="it is noted, and the job does the rest as soon as it can"
        + (back_too if target.state is VersionState.HELD else ""),
    )


def refuse_behind(
    connection: Connection,
    config: JobConfig,
    current: ViewVersion,
    target: ViewVersion,
    stores: Collection[Store] | None = None,
) -> None:
    """Refuses a version that has less than the one that readers see.

    Args:
        connection: To the source, in autocommit.
        config: The job's configuration.
        current: What readers see.
        target: The version.
        stores: Where; None for all stores that it is kept in.

    Raises:
        VersionBehindError: It has, in a store.
    """
    stores = stores_of(target) if stores is None else stores
    if target.derived:
        _refuse_derived_behind(config, current, target, stores)
        return
    reached = {(p.view, p.store): p.applied_through for p in positions.read(connection)}
    behind = []
    for store in sorted(stores):
        own, seen = reached.get((target.place, store)), reached.get((current.place, store))
        if own is None or (seen is not None and own < seen):
            behind.append(f"{store}: {own or 'nothing yet'}, readers see {seen}")
    if Store.TABLE in stores:
        published = Published(config.addresses.tables, config.source)
        if not _published(published.latest(), target.place):
            behind.append("table: not published yet")
        else:
            behind += _next_behind(published, target)
    if behind:
        shape = view_schemas.read(connection, config.source).get(target.place)
        still = shape is not None and shape.paused is not None
        raise VersionBehindError(
            f"version {target.number} of view {target.view} is behind",
            detail="; ".join(behind),
            hint=f"it stands still since its table has changed: headwater view resume {target.view}"
            if still
            else "the job brings it there: headwater status; then try again",
        )


def _refuse_derived_behind(
    config: JobConfig, current: ViewVersion, target: ViewVersion, stores: Collection[Store]
) -> None:
    """Refuses a version that is not where it is published, or is published earlier.

    What another store has of the present one is what is published, or older.
    """
    published = Published(config.addresses.tables, config.source)
    latest = published.latest()
    views = {} if latest is None else latest.views
    own, seen = views.get(target.place), views.get(current.place)
    behind = []
    if own is None or (seen is not None and (own.epoch, own.lsn) < (seen.epoch, seen.lsn)):
        at, shown = own and own.applied_through, seen and seen.applied_through
        behind.append(f"table: {at or 'not published yet'}, readers see {shown}")
    else:
        behind += _next_behind(published, target)
    for store in sorted(stores):
        if store is Store.TABLE:
            continue
        had = delivered(config, store).get(target.place)
        if own is None or had is None or not had.table or had.version != own.version:
            behind.append(f"{store}: not yet what is published")
    if behind:
        raise VersionBehindError(
            f"version {target.number} of view {target.view} is behind",
            detail="; ".join(behind),
            hint="the job brings it there: headwater view status; then try again",
        )


def _next_behind(published: Published, target: ViewVersion) -> list[str]:
    """Says how the tables' own switch would refuse a version: it is behind in what comes next."""
    try:
        published.refuse_behind({target.view: target.place})
    except PlaceBehindError as error:
        return [f"table: {error.detail}"]
    return []


def _published(latest: PublishedVersion | None, place: str) -> bool:
    if latest is None or place not in latest.views:
        return False
    table = latest.views[place]
    return (table.epoch, table.lsn) == (latest.epoch, latest.lsn)
