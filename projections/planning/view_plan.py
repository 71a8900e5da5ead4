"""ViewPlan: a declared view bound to the table that the source really has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cdc.table import ColumnKind, TableSchema
from cdc.topic_names import TopicNames
from projections.definition.cache_options import DEFAULT_OPTIONS, CacheOptions
from projections.definition.columns import (
    BEGUN_COLUMN,
    DELETED_FIELD,
    HISTORY_BOOKKEEPING,
    HISTORY_COLUMNS,
    ROW_ID_COLUMN,
    VERSION_COLUMN,
)
from projections.definition.event_rows import KEY, STORED, EventForm
from projections.definition.expectations.checker import Inspection, types_of
from projections.definition.expectations.expectation import OnFail
from projections.definition.search_options import DERIVED, refuse_unsearchable
from projections.definition.views import (
    ARCHIVED_EVENTS,
    EVENT_TABLES,
    EVENTS,
    ChangeTime,
    EventsView,
    Store,
)
from projections.errors import PlanError
from projections.planning.row_upcaster import TableShapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cdc.schema_change.shape import TableHistory
    from cdc.table import Column, TableName
    from projections.definition.expectations.expectation import Expectation
    from projections.definition.search_options import SearchOptions
    from projections.definition.views import HistoryColumns, MirrorView, View


_TIMES = (ColumnKind.TIMESTAMP, ColumnKind.TIMESTAMPTZ)


@dataclass(frozen=True, slots=True)
class Facts:
    """How the records of a table of events are read.

    Attributes:
        types: Which events matter.
        deletes: Whether a deleted row is a dropped event; else it has only been moved.
    """

    types: frozenset[str]
    deletes: bool


@dataclass(frozen=True, slots=True)
class EventsPlan:
    """What a view of events needs beside what every view does.

    Attributes:
        form: Makes its rows.
        tables: Schema of each table of events, by its topic.
    """

    form: EventForm
    tables: Mapping[str, TableSchema]


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """What a history needs beside what every view does.

    Attributes:
        tracked: Columns whose change begins a new state.
        sequence_by: Column that says since when a row is valid; None for the commit. It may be
            one that is left out.
    """

    tracked: tuple[str, ...]
    sequence_by: str | None = None


@dataclass(frozen=True, slots=True)
class Nested:
    """What the values of a nested column are made of.

    Attributes:
        many: Whether they are lists.
        columns: Parts of a struct, or of each struct in the list.
        inner: Types of parts that are nested themselves, by name.
        value: For a list of plain values, their type; with neither, it is a map.
    """

    many: bool
    columns: tuple[Column, ...] = ()
    inner: Mapping[str, Nested] = field(default_factory=dict)
    value: Column | None = None


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """A view with all a job needs to keep it.

    Attributes:
        name: The view's name in every store.
        source: Name of its source, which prefixes its topics.
        topic: Kafka topic of its table.
        schema: The mirrored table with those of its columns that the view has; of a view of
            events, its rows.
        keys: Columns that identify a row; `(_row_id,)` for a table without a key, whose rows are
            only ever inserted.
        to: Stores it lives in.
        events: Of a view of events, what it needs as such; None of a mirror.
        shapes: By topic, how its table came by its columns; without it, every record must have
            exactly the columns of the plan.
        former: Topics that its table had under other names.
        absent: Columns that only the view still has.
        renamed: What its columns are called in the table by now, where that is another name.
        left_to_read: Records of versions before this one are left to a read of the whole table.
        kept_since: Rows stored with versions before this one lack something of what their table
            has: they complete no change that keeps values.
        cache: How it is laid out in the cache.
        search: How its fields are indexed for search.
        history: Of a history, what makes its states; None of all other views.
        feeds: Whether other views are made from its table.
        expectations: What its rows should be like.
        nested: What those of its columns are made of that are no plain values.
        left_out: Columns of its table that it does not have.
        times: Columns that say when its rows changed, or its events came; see `ChangeTime`.
        shown: Whether readers see it, by the name of its view; else it is kept beside that.
    """

    name: str
    source: str
    topic: str
    schema: TableSchema
    keys: tuple[str, ...]
    to: frozenset[Store]
    events: EventsPlan | None = None
    shapes: Mapping[str, TableShapes] = field(default_factory=dict)
    former: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    left_to_read: int = 0
    kept_since: int = 0
    cache: CacheOptions = DEFAULT_OPTIONS
    search: SearchOptions = DERIVED
    history: HistoryPlan | None = None
    feeds: bool = False
    expectations: tuple[Expectation, ...] = ()
    nested: Mapping[str, Nested] = field(default_factory=dict)
    left_out: tuple[Column, ...] = ()
    times: tuple[tuple[str, ChangeTime], ...] = ()
    shown: bool = True

    @property
    def view(self) -> str:
        """The view that it is a version of: `name` is where that is kept in every store."""
        return self.name.partition(".")[0]

    @property
    def topics(self) -> Mapping[str, TableSchema]:
        """The table behind each topic that the view is made from, with the columns it reads."""
        if self.events is not None:
            return self.events.tables
        return dict.fromkeys((self.topic, *self.former), self.read)

    @property
    def read(self) -> TableSchema:
        """Its table with the columns that are read: its own, and the one that orders a history."""
        told = tuple(column for column in self.left_out if column.name not in self.unread)
        if not told:
            return self.schema
        return TableSchema(self.schema.table, (*self.schema.columns, *told), self.schema.key)

    @property
    def unread(self) -> frozenset[str]:
        """Names of the columns that records have beside those that are read."""
        by = None if self.history is None else self.history.sequence_by
        return frozenset(column.name for column in self.left_out if column.name != by)

    @property
    def behind(self) -> bool:
        """Whether its table has a shape that it does not follow: rows of that shape wait."""
        return any(not shapes.complete for shapes in self.shapes.values())

    @property
    def older_names(self) -> dict[str, tuple[str, ...]]:
        """What its columns were called before, the newest name first."""
        shapes = self.shapes.get(self.topic)
        return {} if shapes is None else shapes.older_names

    def inspection(self) -> Inspection:
        """Begins an inspection of its rows."""
        return Inspection(self.name, self.expectations, types_of(self.schema))

    @property
    def times_of_delivery(self) -> frozenset[str]:
        """Columns that depend on how a row came here, not on what happened to it.

        The commit of its insert is known to a view that is made from the archive also where the
        view itself began later, with a read of the table.
        """
        return frozenset(name for name, which in self.times if which is not ChangeTime.COMMIT)

    @property
    def inserted_at(self) -> tuple[str, ...]:
        """Columns with the commit of a row's insert, where that is not its only change."""
        if self.append_only:
            return ()
        return tuple(name for name, which in self.times if which is ChangeTime.FIRST_COMMIT)

    def field_names(self) -> Iterator[str]:
        """Yields the names of its columns, and of the parts of structs within them."""
        yield from _field_names(self.schema.columns, self.nested)

    def in_store(self, store: Store) -> ViewPlan:
        """Returns it as one store needs it: only tables have the times of changes."""
        return self if store is Store.TABLE else replace(self, times=())

    @property
    def append_only(self) -> bool:
        """True for a view of a table without a key."""
        return self.keys == (ROW_ID_COLUMN,)


