"""Sources, mirrors and views of events as a user declares them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from cdc.table import TableName
from projections.definition.arguments import declaring
from projections.definition.cache_options import DEFAULT_OPTIONS, CacheOptions
from projections.definition.expectations.expectation import Expectation, OnFail, deletes, expected
from projections.definition.registry import checked, collected
from projections.definition.search_options import DERIVED, SearchOptions
from projections.definition.views import (
    EVENT_TABLES,
    OUTBOX,
    ChangeTime,
    EventsRef,
    EventsView,
    HistoryColumns,
    MirrorView,
    SchemaPolicy,
    Source,
    Store,
    TableRef,
)
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cdc.column_rule import ColumnRules

_HISTORY: Final = 2
_V = TypeVar("_V", MirrorView, EventsView)


@declaring
def source(  # noqa: PLR0913  # the options of a source
    name: str,
    tables: Sequence[str] = (),
    *,
    eventstore: bool = False,
    on_schema_change: str | None = None,
    columns: Mapping[str, ColumnRules] | None = None,
    insert_only: Sequence[str] = (),
    escaped_topics: Sequence[str] = (),
) -> Source:
    """Declares a source.

    Args:
        name: Prefix of its topics; lower case, digits and underscores.
        tables: Tables to capture, as `schema.table` or `table`.
        eventstore: Whether the event store lives in this database (`headwater db upgrade`): its
            events are captured for `view.events`, and its outbox is sent to the topics
            `<name>.outbox.<topic>`.
        on_schema_change: How its views react when their table changes: `evolve`, `pause`,
            `quarantine` or `ignore`; for the default see `SchemaPolicy`.
        columns: Rules for columns that do not leave the database, or leave it only hashed or
            masked: `{"public.people": ColumnRules(exclude=["ssn"], hash=["email"])}`. With
            `ColumnRules(only=[...])` a column that is added later stays out until it is listed.
        insert_only: Tables without a key that are captured all the same: Postgres refuses UPDATE
            and DELETE on them while they are captured.
        escaped_topics: Tables whose topics Debezium would name as another table's, for example
            `заказ` beside `товар`: their names are escaped in their topics. The topic of a table
            that is captured already cannot be changed by this.

    Raises:
        DeclarationError: The name cannot be used, is taken, or a table is listed twice.
    """
    names = tuple(TableName.parse(table) for table in tables)
    if eventstore:
        names += EVENT_TABLES
    if not names:
        raise DeclarationError(f"source {name} has no tables")
    if len(set(names)) < len(names):
        raise DeclarationError(f"source {name} lists a table twice")
    if eventstore and OUTBOX in names:
        raise DeclarationError(
            f"source {name} lists {OUTBOX}",
            hint=("use eventstore=True, which sends its messages; the table has no rows to mirror"),
        )
    policy = _policy(f"source {name}", on_schema_change)
    rules = {TableName.parse(table): rule for table, rule in (columns or {}).items()}
    keyless = frozenset(map(TableName.parse, insert_only))
    escaped = frozenset(map(TableName.parse, escaped_topics))
    for option, named in (
        ("rules", rules.keys()),
        ("insert_only", keyless),
        ("escaped_topics", escaped),
    ):
        if strange := sorted(map(str, named - set(names))):
            raise DeclarationError(
                f"source {name} has {option} for a table that it does not capture",
                detail=strange[0],
            )
    declared = Source(checked(name, "source"), names, eventstore, policy, rules, keyless, escaped)
    declarations = collected()
    if name in declarations.sources:
        raise DeclarationError(f"two sources have the name {name}")
    declarations.sources[name] = declared
    return declared


@declaring
def mirror(  # noqa: PLR0913  # the options of Spark's pipelines
    name: str,
    table: TableRef,
    keys: Sequence[str] = (),
    to: Iterable[str] | None = None,
    on_schema_change: str | None = None,
    *,
    cache: CacheOptions | None = None,
    search: SearchOptions | None = None,
    scd: int = 1,
    sequence_by: str | None = None,
    except_column_list: Sequence[str] = (),
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] = (),
    apply_as_deletes: str | None = None,
    expect: Iterable[Expectation] = (),
    times: Mapping[str, str] | None = None,
) -> MirrorView:
    """Declares a mirror: the latest row of every key, or with `scd=2` every row that it ever had.

    Args:
        name: The view's name in every store; lower case, digits and underscores.
        table: A captured table, from a source.
        keys: Columns that identify a row; default: the primary key.
        to: Any of `table`, `search`, `cache`; default: all of them. A history lives in `table`.
        on_schema_change: `evolve`, `pause`, `quarantine` or `ignore`; default: its source's, see
            `SchemaPolicy`.
        cache: How it is laid out in the cache, with lookups, counters and leaderboards.
        search: How its fields are indexed for search; default: from the columns' types.
        scd: 1 for the latest rows, 2 for a history, whose rows have `valid_from` and `valid_to`,
            `recorded_from` and `recorded_to`.
        sequence_by: For a history, the column with the time since which a row is valid, such as the
            time of an event; default: the commit.
        except_column_list: Columns of its table that it leaves out; changes of these columns do not
            affect it. Key columns are not allowed.
        track_history_column_list: Columns whose change begins a new state of a history; default:
            all. A change of another column updates the state valid at that time.
        track_history_except_column_list: The alternative to `track_history_column_list`: columns
            whose change begins no new state.
        apply_as_deletes: A condition on a row; where it is true, the row counts as deleted. For
            soft deletes: `deleted_at IS NOT NULL`.
        expect: Conditions that its rows should meet, and the treatment of rows that do not.
        times: Columns with a time of each row's last change, in the table of a mirror: `commit`,
            `broker` or `processing`; or of its first, `first_commit`. See `ChangeTime`.

    Raises:
        DeclarationError: A name is invalid or in use, a store, policy or time is unknown, or the
            options of a history do not fit.
    """
    wanted = to if to is not None else [Store.TABLE] if scd == _HISTORY else list(Store)
    stores = stores_of(name, wanted)
    tracked = _names(track_history_column_list), tuple(track_history_except_column_list)
    columns, marked = HistoryColumns(*tracked, sequence_by), _deletes(apply_as_deletes)
    return _declare(
        MirrorView(
            checked(name, "view"),
            table.source,
            table.table,
            tuple(keys),
            stores,
            _policy(f"view {name}", on_schema_change) or table.on_schema_change,
            _cached(name, stores, cache),
            searched(name, stores, search),
            _history(name, scd, stores, columns),
            expected(name, [*marked, *expect]),
            tuple(except_column_list),
            _times(name, stores, times or {}, history=scd == _HISTORY),
        )
    )


def _cached(name: str, stores: frozenset[Store], cache: CacheOptions | None) -> CacheOptions:
    if cache is not None and Store.CACHE not in stores:
        raise DeclarationError(f"view {name} has cache options, but is not in the cache")
    return cache or DEFAULT_OPTIONS


def _names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _deletes(condition: str | None) -> list[Expectation]:
    return [] if condition is None else [deletes(condition)]


def _times(
    name: str, stores: frozenset[Store], times: Mapping[str, str], *, history: bool = False
) -> tuple[tuple[str, ChangeTime], ...]:
    if times and (Store.TABLE not in stores or history):
        raise DeclarationError(
            f"view {name}: times needs a mirror or a view of events with a table",
            hint=(
                "a history has recorded_from and recorded_to; search and cache contain only rows"
            ),
        )
    columns = []
    for column, which in times.items():
        if which not in set(ChangeTime):
            raise DeclarationError(
                f"view {name}: unknown time {which}",
                hint=", ".join(map(str, ChangeTime)),
            )
        columns.append((checked(column, "column"), ChangeTime(which)))
    return tuple(columns)


def _history(
    name: str, scd: int, stores: frozenset[Store], columns: HistoryColumns
) -> HistoryColumns | None:
    if scd not in {1, _HISTORY}:
        raise DeclarationError(
            f"view {name}: scd must be 1 or 2",
            hint=("1 keeps the latest row of each key, 2 its history"),
        )
    if scd == 1:
        if columns != HistoryColumns():
            raise DeclarationError(
                f"view {name} has options of a history, but is a mirror",
                detail="sequence_by, track_history_*",
                hint="scd=2",
            )
        return None
    if stores != {Store.TABLE}:
        raise DeclarationError(
            f"view {name}: a history can be only in the warehouse",
            detail=", ".join(sorted(stores - {Store.TABLE})) or None,
            hint='omit `to`, or mirror the latest rows there: scd=1, to=["search", "cache"]',
        )
    if columns.tracked is not None and columns.untracked:
        raise DeclarationError(
            f"view {name} has two lists of tracked columns",
            hint="use track_history_column_list or track_history_except_column_list",
        )
    return columns


@declaring
def events(  # noqa: PLR0913  # the options of `mirror`
    name: str,
    events: EventsRef,
    to: Iterable[str] = (Store.TABLE, Store.SEARCH, Store.CACHE),
    *,
    search: SearchOptions | None = None,
    expect: Iterable[Expectation] = (),
    times: Mapping[str, str] | None = None,
) -> EventsView:
    """Declares a view of events: one row for each, in each of the given stores.

    A row has the columns that every event has (`projections.definition.event_rows.ENVELOPE`) and
    one for each field of the event's class, in the latest version. Rows are never updated:
    compaction leaves them, and only an event that is permanently dropped from the archive leaves
    the view. Personal fields are NULL. An event that this program cannot read is quarantined.

    Args:
        name: The view's name in every store; lower case, digits and underscores.
        events: Which events, from a source: `shop.events(OrderPlaced)`.
        to: Any of `table`, `search`, `cache`.
        search: How its fields are indexed for search; default: from their types.
        expect: Conditions that its rows should meet, and the treatment of rows that do not.
        times: Columns with a time at which each event came, in the table: `commit`, `broker` or
            `processing`; see `ChangeTime`.

    Raises:
        DeclarationError: The name is invalid or in use, or a store or time is unknown.
    """
    stores = stores_of(name, to)
    options = searched(name, stores, search)
    expectations = expected(name, expect)
    if any(each.on_fail is OnFail.FAIL for each in expectations):
        # events are not read a second time, so the view could not continue without a gap
        raise DeclarationError(
            f"view {name}: a view of events cannot pause for a row",
            hint='use on_fail="quarantine": only the event is quarantined',
        )
    named = checked(name, "view")
    came = _times(name, stores, times or {})
    if any(which is ChangeTime.FIRST_COMMIT for _, which in came):
        raise DeclarationError(
            f"view {name}: an event has only one commit", hint='times={"...": "commit"}'
        )
    return _declare(EventsView(named, events.source, events, stores, options, expectations, came))


def _declare(declared: _V) -> _V:
    declarations = collected()
    declarations.refuse_taken(declared.name)
    declarations.views[declared.name] = declared
    return declared


def stores_of(name: str, to: Iterable[str]) -> frozenset[Store]:
    """Returns the stores that a view is declared for.

    Raises:
        DeclarationError: One is not known, or there is none.
    """
    try:
        stores = frozenset(Store(store) for store in to)
    except ValueError as error:
        hint = "stores are " + ", ".join(Store)
        raise DeclarationError(f"view {name}: {error}", hint=hint) from None
    if not stores:
        raise DeclarationError(f"view {name} has no store")
    return stores


def searched(name: str, stores: frozenset[Store], search: SearchOptions | None) -> SearchOptions:
    """Returns how a view is searched.

    Raises:
        DeclarationError: There are options, and the view is not in search.
    """
    if search is None:
        return DERIVED
    if Store.SEARCH not in stores:
        raise DeclarationError(
            f"view {name} has search options, but is not in search",
            hint='to=["search", ...]',
        )
    return search


def _policy(subject: str, word: str | None) -> SchemaPolicy | None:
    if word is None:
        return None
    try:
        return SchemaPolicy(word)
    except ValueError as error:
        hint = "on_schema_change is " + ", ".join(SchemaPolicy)
        raise DeclarationError(f"{subject}: {error}", hint=hint) from None
