"""Cutover: moves readers of a view to another version in all stores, and back.

Each store has one pointer to the active version of a view (`routing`). A cutover changes every
pointer in one step, while no batch is written to that store, so the old and the new version have
the same changes at that moment. The intention is recorded first: if the command is killed, or a
store stops answering, the job or the next command completes the cutover. Meanwhile some stores show
the old version and some the new one. Both are maintained, so readers always see a complete version.

A version that is behind the active one in any store is refused.
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
from projections.versions.routing import activate, in_order, is_active, stores_of
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import psycopg

    from projections.errors import ProjectionError
    from projections.planning.job_config import JobConfig
    from projections.publishing.published_content import PublishedVersion
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

_ONE_SWITCH: Final = timedelta(seconds=1)
"""Shorter than the time between two cutovers; earlier releases recorded both states of one cutover
at slightly different times."""
_log = structlog.get_logger(__name__)


def switch(connection: Connection, config: JobConfig, target: ViewVersion) -> None:
    """Moves readers of a view to another version, in all stores.

    All stores are asked before anything changes. If a cutover to another version is unfinished,
    this one replaces it; stores that do not answer follow as soon as they do.

    Args:
        connection: To the source, in autocommit; it holds the lock of the view's versions.
        config: The job's configuration.
        target: The version.

    Raises:
        VersionBehindError: It is behind the active version; nothing has changed.
        VersionBusyError: A batch takes too long; nothing has changed.
        SinkError: A store does not answer; nothing has changed.
        SwitchUnfinishedError: It is recorded, and unfinished in some stores: the job or the next
            command completes it.
    """
    resumed = _under_way(connection, config, target.view) is not None
    asked = _ask(config, target)
    if not resumed:
        _refuse_away(target, asked)
    here = stores_of(target) - asked.away.keys()
    with (
        session.connect(config.source_dsn) as noting,  # the lock's session commits only at its end
        store_lock.exclusive(connection, config.source, _turns(target, here)),
    ):
        for each in registry.of_view(connection, config.source, target.view):
            seen = each.state is VersionState.CURRENT or each.switching
            if seen and each.physical_name != target.physical_name:
                refuse_behind(connection, config, each, target, here)
        if not resumed:  # the stores may have stopped answering during the wait
            _refuse_away(target, _ask(config, target))
        registry.note_switching(noting, config.source, target.physical_name)
        _complete(connection, config, target, here, asked.away)


def roll_back(connection: Connection, config: JobConfig, view: str) -> ViewVersion:
    """Moves readers of a view back to the previously active version; returns it.

    If a cutover is unfinished, it is undone; an unfinished rollback is completed.

    Raises:
        VersionUnknownError: There is none, or it was dropped.
        VersionBehindError: It is behind the active version; nothing has changed.
        VersionBusyError: A batch takes too long; nothing has changed.
        SinkError: A store does not answer; nothing has changed.
        SwitchUnfinishedError: It is recorded, and unfinished in some stores: the job or the next
            command completes it.
    """
    target = before(connection, config, view)
    if target.switching:
        finish(connection, config, view)
    else:
        switch(connection, config, target)
    return target


def finish(connection: Connection, config: JobConfig, view: str) -> ViewVersion | None:
    """Completes an unfinished cutover of a view; returns the version that it makes active.

    Raises:
        VersionBusyError: A batch takes too long.
        SwitchUnfinishedError: A store does not answer: the job or the next command completes it.
    """
    target = _under_way(connection, config, view)
    if target is None:
        return None
    asked = _ask(config, target)
    # lock as few stores as possible, since this may be repeated often
    with store_lock.exclusive(connection, config.source, _turns(target, asked.lacking)):
        _complete(connection, config, target, asked.lacking, asked.away)
    return target


def resume(connection: Connection, config: JobConfig) -> None:
    """Completes unfinished cutovers, except those whose command is still running.

    Raises:
        SwitchUnfinishedError: A store of one does not answer; the others are complete.
    """
    unfinished: SwitchUnfinishedError | None = None
    for view in _to_finish(connection, config):
        try:
            with registry.version_lock(connection, config.source, view, wait_s=0):
                finish(connection, config, view)
        except VersionBusyError:
            continue
        except SwitchUnfinishedError as error:
            unfinished = error
    if unfinished is not None:
        raise unfinished


def _to_finish(connection: Connection, config: JobConfig) -> list[str]:
    """Returns the views whose cutover can be completed.

    A view that is declared again must be filled first.
    """
    moving = [v for v in registry.moving(connection, config.source) if v.switching]
    if not moving:
        return []
    there = {(p.view, p.store) for p in positions.read(connection)}
    return sorted(
        each.view
        for each in moving
        # a derived version is checked by its table, which appears soon
        if each.derived or all((each.physical_name, store) in there for store in stores_of(each))
    )


def restore_pointers(connection: Connection, config: JobConfig) -> None:
    """Restores the pointer to the active version in stores that lost it.

    Raises:
        SinkError: A store cannot be reached.
    """
    later = _later(connection, config)
    if not later:
        return
    turns = frozenset[str]().union(*(_turns(each, stores_of(each)) for each in later))
    with store_lock.exclusive(connection, config.source, turns):
        # no cutover runs under these locks, so the recorded versions are the active ones
        for version in _later(connection, config):
            for store in in_order(stores_of(version)):
                activate(config, store, version)


def _later(connection: Connection, config: JobConfig) -> list[ViewVersion]:
    """Returns active versions other than the first, except of views with an unfinished cutover."""
    versions = registry.read(connection, config.source)
    moved = {each.view for each in versions if each.switching}
    current = [each for each in versions if each.state is VersionState.CURRENT]
    return [each for each in current if each.number > 1 and each.view not in moved]


def _under_way(connection: Connection, config: JobConfig, view: str) -> ViewVersion | None:
    """Returns the target of a view's unfinished cutover."""
    versions = registry.of_view(connection, config.source, view)
    return next((each for each in versions if each.switching), None)


