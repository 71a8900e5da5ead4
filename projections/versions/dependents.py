"""Dependents: the columns that derived views read from a view, before and after a cutover.

A version may lack a column that a derived view reads, or have it in another type. Readers would
then get the version, and the derived view would be paused with its present rows. To predict that
before a cutover, this module collects the columns of both versions, but no rows. Where columns
differ, Spark decides whether the queries fit them (`projections.job.batch.check_dependents`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from projections.definition.columns import BOOKKEEPING, VERSION_COLUMN
from projections.definition.derived.view_function import digest_in
from projections.definition.diff import DefinitionChangeKind
from projections.definition.views import DerivedView, view_of
from projections.errors import PlanError, SinkUnavailableError
from projections.planning import binding
from projections.publishing.other_sources import active_elsewhere
from projections.publishing.published_versions import Published
from projections.stores.delta.arrow import table_schema
from projections.stores.delta.history.arrow import HistoryForm
from projections.versions import derived as versions_derived
from projections.versions import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from projections.definition.views import AnyView
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.publishing.published_content import TableVersion
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]
    Columns = tuple[Mapping[str, Any], ...]

_OWN_COLUMNS = frozenset({VERSION_COLUMN, *BOOKKEEPING})
_PLANNED = "planned"
"""Suffix of a physical name that no version has, to bind a view without a recorded decision."""


@dataclass(frozen=True, slots=True)
class Dependents:
    """The derived views that read a view, and the columns of their inputs.

    Attributes:
        views: The derived views that read it directly or indirectly, each after its inputs, by
            their active versions and under their own names; preceded by the view itself if only its
            query determines its columns.
        now: Columns of each input as Delta writes them, which is Spark's own form; without inputs
            that were never published.
        then: The same after the cutover; without the view itself if it is among `views`.
    """

    views: tuple[DerivedView, ...]
    now: Mapping[str, Columns]
    then: Mapping[str, Columns]

    @property
    def alike(self) -> bool:
        """Returns whether the columns of all inputs stay the same."""
        return not self.views or self.now == self.then


NO_DEPENDENTS = Dependents((), {}, {})
"""The dependents of a view that no other view reads."""


def of_version(connection: Connection, spec: JobSpec, target: ViewVersion) -> Dependents:
    """Returns the dependents of a view, with their columns after a cutover to a filled version.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    followers = _followers(connection, spec, target.view)
    if not followers:
        return NO_DEPENDENTS
    now, latest = _now(connection, spec.config, target.view, followers), _latest(spec.config)
    at = latest.get(target.physical_name)
    then = {name: columns for name, columns in now.items() if name != target.view}
    if at is not None:
        then[target.view] = _columns_at(spec.config, target.physical_name, at)
    return Dependents(followers, now, then)


def of_plan(connection: Connection, spec: JobSpec, view: AnyView) -> Dependents:
    """Returns the dependents of a view, with their columns after a cutover to its declared form.

    Returns:
        The dependents; `NO_DEPENDENTS` if the view does not fit its table, since no version of it
        can exist.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    followers = _followers(connection, spec, view.name)
    if not followers:
        return NO_DEPENDENTS
    if isinstance(view, DerivedView):
        return _of_query(connection, spec.config, view, followers)
    planned = replace(view, name=f"{view.name}.{_PLANNED}")
    try:
        bound = binding.bind(connection, spec.config.source, [planned], hiding=spec.config.hiding)
    except PlanError:
        return NO_DEPENDENTS
    now = _now(connection, spec.config, view.name, followers)
    return Dependents(followers, now, {**now, view.name: columns_of(bound.plans[0])})


def columns_of(plan: ViewPlan) -> Columns:
    """Returns the columns of a bound view's table, as Delta writes them."""
    table = table_schema(plan) if plan.history is None else HistoryForm(plan).states_schema
    return _columns(Schema.from_arrow(table))


def columns_elsewhere(spec: JobSpec) -> dict[str, Columns]:
    """Returns the columns of the active versions of views of other sources.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    active = active_elsewhere(spec.config.addresses.tables, spec.config.source).items()
    read = {*spec.cross_reads.read, *(n for v in spec.cross_reads.derived for n in v.inputs)}
    return {
        name: _columns_at(spec.config, physical_name, at)
        for name, (physical_name, at) in active
        if name in read
    }


def _of_query(
    connection: Connection, config: JobConfig, view: DerivedView, followers: tuple[DerivedView, ...]
) -> Dependents:
    now = _now(connection, config, view.name, (view, *followers))
    versions = registry.of_view(connection, config.source, view.name)
    physical_name = registry.active_names(connection, config.source).get(view.name)
    current = next((each for each in versions if each.physical_name == physical_name), None)
    # a function that cannot be stored may be replaced in place
    if current is not None and (view.function is None or digest_in(view.text) is not None):
        change = registry.changed(connection, current, view)
        if change.kind is not DefinitionChangeKind.REBUILD:
            return Dependents(followers, now, now)
    then = {name: columns for name, columns in now.items() if name != view.name}
    return Dependents((view, *followers), now, then)


def _followers(connection: Connection, spec: JobSpec, view: str) -> tuple[DerivedView, ...]:
    """Returns the derived views that read a view directly or indirectly, by their active versions.

    Views that the job of another source maintains are included as declared.
    """
    physical_names = registry.active_names(connection, spec.config.source)
    known = versions_derived.maintained_views(
        connection, spec.config.source, spec.declared_derived, spec.config.functions
    )
    reached, followers = {view}, []
    for each in (*known, *spec.cross_reads.derived):
        name = view_of(each.name)
        if each.name != physical_names.get(name, name) or reached.isdisjoint(each.inputs):
            continue
        reached.add(name)
        followers.append(replace(each, name=name))
    return tuple(each for each in followers if each.name != view)


def _now(
    connection: Connection, config: JobConfig, view: str, reading: tuple[DerivedView, ...]
) -> dict[str, Columns]:
    """Returns the columns of the active version of every input from outside `reading`."""
    physical_names, latest = (
        dict(registry.active_names(connection, config.source)),
        dict(_latest(config)),
    )
    for name, (physical_name, at) in active_elsewhere(
        config.addresses.tables, config.source
    ).items():
        physical_names[name], latest[physical_name] = physical_name, at
    made = {each.name for each in reading} - {view}
    columns = {}
    for name in sorted({view}.union(*(each.inputs for each in reading)) - made):
        physical_name = physical_names.get(name, name)
        if physical_name in latest:
            columns[name] = _columns_at(config, physical_name, latest[physical_name])
    return columns


def _latest(config: JobConfig) -> Mapping[str, TableVersion]:
    latest = Published(config.addresses.tables, config.source).latest()
    return {} if latest is None else latest.views


def _columns_at(config: JobConfig, physical_name: str, at: TableVersion) -> Columns:
    try:
        table = DeltaTable(str(config.addresses.tables / physical_name), version=at.version)
        return _columns(table.schema())
    except (DeltaError, OSError) as error:
        raise SinkUnavailableError(
            f"table {physical_name} cannot be read", detail=type(error).__name__
        ) from None


def _columns(schema: Schema) -> Columns:
    fields = orjson.loads(schema.to_json())["fields"]
    return tuple({**each, "metadata": {}} for each in fields if each["name"] not in _OWN_COLUMNS)
