"""Whether a version of a view has less than the one that readers see: they are not moved there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from projections.definition.views import Store
from projections.errors import PlaceBehindError, VersionBehindError
from projections.incremental.delivery import delivered
from projections.planning import view_schemas
from projections.publishing import positions
from projections.publishing.published_versions import Published
from projections.versions.routing import stores_of

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from projections.planning.job_spec import JobSpec
    from projections.publishing.published_versions import PublishedVersion
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]


def refuse_behind(
    connection: Connection,
    spec: JobSpec,
    current: ViewVersion,
    target: ViewVersion,
    stores: Collection[Store] | None = None,
) -> None:
    """Refuses a version that has less than the one that readers see.

    Args:
        connection: To the source, in autocommit.
        spec: The job.
        current: What readers see.
        target: The version.
        stores: Where; None for all stores that it is kept in.

    Raises:
        VersionBehindError: It has, in a store.
    """
    stores = stores_of(target) if stores is None else stores
    if target.derived:
        _refuse_derived_behind(spec, current, target, stores)
        return
    reached = {(p.view, p.store): p.applied_through for p in positions.read(connection)}
    behind = []
    for store in sorted(stores):
        own, seen = reached.get((target.place, store)), reached.get((current.place, store))
        if own is None or (seen is not None and own < seen):
            behind.append(f"{store}: {own or 'nothing yet'}, readers see {seen}")
    if Store.TABLE in stores:
        published = Published(spec.addresses.tables, spec.source)
        if not _published(published.latest(), target.place):
            behind.append("table: not published yet")
        else:
            behind += _next_behind(published, target)
    if behind:
        shape = view_schemas.read(connection, spec.source).get(target.place)
        still = shape is not None and shape.paused is not None
        raise VersionBehindError(
            f"version {target.number} of view {target.view} is behind",
            detail="; ".join(behind),
            hint=f"it stands still since its table has changed: headwater view resume {target.view}"
            if still
            else "the job brings it there: headwater status; then try again",
        )


def _refuse_derived_behind(
    spec: JobSpec, current: ViewVersion, target: ViewVersion, stores: Collection[Store]
) -> None:
    """Refuses a version that is not where it is published, or is published earlier.

    What another store has of the present one is what is published, or older.
    """
    published = Published(spec.addresses.tables, spec.source)
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
        had = delivered(spec, store).get(target.place)
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
