"""Retirement: removes an inactive version, or a view that is no longer declared, from every store.

The job does not maintain undeclared views and leaves them as they are: only a person can decide
that their rows are no longer needed. Readers lose the view's name first; then its versions go one
by one. Each step is recorded before it is done, so an interrupted retirement is repeated and
completes. A view that is declared later under that name begins with another version, since a
physical name is never used again.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from projections.common import store_lock
from projections.definition.views import Store, view_of
from projections.errors import VersionError, VersionUnknownError
from projections.publishing import other_sources
from projections.versions import derived as versions_derived
from projections.versions import function_store, registry, routing
from projections.versions.bulk_requests import BulkRequests
from projections.versions.version import KEPT, VersionState

if TYPE_CHECKING:
    import psycopg

    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]


def drop(connection: Connection, config: JobConfig, version: ViewVersion) -> None:
    """Removes an inactive version from every store, with all its state.

    Raises:
        VersionUnknownError: It is active, or may be.
        SinkError: A store cannot be reached; repeat the command.
    """
    own = registry.of_view(connection, config.source, version.view)
    if any(each.switching for each in own):  # any may be active in a silent store
        raise VersionUnknownError(
            f"readers of view {version.view} are on their way to another version",
            hint="the job moves them: headwater view list --versions; then retry",
        )
    if version.state is VersionState.CURRENT:
        raise VersionUnknownError(
            f"version {version.number} of view {version.view} is the active one",
            hint="headwater view cutover or rollback moves them to another one first",
        )
    stores = routing.stores_of(version)
    turns = {store_lock.of_derived(store) for store in stores} if version.derived else stores
    # the job checks this before its next batch and then writes no more to it
    before = [*(KEPT - {VersionState.CURRENT}), VersionState.BUILDING, VersionState.DROPPED]
    registry.move(connection, config.source, version.physical_name, VersionState.DROPPED, before)
    plan = routing.plan_of_name(version.physical_name, stores)
    with store_lock.exclusive(connection, config.source, turns):
        pass  # the batch that was writing to it has finished
    for store in sorted(stores):
        with closing(routing.version_pointer(store, config)) as sink:
            sink.drop(plan)
    BulkRequests(config).forget(version.physical_name)
    registry.forget(connection, config.source, version.physical_name)
    function_store.tidy(connection, config.functions, shared=config.shares_home)


def withdraw(connection: Connection, spec: JobSpec, view: str) -> tuple[ViewVersion, ...]:
    """Removes all versions of a view from every store, with their state.

    Args:
        connection: To the source, in autocommit; it holds the lock of the view's versions.
        spec: The job, which does not maintain the view.
        view: The view, which is no longer declared.

    Returns:
        Its versions, including those dropped before.

    Raises:
        VersionUnknownError: There never was such a view.
        VersionError: A version of a declared view reads it.
        VersionBusyError: A batch takes too long; repeating the command completes it.
        SinkError: A store does not answer; repeating the command completes it.
    """
    versions = [each for each in registry.read(connection, spec.config.source) if each.view == view]
    if not versions:
        raise VersionUnknownError(
            f"no view is named {view}", hint="headwater view list --versions shows all there are"
        )
    _refuse_read(connection, spec, view)
    for each in versions:
        registry.move(
            connection, spec.config.source, each.physical_name, VersionState.DROPPED, VersionState
        )
    turns = {*Store, *(store_lock.of_derived(each) for each in Store)}
    with store_lock.exclusive(connection, spec.config.source, turns):
        pass  # the batch that was writing to it has finished
    for store in routing.in_order(list(Store)):
        routing.deactivate(spec.config, store, view)
        with closing(routing.version_pointer(store, spec.config)) as sink:
            for each in versions:
                # also from stores that the definition no longer names
                sink.drop(routing.plan_of_name(each.physical_name, {store}))
    for each in versions:
        BulkRequests(spec.config).forget(each.physical_name)
        registry.forget(connection, spec.config.source, each.physical_name)
    function_store.tidy(connection, spec.config.functions, shared=spec.config.shares_home)
    return tuple(versions)


def _refuse_read(connection: Connection, spec: JobSpec, view: str) -> None:
    """Refuses to remove a view that a version of a declared view still reads."""
    readers = [
        each.name
        for each in spec.declared_derived
        if view in versions_derived.read(connection, spec.config.source, [each.name])
    ]
    if not readers:
        made = other_sources.readers(spec.config.addresses.tables, spec.config.source, {view})
        direct = {e.physical_name: e for e in made if view in map(view_of, e.table.made_from)}
        readers += [f"{e.physical_name} of source {e.source}" for e in direct.values()]
    if readers:
        raise VersionError(
            f"versions of other views are made from view {view}",
            detail=", ".join(readers),
            hint="rebuild these as declared now, cut over, and drop their older versions",
        )
