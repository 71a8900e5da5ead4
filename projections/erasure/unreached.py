"""Copies that an erasure would miss: paused views, and stores that are no longer maintained.

Rows leave a view because the job applies their deletes. Where it does not, they stay: in a paused
view, in a view that a store refuses, in the versions of an undeclared view, in a store from which a
view was removed, and in the remnants of an interrupted drop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdc.postgres import escaped_topics
from projections.definition.views import DerivedView, MirrorView, maintained_stores, view_of
from projections.errors import DefinitionUnreadableError
from projections.planning import view_schemas
from projections.publishing import positions
from projections.versions import registry
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import psycopg

    from cdc.table import TableName
    from projections.definition.views import AnyView
    from projections.planning.job_spec import JobSpec
    from projections.versions.version import ViewVersion

    Connection = psycopg.Connection[Any]

_OID: Final = "SELECT to_regclass(quote_ident(%s) || '.' || quote_ident(%s))::oid"


class Unreached(NamedTuple):
    """A copy of erased data that the erasure cannot reach.

    Attributes:
        physical_name: That of a view's version.
        why: Why it is not reached.
        hint: How to make it reachable.
    """

    physical_name: str
    why: str
    hint: str


def unreached(
    connection: Connection,
    spec: JobSpec,
    table: TableName,
    halted: Mapping[tuple[str, str], str],
) -> list[Unreached]:
    """Returns the copies that an erasure of keys of a table would miss.

    Args:
        connection: To the source, in autocommit.
        spec: The job with its bound views and its paused ones.
        table: The table.
        halted: Error code of each paused view by physical name and store, as the job reports it.
    """
    if not view_schemas.ready(connection):
        return []
    look = _StoreStates(connection, spec, table)
    return sorted([*look.paused(), *look.halted(halted), *look.withdrawn(), *look.left()])


def made_from(
    views: Iterable[str], derived: Iterable[tuple[str, Collection[str]]]
) -> frozenset[str]:
    """Returns views, and all views derived from them, directly or indirectly."""
    reached, among = set(views), list(derived)
    while new := {name for name, inputs in among if not reached.isdisjoint(inputs)} - reached:
        reached |= new
    return frozenset(reached)


class _StoreStates:
    """The recorded state of all versions and stores."""

    def __init__(self, connection: Connection, spec: JobSpec, table: TableName) -> None:
        self._spec = spec
        self._versions = registry.read(connection, spec.config.source)
        self._views = {each.physical_name: _defined(each) for each in self._versions}
        there = [p for p in positions.read(connection) if p.source == spec.config.source]
        self._positions = {(p.view, p.store) for p in there}
        shapes = view_schemas.read(connection, spec.config.source)
        self._known = shapes.keys() | {physical_name for physical_name, _ in self._positions}
        row = connection.execute(_OID, (table.schema, table.name)).fetchone()
        oid, topic = (
            row[0] if row else None,
            escaped_topics.names(connection, spec.config.source).of(table),
        )
        # a renamed table is the same table
        self._own = {
            *(plan.name for plan in spec.plans if plan.schema.table == table),
            *(view.name for view in spec.paused if topic in view.topics),
            *(
                physical_name
                for physical_name, s in shapes.items()
                if table in s.tables or s.table_oid == oid
            ),
            *(
                physical_name
                for physical_name, view in self._views.items()
                if _mirrors(view, table)
            ),
        }
        made = [(view_of(view.name), view.inputs) for view in spec.derived]
        made += [
            (each.view, view.inputs)
            for each in self._versions
            if isinstance(view := self._views[each.physical_name], DerivedView)
            and each.state is not VersionState.DROPPED
        ]
        self._made = made_from({view_of(physical_name) for physical_name in self._own}, made)

    def paused(self) -> Iterator[Unreached]:
        for view in self._spec.paused:
            if view.name in self._own:
                resumed = f"headwater view resume {view_of(view.name)}"
                yield Unreached(view.name, f"paused: {view.fault.code}", view.fault.hint or resumed)

    def halted(self, halted: Mapping[tuple[str, str], str]) -> Iterator[Unreached]:
        kept = {plan.name for plan in self._spec.plans} & self._own
        for (physical_name, store), code in halted.items():
            if physical_name in kept:
                yield Unreached(
                    physical_name,
                    f"stopped in {store}: {code}",
                    "headwater view status shows how to resume it",
                )

    def withdrawn(self) -> Iterator[Unreached]:
        """Yields stores from which a view was removed: they are no longer written."""
        stores = {plan.name: plan.to for plan in self._spec.plans if plan.name in self._own}
        for view in self._spec.derived:
            if view_of(view.name) in self._made:
                stores[view.name] = maintained_stores(view)
        for physical_name, store in self._positions:
            if physical_name in stores and store not in stores[physical_name]:
                yield Unreached(
                    physical_name,
                    f"was kept in {store} before, and still lies there",
                    f"declare view {view_of(physical_name)} in {store} again, then headwater up",
                )

    def left(self) -> Iterator[Unreached]:
        """Yields versions that are not maintained."""
        spec = self._spec
        declared = {view.name for view in (*spec.views, *spec.declared_derived)}
        kept = {plan.name for plan in spec.plans} | {view.name for view in spec.paused}
        kept |= {view.name for view in spec.derived}
        for version in self._versions:
            if version.physical_name in kept or not self._concerns(version):
                continue
            all_of_it = f"headwater view drop {version.view} --yes"
            drop = f"headwater view drop {version.view} {version.number} --yes"
            if version.state is VersionState.DROPPED:
                if version.physical_name in self._known:
                    rest = drop if version.view in declared else all_of_it
                    yield Unreached(version.physical_name, "was dropped by halves", rest)
            elif version.view not in declared:
                again = f"{all_of_it}, or declare it again and headwater up"
                yield Unreached(version.physical_name, "its view is declared no more", again)
            elif version.state is not VersionState.BUILDING:
                # a version being built is refused separately; a derived one has no data yet
                again = f"declare view {version.view} as it was, or {drop}"
                yield Unreached(version.physical_name, "is not kept as it is declared", again)
        for physical_name in (self._own & self._known) - kept - self._views.keys():
            again = f"declare view {view_of(physical_name)} again, then headwater up"
            yield Unreached(physical_name, "no view maintains it", again)

    def _concerns(self, version: ViewVersion) -> bool:
        view = self._views[version.physical_name]
        if view is None:  # unknown
            return True
        return version.physical_name in self._own or (
            isinstance(view, DerivedView) and not self._made.isdisjoint(view.inputs)
        )


def _defined(version: ViewVersion) -> AnyView | None:
    """Returns the definition of a version; None if it cannot be read."""
    try:
        return registry.defined(version)
    except DefinitionUnreadableError:
        return None


def _mirrors(view: AnyView | None, table: TableName) -> bool:
    return isinstance(view, MirrorView) and view.table == table
