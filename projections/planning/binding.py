"""Binds views to their tables as they are now, and decides what to do after a table has changed.

A view keeps its columns until the effect of a change is decided. The decision stores the new
columns, requests the necessary reads and records the outcome, in one transaction: the first caller
that decides does so for all, and a crash leaves nothing half decided.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdc.column_rule import NOTHING_HIDDEN
from cdc.postgres import catalog
from cdc.schema_change import history as histories
from cdc.schema_change.difference import SchemaChange, changes_of
from projections.definition.views import tables_of
from projections.planning import view_schemas
from projections.planning.binder import Binder
from projections.planning.job_spec import PausedView
from projections.planning.view_plan import plan_views

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    import psycopg

    from cdc.column_rule import Hiding
    from cdc.lsn import Lsn
    from cdc.schema_change.shape import ShapeVersion
    from cdc.table import TableName
    from projections.common.offsets import Offsets
    from projections.definition.views import View
    from projections.planning.view_plan import ViewPlan

    Steps = list[tuple[ShapeVersion, tuple[SchemaChange, ...]]]


@dataclass(frozen=True, slots=True)
class Binding:
    """Bound views.

    Attributes:
        plans: Active views.
        paused: Paused views.
        mark: A value that changes as soon as they must be bound again.
        joining: Views that no query of the job reads yet: the offset after the last record of each
            partition with which they were filled.
    """

    plans: tuple[ViewPlan, ...]
    paused: tuple[PausedView, ...] = ()
    mark: tuple[object, ...] = ()
    joining: Mapping[str, Offsets] = field(default_factory=dict)


def bind(
    connection: psycopg.Connection[Any],
    source: str,
    views: Iterable[View],
    *,
    decides: bool = False,
    hiding: Hiding = NOTHING_HIDDEN,
) -> Binding:
    """Binds the views of a source.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        views: Its declared views.
        decides: Whether to decide on changes of tables and to store the decisions; otherwise
            undecided views keep their columns.
        hiding: Rules for excluded, hashed and masked columns of the source.

    Raises:
        PlanError: A view does not fit its table, and never did.
    """
    views = list(views)
    if not view_schemas.ready(connection):
        tables = {table for view in views for table in tables_of(view)}
        return Binding(plan_views(views, catalog.describe(connection, tables, hiding.rules)))
    with _binder(connection, source, views, decides=decides, hiding=hiding) as binder:
        bound = [binder.bind(view) for view in views]
        # in the same transaction: any later change differs from the mark
        mark = view_schemas.mark(connection, source, [view.name for view in views])
    plans = tuple(each for each in bound if not isinstance(each, PausedView))
    paused = tuple(each for each in bound if isinstance(each, PausedView))
    return Binding(plans, paused, mark)


@dataclass(frozen=True, slots=True)
class NotedChange:
    """A change of a captured table, and its outcome.

    Attributes:
        id: Its number.
        table: The table, by its declared name.
        change: What changed.
        command: Tag of the command; `LOOKED` if only a comparison of the table detected it.
        lsn: Position from which on rows have the new columns.
        seen_after: For a comparison: the change occurred between this position and `lsn`.
        noted_at: When it was recorded.
        outcomes: The outcome for each view.
    """

    id: int
    table: TableName
    change: SchemaChange
    command: str
    lsn: Lsn
    seen_after: Lsn | None
    noted_at: datetime | None
    outcomes: Mapping[str, str]


def noted_changes(
    connection: psycopg.Connection[Any], tables: Iterable[TableName]
) -> list[NotedChange]:
    """Returns all recorded changes of tables, the oldest first."""
    if not view_schemas.ready(connection):
        return []
    outcomes = view_schemas.outcomes(connection)
    found = [
        NotedChange(
            version.id,
            table,
            change,
            version.command,
            version.lsn,
            version.seen_after,
            version.noted_at,
            outcomes.get(version.id, {}),
        )
        for table, known in histories.of_tables(connection, tables).items()
        for version, changes in changes_of(known)
        for change in changes
    ]
    return sorted(found, key=lambda noted: noted.id)


def resume(
    connection: psycopg.Connection[Any],
    source: str,
    view: View,
    *,
    hiding: Hiding = NOTHING_HIDDEN,
) -> ViewPlan:
    """Gives a view the present columns of its table; the table is read again completely.

    Raises:
        ViewPausedError: It has them and is not paused, or cannot continue like this.
        PlanError: It does not fit its table.
    """
    with _binder(connection, source, [view], decides=True, hiding=hiding) as binder:
        return binder.resume(view)


def standing(
    connection: psycopg.Connection[Any],
    source: str,
    view: View,
    *,
    hiding: Hiding = NOTHING_HIDDEN,
) -> ViewPlan:
    """Binds a paused view to the columns with which it was paused.

    Raises:
        PlanError: It was never bound.
    """
    with _binder(connection, source, [view], decides=False, hiding=hiding) as binder:
        return binder.standing(view)


def read_unlogged(
    connection: psycopg.Connection[Any],
    source: str,
    view: View,
    *,
    hiding: Hiding = NOTHING_HIDDEN,
) -> bool:
    """Requests a read of a view's table if rows have values that no record of the log has.

    A change of a table can give all its rows another value at once, without a record for any of
    them. The views of that time then request a read of the table; once that is done, its rows are
    in the log.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        view: A view that was bound.
        hiding: Rules for excluded, hashed and masked columns of the source.

    Returns:
        Whether a read was requested, which the view then waits for.
    """
    with _binder(connection, source, [view], decides=True, hiding=hiding) as binder:
        return binder.read_unlogged(view)


@contextmanager
def _binder(
    connection: psycopg.Connection[Any],
    source: str,
    views: list[View],
    *,
    decides: bool,
    hiding: Hiding,
) -> Iterator[Binder]:
    """Opens a transaction for a binder; one caller at a time decides."""
    with decision_lock(connection, source, decides=decides), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield Binder(connection, source, views, decides=decides, hiding=hiding)


@contextmanager
def decision_lock(
    connection: psycopg.Connection[Any], source: str, *, decides: bool
) -> Iterator[None]:
    """Serialises decisions on views of a source."""
    if not decides:
        yield
        return
    view_schemas.lock(connection, source)
    try:
        yield
    finally:
        view_schemas.unlock(connection, source)
