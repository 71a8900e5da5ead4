"""The values that a user declares: sources, and the views derived from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from cdc.table import TableName
from eventstore.errors import UndeclaredError
from eventstore.serialization.registry import EventTypes
from eventstore.serialization.registry import declared as declared_events
from projections.definition.cache_options import DEFAULT_OPTIONS, CacheOptions
from projections.definition.event_rows import ENVELOPE, EventForm
from projections.definition.search_options import DERIVED, SearchOptions
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc.column_rule import ColumnRules
    from cdc.table import Column
    from projections.definition.expectations.expectation import Expectation
    from projections.definition.operators.pattern import PatternQuery
    from projections.definition.operators.standing_query import Percolation
    from projections.definition.operators.time_bounds import Extent, Span

EVENTS: Final = TableName("eventstore", "events")
ARCHIVED_EVENTS: Final = TableName("eventstore", "archived_events")
OUTBOX: Final = TableName("eventstore", "outbox")
EVENT_TABLES: Final = (EVENTS, ARCHIVED_EVENTS)
"""Tables that hold events: each event is in one of them, and compaction moves it to the second."""


class Store(StrEnum):
    """A store of views."""

    TABLE = "table"  # warehouse: a Delta table
    SEARCH = "search"  # OpenSearch
    CACHE = "cache"  # Valkey or Redis


class SchemaPolicy(StrEnum):
    """How a view reacts when the columns or the key of its table change.

    By default, a view evolves with every change that loses nothing, and is paused by one that does:
    a column retyped to a type that cannot represent its values, a changed key. Under every policy,
    a renamed or dropped table pauses its views.
    """

    EVOLVE = "evolve"  # follows every change that it can follow
    PAUSE = "pause"  # pauses in all its stores until `headwater view resume`
    QUARANTINE = "quarantine"  # keeps its columns; records with other columns are quarantined
    IGNORE = "ignore"  # keeps its columns; new ones are ignored, dropped ones get no new values


@dataclass(frozen=True, slots=True)
class TableRef:
    """A captured table as a view refers to it, with the options of its source."""

    source: str
    table: TableName
    on_schema_change: SchemaPolicy | None = None


@dataclass(frozen=True, slots=True)
class EventsRef:
    """Events of some types in a source's event store, as a view refers to them.

    Attributes:
        source: Name of the source.
        types: Names of the types.
        registry: Registry that declares the types.
        versions: Version of each type by which the view is maintained; None for the declared ones.
        columns: Columns of the types in those versions; None for the declared ones.
    """

    source: str
    types: tuple[str, ...]
    registry: EventTypes
    versions: Mapping[str, int] | None = None
    columns: tuple[Column, ...] | None = None

    def as_declared(self) -> EventsRef:
        """Fills in the current versions and columns of the types, unless they are set.

        Raises:
            PlanError: A type is unknown, or two of them disagree on a column.
        """
        if self.versions is not None and self.columns is not None:
            return self
        columns = EventForm(self.registry, self.types).columns[len(ENVELOPE) :]
        versions = {name: self.registry.named(name).version for name in sorted(self.types)}
        return replace(self, versions=versions, columns=columns)


@dataclass(frozen=True)
class Source:
    """One Postgres database and the tables captured from it.

    A table is an attribute by its name (`shop.orders`) or an item by its full name
    (`shop["sales.orders"]`), which works for every name.

    Attributes:
        name: Name of the source.
        tables: Captured tables, including those of the event store.
        eventstore: Whether the database has an event store, whose outbox is captured too.
        on_schema_change: Default policy of its views.
        columns: Rules for tables with columns that are excluded, hashed or masked.
        insert_only: Tables for which Postgres may refuse UPDATE and DELETE while they are captured.
        escaped_topics: Tables whose names are escaped in their topics.
    """

    name: str
    tables: tuple[TableName, ...]
    eventstore: bool = False
    on_schema_change: SchemaPolicy | None = None
    columns: Mapping[TableName, ColumnRules] = field(default_factory=dict)
    insert_only: frozenset[TableName] = frozenset()
    escaped_topics: frozenset[TableName] = frozenset()

    def events(self, *types: str | type, registry: EventTypes = declared_events) -> EventsRef:
        """Selects events of the source's event store, for `view.events`.

        Args:
            types: Declared classes of events, or the names of their types.
            registry: Registry that declares the types.

        Raises:
            DeclarationError: The source has no event store, or a class is not a declared event.
        """
        if not self.eventstore:
            raise DeclarationError(
                f"source {self.name} has no event store",
                hint=f'source("{self.name}", tables=[...], eventstore=True)',
            )
        try:
            names = tuple(t if isinstance(t, str) else registry.of(t).name for t in types)
        except UndeclaredError as error:
            raise DeclarationError(error.message, hint=error.hint) from None
        if not names or len(set(names)) < len(names):
            raise DeclarationError(
                "a view of events needs one or more event types, without duplicates",
                detail=", ".join(names),
            )
        return EventsRef(self.name, names, registry)

    def __getitem__(self, name: str) -> TableRef:
        wanted = TableName.parse(name)
        if wanted not in self.tables:
            raise DeclarationError(
                f"source {self.name} does not capture {wanted}",
                hint="captured: " + ", ".join(str(table) for table in self.tables),
            )
        return TableRef(self.name, wanted, self.on_schema_change)

    def __getattr__(self, name: str) -> TableRef:
        tables = [table for table in self.tables if table.name == name]
        if name.startswith("__") or len(tables) != 1:
            raise AttributeError(f"source {self.name} has not exactly one table named {name}")
        return TableRef(self.name, tables[0], self.on_schema_change)

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *(table.name for table in self.tables)]


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """The columns whose changes begin a new state of a history; names as in its table.

    Attributes:
        tracked: Columns whose change begins a new state; None for all.
        untracked: Columns whose change does not; an alternative to `tracked`.
        sequence_by: Column with the time from which a row is valid; None for the commit time.
    """

    tracked: tuple[str, ...] | None = None
    untracked: tuple[str, ...] = ()
    sequence_by: str | None = None


class ChangeTime(StrEnum):
    """A time of a row's change, in addition to the times that the row itself has.

    A row of a mirror has the times of its last change and of its first. An event has the times of
    its first arrival, even if compaction moves it to another table.
    """

    COMMIT = "commit"
    """Commit time at the source; NULL for a row read by a snapshot."""

    FIRST_COMMIT = "first_commit"
    """Commit time of the insert of a mirror's row, unaffected by later updates. NULL for a row that
    existed before capture; a key that is inserted again is another row."""

    BROKER = "broker"
    """Time at which its record was sent."""

    PROCESSING = "processing"
    """Time at which it was written to the view; a rebuilt view has other times."""


@dataclass(frozen=True, slots=True)
class MirrorView:
    """The latest row of every key of one table (SCD 1), or every row that it ever had (SCD 2).

    Attributes:
        name: The view's name in every store.
        source: Name of the source.
        table: The mirrored table.
        keys: Columns that identify a row; empty for the table's primary key.
        to: Stores of the view.
        on_schema_change: Schema policy; None for the default, see `SchemaPolicy`.
        cache: How the cache stores it.
        search: How search indexes its fields.
        history: Columns that begin a new state of a history; None for the latest rows.
        expectations: Expectations of its rows.
        left_out: Columns of its table that it excludes.
        times: Columns of the view's warehouse table with times of a row's change, and these times.
    """

    name: str
    source: str
    table: TableName
    keys: tuple[str, ...]
    to: frozenset[Store]
    on_schema_change: SchemaPolicy | None = None
    cache: CacheOptions = DEFAULT_OPTIONS
    search: SearchOptions = DERIVED
    history: HistoryColumns | None = None
    expectations: tuple[Expectation, ...] = ()
    left_out: tuple[str, ...] = ()
    times: tuple[tuple[str, ChangeTime], ...] = ()


@dataclass(frozen=True, slots=True)
class EventsView:
    """Every event of some types, one typed row for each.

    Attributes:
        name: The view's name in every store.
        source: Name of the source.
        events: The events.
        to: Stores of the view.
        search: How search indexes its fields.
        expectations: Expectations of its rows.
        times: Columns of the view's warehouse table with times of an event's arrival, and these
            times.
    """

    name: str
    source: str
    events: EventsRef
    to: frozenset[Store]
    search: SearchOptions = DERIVED
    expectations: tuple[Expectation, ...] = ()
    times: tuple[tuple[str, ChangeTime], ...] = ()

    @property
    def table(self) -> TableName:
        """The table that new events come from."""
        return EVENTS


@dataclass(frozen=True, slots=True)
class DerivedView:
    """The result of a query over other views, maintained as they change.

    Attributes:
        name: The view's name in every store.
        keys: Columns of the result that identify a row.
        to: Stores of the view.
        inputs: The views that it reads.
        sql: Its Spark SQL; None if it is a function.
        function: Takes a DataFrame for each of `inputs`, in their order, and returns one.
        text: For a function, its digest, see `view_function.ViewFunction.text`; for a pattern and
            for standing queries, their full declaration.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expectations: Its expectations.
        pattern: The pattern matched against its one input; None for another query.
        percolation: The columns by which queries of its second input are matched against documents
            of its first; None for another query.
        limit: How long a row can still change, or how far apart the rows that form one can be, in
            words; empty if unlimited.
        extent: How far the effect of a changed row extends in the time of its group; None if
            unknown.
        span: The times, relative to a row, of the input rows that form it; None if unknown.
    """

    name: str
    keys: tuple[str, ...]
    to: frozenset[Store]
    inputs: tuple[str, ...]
    sql: str | None = None
    function: Callable[..., Any] | None = None
    search: SearchOptions = DERIVED
    cache: CacheOptions = DEFAULT_OPTIONS
    text: str = ""
    expectations: tuple[Expectation, ...] = ()
    pattern: PatternQuery | None = None
    percolation: Percolation | None = None
    limit: str = ""
    extent: Extent | None = None
    span: Span | None = None

    @property
    def identities(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the columns that identify the rows of each input, where known."""
        if self.percolation is None:
            return {}
        how = self.percolation
        return dict(zip(self.inputs, (how.document_keys, how.query_keys), strict=True))

    @property
    def along(self) -> Extent | None:
        """Returns the extent, if its table has every row of the query's result."""
        return None if any(each.withholds for each in self.expectations) else self.extent

    @property
    def fingerprint(self) -> str:
        """Returns the text that identifies the query: its own, or the digest of its function."""
        return self._fingerprint(self.sql or self.text)

    @property
    def fingerprints(self) -> frozenset[str]:
        """Returns the fingerprint, and its former value over a function's whole module."""
        whole: str | None = getattr(self.function, "whole", None)
        former = [] if whole is None else [self._fingerprint(whole)]
        return frozenset({self.fingerprint, *former})

    def _fingerprint(self, query: str) -> str:
        expected = (str(each) for each in self.expectations)
        identity = "\n".join((query, *self.keys, *self.inputs, *expected))
        return hashlib.sha256(identity.encode()).hexdigest()[:16]


View = MirrorView | EventsView
AnyView = MirrorView | EventsView | DerivedView


def view_of(physical_name: str) -> str:
    """Returns the view of a version from its physical name, such as `orders.v2`."""
    return physical_name.partition(".")[0]


def maintained_stores(view: AnyView) -> frozenset[Store]:
    """Returns the stores of a view.

    A derived view always has a table: SQL reads it, and further derived views read it.
    """
    return view.to | {Store.TABLE} if isinstance(view, DerivedView) else view.to


def tables_of(view: View) -> tuple[TableName, ...]:
    """Returns the tables of a view: its own, or those of the event log."""
    return (view.table,) if isinstance(view, MirrorView) else EVENT_TABLES
