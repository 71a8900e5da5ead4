"""Succession: what views made from one read, now and once readers see another version of it.

A version may lack a column that a view made from it reads, or have it in another type. Then readers
get the version, and that view stands still with what it had. What is needed to tell that before
anybody is moved is gathered here: columns alone, no row is read. Whether the queries fit them is
for Spark to say (`projections.job.batch.check_dependents`), which is asked only where columns
differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from projections.definition.columns import BOOKKEEPING, VERSION_COLUMN
from projections.definition.derived.view_function import part_told
from projections.definition.diff import DefinitionChangeKind
from projections.definition.views import DerivedView
from projections.errors import PlanError, SinkUnavailableError
from projections.planning import binding
from projections.publishing.other_sources import shown_elsewhere
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
    from projections.publishing.published_versions import TableVersion
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]
    Columns = tuple[Mapping[str, Any], ...]

_OWN_COLUMNS = frozenset({VERSION_COLUMN, *BOOKKEEPING})
_PLANNED = "planned"
"""Of no version: a view is bound in a place that nothing has been decided about."""


@dataclass(frozen=True, slots=True)
class Succession:
    """Views made from one, and the columns of what they read.

    Attributes:
        views: Those that are made from it, or from one of these, each after what it reads and as
            readers see it, under its own name; before them the view itself where only its query
            tells which columns it will have.
        now: By view that they read, its columns as Delta writes them, which is Spark's own form; of
            one that was never published, none.
        then: The same, once readers see the other version; without the view itself if it is among
            `views`.
    """

    views: tuple[DerivedView, ...]
    now: Mapping[str, Columns]
    then: Mapping[str, Columns]

    @property
    def alike(self) -> bool:
        """Whether nothing that they read has other columns then."""
        return not self.views or self.now == self.then


NOBODY = Succession((), {}, {})
"""Of a view that no other is made from."""


def of_version(connection: Connection, spec: JobSpec, target: ViewVersion) -> Succession:
    """Returns what views made from one would read if readers saw a version that is built.

    Args:
        connection: To the source, in autocommit.
        spec: The job.
        target: The version.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    followers = _followers(connection, spec, target.view)
    if not followers:
        return NOBODY
    now, latest = _now(connection, spec.config, target.view, followers), _latest(spec.config)
    at = latest.get(target.place)
    then = {name: columns for name, columns in now.items() if name != target.view}
    if at is not None:
        then[target.view] = _columns_at(spec.config, target.place, at)
    return Succession(followers, now, then)


def of_plan(connection: Connection, spec: JobSpec, view: AnyView) -> Succession:
    """Returns what views made from one would read if readers saw it as it is declared now.

    Args:
        connection: To the source, in autocommit.
        spec: The job.
        view: The view as it is declared now.

    Returns:
        It; of a view that does not fit its table, `NOBODY`: no version of it comes to be.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    followers = _followers(connection, spec, view.name)
    if not followers:
        return NOBODY
    if isinstance(view, DerivedView):
        return _of_query(connection, spec.config, view, followers)
    planned = replace(view, name=f"{view.name}.{_PLANNED}")
    try:
        bound = binding.bind(connection, spec.config.source, [planned], hiding=spec.config.hiding)
    except PlanError:
        return NOBODY
    now = _now(connection, spec.config, view.name, followers)
    return Succession(followers, now, {**now, view.name: columns_of(bound.plans[0])})


def columns_of(plan: ViewPlan) -> Columns:
    """Returns what is read of the table of a view that is bound, as Delta writes columns."""
    table = table_schema(plan) if plan.history is None else HistoryForm(plan).states_schema
    return _columns(Schema.from_arrow(table))


def columns_elsewhere(spec: JobSpec) -> dict[str, Columns]:
    """Returns the columns of views of other sources, as readers see them.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    found = shown_elsewhere(spec.config.addresses.tables, spec.config.source).items()
    read = {*spec.cross_reads.read, *(n for v in spec.cross_reads.derived for n in v.inputs)}
    return {
        name: _columns_at(spec.config, place, at) for name, (place, at) in found if name in read
    }


def _of_query(
    connection: Connection, config: JobConfig, view: DerivedView, followers: tuple[DerivedView, ...]
) -> Succession:
    now = _now(connection, config, view.name, (view, *followers))
    versions = registry.of_view(connection, config.source, view.name)
    place = registry.current_places(connection, config.source).get(view.name)
    current = next((each for each in versions if each.place == place), None)
    # of a function that cannot be kept, another one may be followed in place
    if current is not None and (view.function is None or part_told(view.text) is not None):
        change = registry.changed(connection, current, view)
        if change.kind is not DefinitionChangeKind.REBUILD:
            return Succession(followers, now, now)
    then = {name: columns for name, columns in now.items() if name != view.name}
    return Succession((view, *followers), now, then)


def _followers(connection: Connection, spec: JobSpec, view: str) -> tuple[DerivedView, ...]:
    """Views made from one, or from one of these, by the queries whose rows readers see.

    Those that the job of another source maintains, by the queries that are declared.
    """
    places = registry.current_places(connection, spec.config.source)
    known = versions_derived.places(
        connection, spec.config.source, spec.declared_derived, spec.config.functions
    )
    reached, found = {view}, []
    for each in (*known, *spec.cross_reads.derived):
        name = each.name.partition(".")[0]
        if each.name != places.get(name, name) or reached.isdisjoint(each.inputs):
            continue
        reached.add(name)
        found.append(replace(each, name=name))
    return tuple(each for each in found if each.name != view)


def _now(
    connection: Connection, config: JobConfig, view: str, reading: tuple[DerivedView, ...]
) -> dict[str, Columns]:
    """Columns of all that some views read but what they make themselves, as readers see it."""
    places, latest = dict(registry.current_places(connection, config.source)), dict(_latest(config))
    for name, (place, at) in shown_elsewhere(config.addresses.tables, config.source).items():
        places[name], latest[place] = place, at
    made = {each.name for each in reading} - {view}
    found = {}
    for name in sorted({view}.union(*(each.inputs for each in reading)) - made):
        place = places.get(name, name)
        if place in latest:
            found[name] = _columns_at(config, place, latest[place])
    return found


def _latest(config: JobConfig) -> Mapping[str, TableVersion]:
    latest = Published(config.addresses.tables, config.source).latest()
    return {} if latest is None else latest.views


def _columns_at(config: JobConfig, place: str, at: TableVersion) -> Columns:
    try:
        table = DeltaTable(str(config.addresses.tables / place), version=at.version)
        return _columns(table.schema())
    except (DeltaError, OSError) as error:
        raise SinkUnavailableError(
            f"table {place} cannot be read", detail=type(error).__name__
        ) from None


def _columns(schema: Schema) -> Columns:
    fields = orjson.loads(schema.to_json())["fields"]
    return tuple({**each, "metadata": {}} for each in fields if each["name"] not in _OWN_COLUMNS)