def facts_of(plans: Iterable[ViewPlan], topic: str) -> Facts | None:
    """Returns how the records of a topic are read for views of events; None for mirrors."""
    wanted = [plan.events.form.names for plan in plans if plan.events is not None]
    if not wanted:
        return None
    # an event leaves the archive for good only
    return Facts(frozenset().union(*wanted), topic.endswith(str(ARCHIVED_EVENTS)))


def plan_views(
    views: Iterable[View],
    schemas: Mapping[TableName, TableSchema],
    histories: Mapping[TableName, TableHistory] | None = None,
    topics: TopicNames | None = None,
) -> tuple[ViewPlan, ...]:
    """Binds views to tables.

    Args:
        views: Declared views of one source.
        schemas: The captured tables of that source, from its catalog.
        histories: Their schema histories, as far as known.
        topics: Names of the source's topics; default: as Debezium names them.

    Raises:
        PlanError: A table is missing, a key column is missing or is not the table's key, a column's
            name is reserved, or an event type is unknown.
    """
    known = histories or {}
    return tuple(
        _plan_events(view, schemas, known)
        if isinstance(view, EventsView)
        else _plan(view, schemas, known, topics or TopicNames(view.source))
        for view in views
    )


def _plan_events(
    view: EventsView,
    schemas: Mapping[TableName, TableSchema],
    histories: Mapping[TableName, TableHistory],
) -> ViewPlan:
    tables = {}
    for table in EVENT_TABLES:
        found = schemas.get(table)
        if found is None or not set(STORED) <= found.by_name.keys():
            raise PlanError(
                f"view {view.name}: the source has no event store, or an older version",
                detail=f"table {table}",
                hint="headwater db upgrade",
            )
        tables[table.topic(view.source)] = found
    try:
        form = EventForm(view.events.registry, view.events.types, view.events.columns)
    except PlanError as error:
        raise PlanError(
            f"view {view.name}: {error.message}", detail=error.detail, hint=error.hint
        ) from None
    schema = TableSchema(EVENTS, form.columns, (KEY,))
    _refuse_reserved(view.name, schema)
    _refuse_taken(view, schema)
    _check_search(view, schema)
    plan = EventsPlan(form, tables)
    bound = ViewPlan(
        view.name,
        view.source,
        EVENTS.topic(view.source),
        schema,
        (KEY,),
        view.to,
        plan,
        search=view.search,
        expectations=view.expectations,
        absent=form.unmade,
        times=view.times,
    )
    bound.inspection()
    return replace(bound, shapes=_shapes(bound, histories))


def _refuse_reserved(name: str, schema: TableSchema) -> None:
    own = {VERSION_COLUMN, DELETED_FIELD, ROW_ID_COLUMN, BEGUN_COLUMN}
    reserved = own & set(schema.by_name)
    if reserved:
        raise PlanError(f"view {name}: column {min(reserved)} is reserved")


