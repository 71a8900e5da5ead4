"""ViewPlan: a declared view bound to the present table of the source."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cdc.table import ColumnKind, TableSchema
from cdc.topic_names import TopicNames
from projections.definition.cache_options import DEFAULT_OPTIONS, CacheOptions
from projections.definition.column_names import refuse_reserved, refuse_untabular
from projections.definition.columns import (
    ROW_ID_COLUMN,
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
    view_of,
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
        types: The event types of the views.
        deletes: Whether a deleted row is a dropped event; otherwise it was only moved.
    """

    types: frozenset[str]
    deletes: bool

    def skips(self, operation: str, kind: str | None) -> bool:
        """Returns whether a record is of no event of the views.

        Args:
            operation: The record's operation.
            kind: The event's type; None if the record has none, which is checked elsewhere.
        """
        if operation == "u" or (operation == "d" and not self.deletes):
            return True
        return kind is not None and kind not in self.types


@dataclass(frozen=True, slots=True)
class EventsPlan:
    """The part of a plan specific to views of events.

    Attributes:
        form: Converts events to rows.
        tables: Schema of each table of events, by its topic.
    """

    form: EventForm
    tables: Mapping[str, TableSchema]


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """The part of a plan specific to histories.

    Attributes:
        tracked: Columns whose change begins a new state.
        sequence_by: Column with the time from which a row is valid; None for the commit time. It
            may be an excluded column.
    """

    tracked: tuple[str, ...]
    sequence_by: str | None = None


@dataclass(frozen=True, slots=True)
class Nested:
    """The types within a nested column.

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
    """A bound view, with everything that a job needs to maintain it.

    Attributes:
        name: The view's name in every store.
        source: Name of its source, which prefixes its topics.
        topic: Kafka topic of its table.
        schema: The mirrored table with the view's columns; for a view of events, its rows.
        keys: Columns that identify a row; `(_row_id,)` for a table without a key, whose rows are
            only ever inserted.
        to: Stores of the view.
        events: For a view of events, its specific part; None for a mirror.
        shapes: By topic, how the columns follow from earlier ones of the table; without it, every
            record must have exactly the columns of the plan.
        former: Topics of the table's former names.
        absent: Columns that only the view still has.
        renamed: Present names in the table of its columns, if different.
        left_to_read: Records with versions below this one are ignored: a read of the whole table
            replaces them.
        kept_since: Rows stored with versions below this one may lack values of the table, so they
            cannot complete a change that omits unchanged values.
        cache: How the cache stores it.
        search: How search indexes its fields.
        history: For a history, its specific part; None for other views.
        feeds: Whether other views are derived from its table.
        expectations: Its expectations.
        nested: The types within its nested columns.
        left_out: Columns of its table that it excludes.
        times: Columns with the times of changes or events; see `ChangeTime`.
        active: Whether it is the active version.
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
    active: bool = True

    @property
    def view(self) -> str:
        """Returns the view's own name: `name` is the physical name of this version."""
        return view_of(self.name)

    @property
    def topics(self) -> Mapping[str, TableSchema]:
        """Returns the table of each topic that the view reads, with the columns that it reads."""
        if self.events is not None:
            return self.events.tables
        return dict.fromkeys((self.topic, *self.former), self.read)

    @property
    def read(self) -> TableSchema:
        """Returns its table with the columns to read: its own, and that of `sequence_by`."""
        told = tuple(column for column in self.left_out if column.name not in self.unread)
        if not told:
            return self.schema
        return TableSchema(self.schema.table, (*self.schema.columns, *told), self.schema.key)

    @property
    def unread(self) -> frozenset[str]:
        """Returns the names of the columns in records that it does not read."""
        by = None if self.history is None else self.history.sequence_by
        return frozenset(column.name for column in self.left_out if column.name != by)

    @property
    def behind(self) -> bool:
        """Returns whether its table has columns that it does not follow; such rows wait."""
        return any(not shapes.complete for shapes in self.shapes.values())

    @property
    def older_names(self) -> dict[str, tuple[str, ...]]:
        """Returns former names of its columns, the newest first."""
        shapes = self.shapes.get(self.topic)
        return {} if shapes is None else shapes.older_names

    def inspection(self) -> Inspection:
        """Begins an inspection of its rows."""
        return Inspection(self.name, self.expectations, types_of(self.schema))

    @property
    def times_of_delivery(self) -> frozenset[str]:
        """Returns columns that depend on how a row was delivered, not on the row's change.

        A view filled from the archive knows the commit of a row's insert even if the view itself
        began later, with a snapshot of the table.
        """
        return frozenset(name for name, which in self.times if which is not ChangeTime.COMMIT)

    @property
    def inserted_at(self) -> tuple[str, ...]:
        """Returns columns with the commit time of the insert, unless that is the only change."""
        if self.append_only:
            return ()
        return tuple(name for name, which in self.times if which is ChangeTime.FIRST_COMMIT)

    def field_names(self) -> Iterator[str]:
        """Yields the names of its columns, and of the parts of structs within them."""
        yield from _field_names(self.schema.columns, self.nested)

    def in_store(self, store: Store) -> ViewPlan:
        """Returns the plan for one store: only tables have the times of changes."""
        return self if store is Store.TABLE else replace(self, times=())

    @property
    def append_only(self) -> bool:
        """Returns whether it is a view of a table without a key."""
        return self.keys == (ROW_ID_COLUMN,)


def facts_of(plans: Iterable[ViewPlan], topic: str) -> Facts | None:
    """Returns how the records of a topic are read for views of events; None for mirrors."""
    wanted = [plan.events.form.names for plan in plans if plan.events is not None]
    if not wanted:
        return None
    # only the archive's table loses events permanently
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
        histories: Their known schema histories.
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
    _refuse_taken(view, schema)
    _check_columns(view, schema)
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


def _field_names(columns: Iterable[Column], nested: Mapping[str, Nested]) -> Iterator[str]:
    for column in columns:
        yield column.name
        if (inner := nested.get(column.name)) is not None:
            yield from _field_names(inner.columns, inner.inner)


def _check_columns(view: View, schema: TableSchema, *, history: bool = False) -> None:
    refuse_reserved(view.name, schema.by_name)
    if Store.TABLE in view.to:
        refuse_untabular(view.name, [*schema.by_name, *dict(view.times)], history=history)
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
    _refuse_taken(view, table)
    _check_columns(view, schema, history=view.history is not None)
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
    """Returns the earlier columns of each table whose newest recorded schema is the present one."""
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
