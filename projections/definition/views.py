"""What a user declares: sources and the views derived from them, as values."""

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
"""An event is in one of the two: compaction moves it from the first to the second."""


class Store(StrEnum):
    """Where a view can live."""

    TABLE = "table"  # warehouse: a Delta table
    SEARCH = "search"  # OpenSearch
    CACHE = "cache"  # Valkey or Redis


class SchemaPolicy(StrEnum):
    """What a view does when the columns or the key of its table change.

    Where nothing is declared, a view evolves with every change that loses nothing, and is paused by
    one that does: a column retyped to what cannot hold its values, a key changed. Whatever is
    declared, a renamed or dropped table pauses its views.
    """

    EVOLVE = "evolve"  # follows every change that a view can follow
    PAUSE = "pause"  # stops in all its stores until `headwater view resume`
    QUARANTINE = "quarantine"  # keeps its columns; records of another shape wait, key by key
    IGNORE = "ignore"  # keeps its columns; new ones stay out, dropped ones get no new values


@dataclass(frozen=True, slots=True)
class TableRef:
    """A captured table, as a view names it, and what its source says of changes of it."""

    source: str
    table: TableName
    on_schema_change: SchemaPolicy | None = None


@dataclass(frozen=True, slots=True)
class EventsRef:
    """Events of some types in a source's event store, as a view names them.

    Attributes:
        source: Name of the source.
        types: Names of the types.
        registry: Where they are declared.
        versions: By type, which version of it the view is kept by; None for the declared one.
        columns: Columns that the types have in those versions; None for the declared ones.
    """

    source: str
    types: tuple[str, ...]
    registry: EventTypes
    versions: Mapping[str, int] | None = None
    columns: tuple[Column, ...] | None = None

    def as_declared(self) -> EventsRef:
        """Returns it with the versions and columns that its types have now, unless it has some.

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

    A table is reached as an attribute by its name (`shop.orders`) or as an item by its full name
    (`shop["sales.orders"]`), which works for every name.

    Attributes:
        name: Its name.
        tables: What is captured; the event store's tables included, where it has one.
        eventstore: Whether it has an event store, whose outbox is captured too.
        on_schema_change: What its views do when their table changes, unless they say otherwise.
        columns: Tables of which some columns do not leave it, or not as they are.
        insert_only: Tables on which Postgres may refuse UPDATE and DELETE while they are captured.
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
        """Names events of the source's event store, for `view.events`.

        Args:
            types: Declared classes of events, or the names of their types.
            registry: Where they are declared.

        Raises:
            DeclarationError: The source has no event store, or a class is no declared event.
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
        found = [table for table in self.tables if table.name == name]
        if name.startswith("__") or len(found) != 1:
            raise AttributeError(f"source {self.name} has not exactly one table named {name}")
        return TableRef(self.name, found[0], self.on_schema_change)


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """What makes a new state of a history; names as in its table.

    Attributes:
        tracked: Columns whose change begins a new state; None for all.
        untracked: Columns whose change does not; an alternative to `tracked`.
        sequence_by: Column that says since when a row is valid; None for the commit.
    """

    tracked: tuple[str, ...] | None = None
    untracked: tuple[str, ...] = ()
    sequence_by: str | None = None


class ChangeTime(StrEnum):
    """A time of the change that a row is from, beside those that the row has itself.

    A row of a mirror has those of its last change, and that of its first. An event happens once: it
    has those of when it first came, whatever moves it to another table later.
    """

    COMMIT = "commit"
    """When it was committed at the source; what was only read from its table has none."""

    FIRST_COMMIT = "first_commit"
    """When a mirror's row was inserted: the commit of that, whatever became of it since. A row that
    was there before anybody looked has none, and a key that is inserted anew is another row."""

    BROKER = "broker"
    """When its record was sent."""

    PROCESSING = "processing"
    """When it was written into the view; a view that is made anew has another."""


@dataclass(frozen=True, slots=True)
class MirrorView:
    """The latest row of every key of one table (SCD 1), or all that it ever had (SCD 2).

    Attributes:
        name: The view's name in every store.
        source: Name of its source.
        table: The table it mirrors.
        keys: Columns that identify a row; empty means the table's own primary key.
        to: Stores it lives in.
        on_schema_change: What it does when its table changes; None as `SchemaPolicy` says.
        cache: How it is laid out in the cache, and what is kept beside its rows there.
        search: How its fields are indexed for search.
        history: Of a history, what makes its states; None of a mirror of the latest rows.
        expectations: What its rows should be like.
        left_out: Columns of its table that it does not have.
        times: Columns of its table in the warehouse that say when its rows changed, and which of
            the times of a change they are.
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
        source: Name of its source.
        events: Which events.
        to: Stores it lives in.
        search: How its fields are indexed for search.
        expectations: What its rows should be like.
        times: Columns of its table in the warehouse that say when its events came, and which of
            the times of a change they are.
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
        to: The stores that keep it.
        inputs: Views that it reads.
        sql: Its Spark SQL; None if it is a function.
        function: Takes a DataFrame for each of `inputs`, in their order, and returns one.
        text: For a function, its digest, see `view_function.ViewFunction.text`; for a pattern and
            for standing queries, their full declaration.
        search: How its fields are indexed for search.
        cache: How it is laid out in the cache.
        expectations: Its expectations.
        pattern: The pattern that is matched against its one input; None if it is another query.
        percolation: Which queries of its second input are matched against documents of its first;
            None if it is another query.
        limit: How long a row of it can still change, or how far apart the rows that form one can
            be, in words; empty if that is unlimited.
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
        """By input, columns that identify its rows, where that is known."""
        if self.percolation is None:
            return {}
        how = self.percolation
        return dict(zip(self.inputs, (how.document_keys, how.query_keys), strict=True))

    @property
    def along(self) -> Extent | None:
        """Its extent, where its table has every row that the query gives: one tells of the next."""
        return None if any(each.withholds for each in self.expectations) else self.extent

    @property
    def fingerprint(self) -> str:
        """What tells its query from another: its text, or what tells its function."""
        return self._fingerprint(self.sql or self.text)

    @property
    def fingerprints(self) -> frozenset[str]:
        """That, and what it was to earlier releases: of a function, they had all of its module."""
        whole: str | None = getattr(self.function, "whole", None)
        former = [] if whole is None else [self._fingerprint(whole)]
        return frozenset({self.fingerprint, *former})

    def _fingerprint(self, query: str) -> str:
        expected = (str(each) for each in self.expectations)
        said = "\n".join((query, *self.keys, *self.inputs, *expected))
        return hashlib.sha256(said.encode()).hexdigest()[:16]


View = MirrorView | EventsView
AnyView = MirrorView | EventsView | DerivedView


def kept_in(view: AnyView) -> frozenset[Store]:
    """Returns the stores that a view is kept in.

    A derived view always has a table: SQL reads it, and what is made from it does.
    """
    return view.to | {Store.TABLE} if isinstance(view, DerivedView) else view.to


def tables_of(view: View) -> tuple[TableName, ...]:
    """Returns the tables of a view: its own, or those of the event log."""
    return (view.table,) if isinstance(view, MirrorView) else EVENT_TABLES