def before(connection: Connection, config: JobConfig, view: str) -> ViewVersion:
    """Returns the version that was active before the present one, or before the unfinished cutover.

    Raises:
        VersionUnknownError: There is none, or it was dropped.
    """
    return _before(registry.of_view(connection, config.source, view), view)


def _before(versions: Iterable[ViewVersion], view: str) -> ViewVersion:
    """Returns the previously active version.

    A cutover changes the states of both its versions at one time. The former version that changed
    last is therefore the previous one, unless it changed before the current one did: then the
    previous one was dropped.
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
            hint=f"headwater view cutover {view} {last.number} returns to their earlier version",
        )
    return last


def _changed_at(version: ViewVersion) -> datetime:
    return version.changed_at or datetime.min.replace(tzinfo=UTC)


def _turns(version: ViewVersion, stores: Iterable[Store]) -> frozenset[str]:
    """Returns the store locks that a cutover needs.

    Tables of derived views need none: everything that readers see of them is published at once.
    """
    if version.derived:
        return frozenset(store_lock.of_derived(each) for each in stores if each is not Store.TABLE)
    return frozenset(stores)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The responses of the stores of a version.

    Attributes:
        lacking: Stores that answer, and where another version is active.
        away: Stores that do not answer, and why.
    """

    lacking: frozenset[Store]
    away: Mapping[Store, ProjectionError]


def _ask(config: JobConfig, target: ViewVersion) -> _Asked:
    lacking: set[Store] = set()
    away: dict[Store, ProjectionError] = {}
    for store in stores_of(target):
        try:
            if not is_active(config, store, target):
                lacking.add(store)
        except (SinkError, StableTableError) as error:
            away[store] = error
    return _Asked(frozenset(lacking), away)


