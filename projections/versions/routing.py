"""Routing: the active version of a view in each store, and how it changes.

Each store has one pointer: OpenSearch an alias, the cache a field of one hash, the tables a file
with the current physical name of every view. Each changes in one step.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Protocol, cast

from cdc.table import TableName, TableSchema
from projections.definition.views import Store, maintained_stores
from projections.errors import SinkUnavailableError
from projections.planning.view_plan import ViewPlan
from projections.publishing.published_versions import Published
from projections.publishing.stable_table import StableTable
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from projections.planning.job_config import JobConfig
    from projections.versions.version import ViewVersion


class ActiveVersionPointer(Protocol):
    """A sink that keeps the pointer to a view's active version."""

    def activate(self, plan: ViewPlan) -> None:
        """Makes this version active, in one step."""
        ...

    def is_active(self, plan: ViewPlan) -> bool:
        """Returns whether this version is active."""
        ...

    def deactivate(self, view: str) -> None:
        """Removes the view's name: no version of it is active."""
        ...

    def drop(self, plan: ViewPlan) -> None:
        """Removes an inactive version."""
        ...


class OwnedVersionPointer(ActiveVersionPointer, Protocol):
    """An `ActiveVersionPointer` that owns its connections."""

    def close(self) -> None:
        """Closes the connections."""
        ...


def stores_of(version: ViewVersion) -> frozenset[Store]:
    """Returns the stores of a version."""
    return maintained_stores(version.declared())


def in_order(stores: Collection[Store]) -> list[Store]:
    """Sorts stores for a cutover: the one that may refuse comes first."""
    return [each for each in (Store.TABLE, Store.SEARCH, Store.CACHE) if each in stores]


def plan_of_name(name: str, stores: Collection[Store]) -> ViewPlan:
    """Returns a plan with only a physical name, for calls that need no more."""
    schema = TableSchema(TableName("", ""), (), ())
    return ViewPlan(name, "", "", schema, (), frozenset(stores))


def version_pointer(store: Store, config: JobConfig) -> OwnedVersionPointer:
    """Opens a store's sink for the routing of versions."""
    return cast("OwnedVersionPointer", open_sink(store, config.addresses))


def is_active(config: JobConfig, store: Store, target: ViewVersion) -> bool:
    """Returns whether a version is active in a store.

    Raises:
        SinkError: It does not answer.
    """
    if store is Store.TABLE:
        with _reaching_tables():
            published = Published(config.addresses.tables, config.source)
            content = StableTable(config.addresses.tables, target.view).content()
            physical_name = published.current().get(target.view, target.view)
        return (
            physical_name == target.physical_name
            and content is not None
            and content.place == physical_name
        )
    with closing(version_pointer(store, config)) as sink:
        return sink.is_active(plan_of_name(target.physical_name, stores_of(target)))


def activate(config: JobConfig, store: Store, target: ViewVersion) -> None:
    """Makes a version active in a store.

    Raises:
        SinkError: It does not answer, or refuses.
        StableTableError: The version's table is behind.
    """
    if store is Store.TABLE:
        with _reaching_tables():
            published = Published(config.addresses.tables, config.source)
            published.switch({target.view: target.physical_name})
            StableTable(config.addresses.tables, target.view).follow(published)
        return
    plan = plan_of_name(target.physical_name, stores_of(target))
    with closing(version_pointer(store, config)) as sink:
        if not sink.is_active(plan):
            sink.activate(plan)


def deactivate(config: JobConfig, store: Store, view: str) -> None:
    """Removes a view's name from a store: no version of it is active there.

    Raises:
        SinkError: It does not answer.
    """
    if store is Store.TABLE:
        with _reaching_tables():
            Published(config.addresses.tables, config.source).withdraw(view)
            StableTable(config.addresses.tables, view).remove()
        return
    with closing(version_pointer(store, config)) as sink:
        sink.deactivate(view)


@contextmanager
def _reaching_tables() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkUnavailableError(
            "the tables cannot be read or written", detail=type(error).__name__
        ) from error
