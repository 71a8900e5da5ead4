"""Impact: how views would react to changes of their tables, before they happen.

The views decide as they always do, on a recorded change or on a migration's effect, and everything
is rolled back. The report therefore states actual decisions, not predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.types.json import Jsonb

from cdc.column_rule import NOTHING_HIDDEN
from cdc.schema_change import history as histories
from cdc.schema_change.difference import changes_of
from projections.common.fault import Fault
from projections.definition.views import MirrorView
from projections.errors import PlanError
from projections.planning import view_schemas
from projections.planning.binder import Binder
from projections.planning.binding import decision_lock
from projections.planning.job_spec import PausedView
from projections.planning.schema_policy import SchemaOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    from cdc.column_rule import Hiding
    from cdc.schema_change.shape import TableHistory
    from cdc.schema_change.trial import MigratedTable
    from cdc.table import TableName
    from projections.definition.views import View
    from projections.planning.view_plan import ViewPlan
    from projections.planning.view_schemas import ViewShape

    Connection = psycopg.Connection[Any]

_NOTE: Final = """
INSERT INTO headwater.schema_changes (table_oid, lsn, command, rewritten, shape)
VALUES (%s, pg_current_wal_insert_lsn(), 'MIGRATION', %s, %s)
"""
# A comparison of tables leaves its settings behind in a transaction that continues.
_SETTINGS: Final = (
    "search_path",
    "timezone",
    "datestyle",
    "intervalstyle",
    "extra_float_digits",
    "bytea_output",
    "lock_timeout",
)


_HELD: Final = "SELECT array_agg(current_setting(name)) FROM unnest(%s::text[]) AS name"
_RESTORED: Final = """
SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) AS held (name, value)
"""


@dataclass(frozen=True, slots=True)
class ViewImpact:
    """The effect on a view.

    Attributes:
        view: Its name; the physical name for a later version.
        changes: The changes of its table, in words; empty if there is only an error.
        outcome: What the view does.
        reads: Whether the whole table must be read again.
        fault: Why it is paused; None if it is not.
    """

    view: str
    changes: tuple[str, ...]
    outcome: SchemaOutcome
    reads: bool = False
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class SchemaImpact:
    """The effects on views.

    Attributes:
        views: The affected views.
        plans: The plans of all views that would continue.
    """

    views: tuple[ViewImpact, ...]
    plans: tuple[ViewPlan, ...]


def predict(
    connection: Connection,
    source: str,
    views: Sequence[View],
    migrated: Mapping[TableName, MigratedTable] | None = None,
    *,
    hiding: Hiding = NOTHING_HIDDEN,
) -> SchemaImpact:
    """Returns how views would react to changes of their tables; stores nothing.

    Args:
        connection: To the source, in autocommit.
        source: Its name.
        views: The views.
        migrated: Effect of a migration on tables; None for the changes so far, including those that
            the job has not seen.
        hiding: Rules for excluded, hashed and masked columns of the source.
    """
    if not view_schemas.ready(connection):
        return SchemaImpact((), ())
    tables = [view.table for view in views if isinstance(view, MirrorView)]
    with (
        decision_lock(connection, source, decides=True),
        connection.transaction(force_rollback=True),
    ):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if migrated is None:
            # not the defaults: those of the role or the database are not the session's
            held = connection.execute(_HELD, ([*_SETTINGS],)).fetchone()
            histories.observe(connection, tables)
            connection.execute(_RESTORED, ([*_SETTINGS], held[0] if held else []))
        for table in (migrated or {}).values():
            shape = None if table.shape is None else Jsonb(dict(table.shape))
            connection.execute(_NOTE, (table.oid, table.rewritten, shape))
        predicted = {name: table.schema for name, table in (migrated or {}).items()}
        known = histories.of_tables(connection, tables, hiding.rules, hiding.salt)
        binder = Binder(
            connection, source, list(views), decides=True, hiding=hiding, predicted=predicted
        )
        before = view_schemas.read(connection, source)
        bound = [_bound(binder, view) for view in views]
        after, outcomes = view_schemas.read(connection, source), view_schemas.outcomes(connection)
    told = (
        _impact(view, each, before.get(view.name), after.get(view.name), known, outcomes)
        for view, each in zip(views, bound, strict=True)
    )
    plans = (each for each in bound if not isinstance(each, Fault | PausedView))
    return SchemaImpact(tuple(filter(None, told)), tuple(plans))


def _bound(binder: Binder, view: View) -> ViewPlan | PausedView | Fault:
    try:
        return binder.bind(view)
    except PlanError as error:
        return Fault.of(error)


def _impact(  # noqa: PLR0913, PLR0917  # a view before and after
    view: View,
    bound: ViewPlan | PausedView | Fault,
    before: ViewShape | None,
    after: ViewShape | None,
    known: Mapping[TableName, TableHistory],
    outcomes: Mapping[int, Mapping[str, str]],
) -> ViewImpact | None:
    if isinstance(bound, Fault):
        return ViewImpact(view.name, (), SchemaOutcome.PAUSED, fault=bound)
    if isinstance(bound, PausedView) and before is not None and before.paused is not None:
        return ViewImpact(view.name, (), SchemaOutcome.PAUSED, fault=bound.fault)
    if before is None or after is None or view.table not in known:
        return None
    steps = changes_of(known[view.table], before.change_id)
    said = [str(change) for _, changes in steps for change in changes]
    found = [outcomes.get(version.id, {}).get(view.name) for version, _ in steps]
    if not (decided := list(filter(None, found))):
        return None
    fault = bound.fault if isinstance(bound, PausedView) else None
    reads = after.read_id != before.read_id
    return ViewImpact(view.name, tuple(said), SchemaOutcome(decided[-1]), reads, fault)