def _refuse_away(target: ViewVersion, asked: _Asked) -> None:
    """Refuses a cutover that could not be completed at once; nothing has changed so far.

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
    """Makes a recorded version active in some stores; once it is active in all, records that.

    Args:
        connection: It holds the locks of the stores.
        config: The job's configuration.
        target: The version.
        stores: The stores.
        away: Stores in which the cutover is still to be made, and why.

    Raises:
        SwitchUnfinishedError: The cutover is still to be made in a store.
    """
    left = dict(away)
    for store in in_order(stores):
        try:
            activate(config, store, target)
        except SinkError as error:
            left[store] = error
        except StableTableError as error:  # a version that lags is activated nowhere
            left[store] = error
            break
    if left:
        raise _unfinished(target, left)
    before = [VersionState.CURRENT]
    for each in registry.of_view(connection, config.source, target.view):
        if each.physical_name != target.physical_name:
            registry.move(
                connection, config.source, each.physical_name, VersionState.FORMER, before
            )
    before = [VersionState.HELD, VersionState.FORMER, VersionState.CURRENT]
    registry.move(connection, config.source, target.physical_name, VersionState.CURRENT, before)
    _log.info("readers see another version", view=target.view, version=target.number)


def _unfinished(
    target: ViewVersion, left: Mapping[Store, ProjectionError]
) -> SwitchUnfinishedError:
    back_too = f"; headwater view rollback {target.view} takes them back"
    return SwitchUnfinishedError(
        f"readers of view {target.view} do not see version {target.number} everywhere yet",
        detail="; ".join(f"{store}: {error.message}" for store, error in sorted(left.items())),
        hint="it is recorded, and the job completes it as soon as it can"
        + (back_too if target.state is VersionState.HELD else ""),
    )


def refuse_behind(
    connection: Connection,
    config: JobConfig,
    current: ViewVersion,
    target: ViewVersion,
    stores: Collection[Store] | None = None,
) -> None:
    """Refuses a version that lacks changes which the active version has.

    Args:
        connection: To the source, in autocommit.
        config: The job's configuration.
        current: The active version.
        target: The version.
        stores: The stores to check; None for all stores of the version.

    Raises:
        VersionBehindError: It lacks changes in a store.
    """
    stores = stores_of(target) if stores is None else stores
    if target.derived:
        _refuse_derived_behind(config, current, target, stores)
        return
    reached = {(p.view, p.store): p.applied_through for p in positions.read(connection)}
    behind = []
    for store in sorted(stores):
        own, seen = (
            reached.get((target.physical_name, store)),
            reached.get((current.physical_name, store)),
        )
        if own is None or (seen is not None and own < seen):
            behind.append(f"{store}: {own or 'nothing yet'}, readers see {seen}")
    if Store.TABLE in stores:
        published = Published(config.addresses.tables, config.source)
        if not _published(published.latest(), target.physical_name):
            behind.append("table: not published yet")
        else:
            behind += _next_behind(published, target)
    if behind:
        shape = view_schemas.read(connection, config.source).get(target.physical_name)
        still = shape is not None and shape.paused is not None
        raise VersionBehindError(
            f"version {target.number} of view {target.view} is behind",
            detail="; ".join(behind),
            hint=f"it is paused since its table changed: headwater view resume {target.view}"
            if still
            else "the job applies the missing changes: headwater status; then retry",
        )


def _refuse_derived_behind(
    config: JobConfig, current: ViewVersion, target: ViewVersion, stores: Collection[Store]
) -> None:
    """Refuses a derived version that is not published, or is published at an earlier boundary.

    Another store has the published state of the active version, or an older one.
    """
    published = Published(config.addresses.tables, config.source)
    latest = published.latest()
    views = {} if latest is None else latest.views
    own, seen = views.get(target.physical_name), views.get(current.physical_name)
    behind = []
    if own is None or (seen is not None and (own.epoch, own.lsn) < (seen.epoch, seen.lsn)):
        at, seen_through = own and own.applied_through, seen and seen.applied_through
        behind.append(f"table: {at or 'not published yet'}, readers see {seen_through}")
    else:
        behind += _next_behind(published, target)
    for store in sorted(stores):
        if store is Store.TABLE:
            continue
        had = delivered(config, store).get(target.physical_name)
        if own is None or had is None or not had.table or had.version != own.version:
            behind.append(f"{store}: not at the published version yet")
    if behind:
        raise VersionBehindError(
            f"version {target.number} of view {target.view} is behind",
            detail="; ".join(behind),
            hint="the job applies the missing changes: headwater view status; then retry",
        )


def _next_behind(published: Published, target: ViewVersion) -> list[str]:
    """Returns why the tables' cutover would refuse a version behind the next published one."""
    try:
        published.refuse_behind({target.view: target.physical_name})
    except PlaceBehindError as error:
        return [f"table: {error.detail}"]
    return []


def _published(latest: PublishedVersion | None, physical_name: str) -> bool:
    if latest is None or physical_name not in latest.views:
        return False
    table = latest.views[physical_name]
    return (table.epoch, table.lsn) == (latest.epoch, latest.lsn)
