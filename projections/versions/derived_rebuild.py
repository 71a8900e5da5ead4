"""Rebuild of a derived view: the job computes another version of it beside the active one.

Nothing is replayed, since the tables of its inputs exist at each boundary. This module plans the
rebuild, records the version, and compares it with the active one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltalake.exceptions import DeltaError

from foundation.disk import free_bytes
from projections.definition.views import DerivedView, Store, view_of
from projections.errors import SinkUnavailableError, VersionBehindError
from projections.incremental.delivery import plan_at
from projections.publishing.other_sources import active_elsewhere
from projections.publishing.published_versions import Published
from projections.stores.delta.table_stats import rows_at
from projections.versions import compare as versions_compare
from projections.versions import derived as versions_derived
from projections.versions import rebuild, registry
from projections.versions.rebuild import DISK_SPARE, RebuildPlan
from projections.versions.version import VersionState

if TYPE_CHECKING:
    import psycopg

    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.publishing.published_content import PublishedVersion
    from projections.versions.compare import VersionDifference
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

_ROWS_PER_S: Final = 100_000
"""Rows per second that a query reads on a small machine; used where nothing was measured."""


def plan_rebuild(connection: Connection, spec: JobSpec, view: DerivedView) -> RebuildPlan:
    """Plans the rebuild of a view; changes nothing.

    Raises:
        RebuildRefusedError: The view would read itself through other maintained versions.
    """
    known = versions_derived.maintained(
        connection, spec.config.source, spec.declared_derived, spec.config.functions
    )
    by_view: dict[str, list[DerivedView]] = {}
    for each in known:
        by_view.setdefault(view_of(each.view.name), []).append(each.view)
    by_view.setdefault(view.name, []).append(view)
    versions_derived.in_order(by_view)
    own = [v for v in registry.read(connection, spec.config.source) if v.view == view.name]
    current = next((each for each in own if each.state is VersionState.CURRENT), None)
    differs = () if current is None else registry.changed(connection, current, view).differences
    rows = _rows(spec.config, view)
    return RebuildPlan(
        view.name,
        differs,
        "views",
        rows,
        round(rows / _ROWS_PER_S, 1),
        int(rebuild.parquet_bytes(spec.config, current) * DISK_SPARE),
        free_bytes(spec.config.addresses.tables),
        rebuild.followers(spec, view),
        known_by=f"{_ROWS_PER_S:,} rows a second are assumed",
        stores=rebuild.stores_capacity(spec.config, view, current),
    )


def _rows(config: JobConfig, view: DerivedView) -> int:
    """Estimates the number of rows in a view's input tables."""
    tables = config.addresses.tables
    published = Published(tables, config.source)
    latest = published.latest()
    if latest is None:
        return 0
    active = active_elsewhere(tables, config.source) | latest.by_view(published.current())
    read = [active[name] for name in view.inputs if name in active]
    there = [(physical_name, table.version) for physical_name, table in read]
    return sum(rows_at(tables, physical_name, version) for physical_name, version in there)


def compare(
    connection: Connection, config: JobConfig, current: ViewVersion, target: ViewVersion
) -> VersionDifference:
    """Compares a version with the active one, both published at one boundary.

    Columns that only one query returns, or that have another type, are explained by the queries.
    Rows that both have must agree in every common column.

    Raises:
        VersionBehindError: They have not been published at one boundary yet.
        SinkError: A table cannot be read.
    """
    latest = Published(config.addresses.tables, config.source).latest()
    old, new = (_bound(config, latest, version) for version in (current, target))
    change = registry.changed(connection, current, registry.defined(target))
    types = [{c.name: c.type_name for c in plan.schema.columns} for plan in (old, new)]
    columns = {name for one in types for name in one if types[0].get(name) != types[1].get(name)}
    change = change._replace(columns=frozenset(columns), rows=False)
    return versions_compare.compare_versions(connection, config, old, new, change)


def _bound(config: JobConfig, latest: PublishedVersion | None, version: ViewVersion) -> ViewPlan:
    view = version.declared()
    at = None if latest is None else latest.views.get(version.physical_name)
    if at is None or not isinstance(view, DerivedView):
        raise VersionBehindError(
            f"version {version.number} of view {version.view} is not published yet",
            hint="the job computes it at the next boundary: headwater view status; then retry",
        )
    try:
        plan = plan_at(config, view, at.version)
    except (DeltaError, OSError) as error:
        raise SinkUnavailableError(
            f"table {version.physical_name} cannot be read", detail=type(error).__name__
        ) from None
    # a derived view has a table even if it declares none
    return replace(plan, to=plan.to | {Store.TABLE})