def _field_names(columns: Iterable[Column], nested: Mapping[str, Nested]) -> Iterator[str]:
    for column in columns:
        yield column.name
        if (inner := nested.get(column.name)) is not None:
            yield from _field_names(inner.columns, inner.inner)


def _check_search(view: View, schema: TableSchema) -> None:
    view.search.check(view.name, schema)
    if Store.SEARCH in view.to:
        refuse_unsearchable(view.name, schema.by_name)


def _refuse_taken(view: View, table: TableSchema) -> None:
    if taken := sorted({name for name, _ in view.times} & table.by_name.keys()):
        raise PlanError(
            f"view {view.name}: its rows already have a column {taken[0]}",
            hint="use another name for the time",
        )


def _plan(
    view: MirrorView,
    schemas: Mapping[TableName, TableSchema],
    histories: Mapping[TableName, TableHistory],
    topics: TopicNames,
) -> ViewPlan:
    table = schemas.get(view.table)
    if table is None:
        raise PlanError(f"view {view.name}: source has no table {view.table}")
    schema = _without_left_out(view, table)
    _refuse_reserved(view.name, schema)
    _refuse_taken(view, table)
    _check_search(view, schema)
    if view.keys and set(view.keys) != set(schema.key):
        raise PlanError(
            f"view {view.name}: keys are not the key of {view.table}",
            detail=f"declared {', '.join(view.keys)}; table has {', '.join(schema.key) or 'none'}",
            hint="a mirror uses the primary key (the replica identity) of its table",
        )
    view.cache.check(view.name, schema)
    plan = ViewPlan(
        view.name,
        view.source,
        topics.of(view.table),
        schema,
        schema.key or (ROW_ID_COLUMN,),
        view.to,
        cache=view.cache,
        search=view.search,
        history=None if view.history is None else _history(view.name, view.history, schema, table),
        expectations=view.expectations,
        left_out=tuple(c for c in table.columns if c.name not in schema.by_name),
        times=view.times,
    )
    plan.inspection()
    if plan.append_only and any(each.on_fail is OnFail.FAIL for each in view.expectations):
        raise PlanError(
            f"view {view.name}: a view without a key cannot pause for a row",
            detail=f"{view.table} has no key, so its rows cannot be read again",
            hint='use on_fail="quarantine", or add a primary key to the table',
        )
    return replace(plan, shapes=_shapes(plan, histories))


def _without_left_out(view: MirrorView, table: TableSchema) -> TableSchema:
    out = frozenset(view.left_out)
    if strange := sorted(out - table.by_name.keys()):
        raise PlanError(f"view {view.name}: {table.table} has no column {strange[0]}")
    if key := sorted(out & {*table.key}):
        raise PlanError(
            f"view {view.name}: column {key[0]} is part of the key and cannot be left out"
        )
    columns = tuple(column for column in table.columns if column.name not in out)
    if out and not columns:
        raise PlanError(f"view {view.name}: no column of {table.table} is left")
    return TableSchema(table.table, columns, table.key)


def _history(
    name: str, said: HistoryColumns, schema: TableSchema, table: TableSchema
) -> HistoryPlan:
    if not schema.key:
        raise PlanError(
            f"view {name}: {schema.table} has no key",
            hint="add a primary key to the table: a history needs a key",
        )
    if reserved := sorted({*HISTORY_COLUMNS, *HISTORY_BOOKKEEPING} & schema.by_name.keys()):
        raise PlanError(f"view {name}: column {reserved[0]} is reserved in a history")
    sequence_by = said.sequence_by
    named = {*(said.tracked or ()), *said.untracked}
    if sequence_by is not None:
        named.add(sequence_by)
    if strange := sorted(named - table.by_name.keys()):
        raise PlanError(f"view {name}: {schema.table} has no column {strange[0]}")
    if sequence_by is not None and table.by_name[sequence_by].kind not in _TIMES:
        raise PlanError(
            f"view {name}: column {sequence_by} is not a time",
            detail=table.by_name[sequence_by].type_name,
            hint="sequence_by must be a timestamptz, or a timestamp in UTC",
        )
    wanted = tuple(schema.by_name) if said.tracked is None else said.tracked
    if lacking := sorted({*wanted} - schema.by_name.keys()):
        raise PlanError(f"view {name}: column {lacking[0]} is both tracked and left out")
    return HistoryPlan(tuple(name for name in wanted if name not in said.untracked), sequence_by)


def _shapes(plan: ViewPlan, histories: Mapping[TableName, TableHistory]) -> dict[str, TableShapes]:
    """The shapes of each table whose newest one is that of its schema."""
    found = {}
    for topic, schema in plan.topics.items():
        history = histories.get(schema.table)
        latest = history.latest if history is not None else None
        if history is None or latest is None or latest.shape is None:
            continue
        numbers = {column.name: column.number for column in latest.shape.columns}
        if not schema.by_name.keys() <= numbers.keys():
            raise PlanError(
                f"view {plan.name}: {schema.table} changed during the check",
                hint="retry; headwater source changes lists the recorded changes",
            )
        wanted = {name: numbers[name] for name in schema.by_name}
        past = plan.history is not None
        found[topic] = TableShapes(history, wanted, left_out=plan.unread, past=past)
    return found
