"""Binder: decides how one view follows its table, given the known schemas of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cdc.position import ChangePosition
from cdc.postgres import catalog, escaped_topics
from cdc.schema_change import history as histories
from cdc.schema_change.difference import ChangeKind, SchemaChange, changes_of
from cdc.snapshot import reads
from projections.common.fault import Fault
from projections.definition.views import MirrorView, SchemaPolicy, tables_of
from projections.errors import PlanError, ViewPausedError
from projections.planning import column_list, view_schemas
from projections.planning.job_spec import PausedView
from projections.planning.row_upcaster import TableShapes
from projections.planning.schema_policy import SchemaOutcome, as_seen, decide
from projections.planning.view_plan import plan_views
from projections.planning.view_schemas import ViewShape

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from cdc.column_rule import Hiding
    from cdc.lsn import Lsn
    from cdc.schema_change.shape import ShapeVersion, TableHistory, TableShape
    from cdc.table import TableName, TableSchema
    from projections.definition.views import View
    from projections.planning.view_plan import ViewPlan

    Steps = list[tuple[ShapeVersion, tuple[SchemaChange, ...]]]


_GONE: Final = "take the view out of the file of views, then headwater up"


_DECLARE: Final = "declare the table by its new name in the file of views, then headwater up"


class Binder:
    """Binds views, all with one snapshot of catalog, history and stored columns.

    Args:
        connection: In a transaction, whose snapshot is used.
        source: Name of the source.
        views: Its views.
        decides: Whether to decide on changes of tables and to store the decisions.
        hiding: Rules for excluded, hashed and masked columns of the source.
        predicted: Tables to use instead of the catalog's; None for a dropped one.
    """

    def __init__(  # noqa: PLR0913  # what it sees, and by what it decides
        self,
        connection: psycopg.Connection[Any],
        source: str,
        views: list[View],
        *,
        decides: bool,
        hiding: Hiding,
        predicted: Mapping[TableName, TableSchema | None] | None = None,
    ) -> None:
        tables = {table for view in views for table in tables_of(view)}
        self._connection = connection
        self._source = source
        self._decides = decides
        self._histories = histories.of_tables(connection, tables, hiding.rules, hiding.salt)
        self._schemas = catalog.describe(connection, tables, hiding.rules)
        for table, schema in (predicted or {}).items():
            self._schemas.pop(table, None)
            if schema is not None:
                self._schemas[schema.table] = schema
        self._stored = view_schemas.read(connection, source)
        self._epoch = view_schemas.epoch(connection, source)
        self._topics = escaped_topics.names(connection, source)

    def bind(self, view: View) -> ViewPlan | PausedView:
        """Binds a view.

        Raises:
            PlanError: The view does not fit its table, and never did.
        """
        known = self._histories.get(view.table)
        if not isinstance(view, MirrorView) or known is None:
            return plan_views([view], self._schemas, self._histories, self._topics)[0]
        stored = self._stored.get(view.name)
        if stored is None:
            stored = self._first(view, known)
        elif stored.paused is None:
            stored = self._followed(view, known, self._listed(view, known, stored))
            stored = self._expected(view, stored)
        elif self._decides and stored.tables[-1] != view.table == _name(known):
            return self.resume(view)  # the view names the table's new name
        if stored.paused is not None:
            topics = tuple(map(self._topics.of, stored.tables))
            return PausedView(view.name, view.to, topics, stored.paused)
        return self._plan(view, known, stored)

    def standing(self, view: View) -> ViewPlan:
        """Binds a paused view to the columns with which it was paused."""
        stored, known = self._stored.get(view.name), self._histories.get(view.table)
        if not isinstance(view, MirrorView) or stored is None or known is None:
            raise PlanError(f"view {view.name} was never bound to its table")
        return self._plan(view, known, stored)

    def resume(self, view: View) -> ViewPlan:
        """Gives a view the present columns of its table; see the function of that name."""
        stored, known = self._stored.get(view.name), self._histories.get(view.table)
        if stored is None or known is None or _up_to_date(stored, known):
            raise ViewPausedError(f"view {view.name} is not paused, and has its table's columns")
        if not isinstance(view, MirrorView) or _name(known) != view.table:
            raise ViewPausedError(
                f"view {view.name} cannot continue with its declaration",
                detail=None if stored.paused is None else stored.paused.detail,
                hint=_DECLARE,
            )
        stored = replace(stored, left_out=_numbered(view, known, stored))
        now = self._version(histories.position(self._connection))
        shape = replace(
            self._as_it_is(view, known, stored),  # refused before anything is stored
            paused=None,
            left_to_read=now,
            kept_since=now,
            expected=_withholding(view),
        )
        shape = replace(shape, read_id=self._asked(view))
        view_schemas.write(self._connection, self._source, shape)
        view_schemas.note(self._connection, view.name, [stored.change_id], SchemaOutcome.RESUMED)
        return self._plan(view, known, shape)

    def read_unlogged(self, view: View) -> bool:
        """Requests a read of the view's table if one is due; see the function of that name."""
        known, stored = self._histories.get(view.table), self._stored.get(view.name)
        if not isinstance(view, MirrorView) or known is None or stored is None:
            return False
        steps = changes_of(known)
        unlogged = [version.lsn for version, found in steps if any(c.needs_read for c in found)]
        if not unlogged or not stored.schema.key:
            return False
        since = self._version(max(unlogged))
        read = reads.whole_reads(self._connection, self._source).get(self._topics.of(view.table))
        if read is not None and ChangePosition.of_read(read.epoch, read.read_lsn).version >= since:
            return False
        shape = replace(stored, kept_since=max(since, stored.kept_since), read_id=self._asked(view))
        view_schemas.write(self._connection, self._source, shape)
        return True

    def _first(self, view: MirrorView, known: TableHistory) -> ViewShape:
        """Returns the columns of a view that was never bound: those of its table now."""
        plan_views([view], self._schemas, self._histories, self._topics)
        latest = known.versions[-1]
        oid = latest.shape.oid if latest.shape else 0
        shape = ViewShape(
            view.name,
            oid,
            (view.table,),
            latest.id,
            latest.id,
            self._schemas[view.table],
            expected=_withholding(view),
        )
        shape = replace(shape, left_out=_numbered(view, known, shape))
        if self._decides:
            view_schemas.write(self._connection, self._source, shape)
        return shape

    def _followed(self, view: MirrorView, known: TableHistory, stored: ViewShape) -> ViewShape:
        """Returns the columns of a view after a decision on every change of its table."""
        latest = known.versions[-1]
        if not self._decides or latest.id == stored.change_id:
            return stored
        steps = changes_of(known, stored.change_id)
        if latest.shape is not None and latest.shape.oid != stored.table_oid:
            gone = SchemaChange(ChangeKind.TABLE_DROPPED, str(view.table), compatible=False)
            steps = [(latest, (gone,))]
        shape, outcome = self._decided(view, known, stored, steps)
        view_schemas.write(self._connection, self._source, shape)
        told = [version.id for version, changes in steps if changes]
        view_schemas.note(self._connection, view.name, told, outcome)
        return shape

    def _listed(self, view: MirrorView, known: TableHistory, stored: ViewShape) -> ViewShape:
        """Requests a read of rows if the view now excludes other columns."""
        latest, own = known.versions[-1].shape, known.numbered(stored.shape_id)
        if not self._decides or latest is None or latest.oid != stored.table_oid:
            return stored
        shape = replace(stored, left_out=_numbered(view, known, stored))
        if shape.left_out == stored.left_out:
            return stored
        had = frozenset() if own is None or own.shape is None else own.shape.by_number.keys()
        if changed := (shape.out ^ stored.out) & had:
            if not stored.schema.key:
                raise PlanError(
                    f"view {view.name}: except_column_list cannot change",
                    detail=f"{view.table} has no key, so its rows cannot be read again",
                    hint="restore the list, or declare a view with another name",
                )
            shape = replace(shape, read_id=self._asked(view))
            if changed & stored.out:
                now = self._version(histories.position(self._connection))
                shape = replace(shape, kept_since=now)
        view_schemas.write(self._connection, self._source, shape)
        return shape

    def _expected(self, view: MirrorView, stored: ViewShape) -> ViewShape:
        """Requests a read of rows if the view now admits other rows."""
        now = _withholding(view)
        if not self._decides or stored.paused is not None or stored.expected == now:
            return stored
        read_id = self._asked(view) if stored.schema.key else stored.read_id
        shape = replace(stored, expected=now, read_id=read_id)
        view_schemas.write(self._connection, self._source, shape)
        return shape

    def _decided(
        self, view: MirrorView, known: TableHistory, stored: ViewShape, steps: Steps
    ) -> tuple[ViewShape, SchemaOutcome]:
        latest = known.versions[-1]
        ordering = None if view.history is None else view.history.sequence_by
        unread = stored.out - {*stored.left_out.get(ordering or "", ())}
        steps = [(version, as_seen(found, view.table, unread)) for version, found in steps]
        # declared with the new name: nothing is left to decide, but rows are missing
        changes = [c for _, found in steps for c in found if not _declared(view, known, c)]
        renamed = view.table != stored.tables[-1]
        keyless = not stored.schema.key or (latest.shape is not None and not latest.shape.key)
        keeps = stored.shape_id != stored.change_id
        history = view.history is not None
        policy = view.on_schema_change
        decision = decide(policy, changes, keyless=keyless, keeps=keeps, history=history)
        names = tuple(dict.fromkeys((*stored.tables, view.table)))
        moved = replace(stored, change_id=latest.id, tables=names)
        if decision.outcome is SchemaOutcome.PAUSED:
            return replace(moved, paused=_fault(view, decision.reason)), decision.outcome
        if decision.outcome is SchemaOutcome.FOLLOWED:
            try:
                moved = self._as_it_is(view, known, moved)
            except PlanError as error:
                return replace(moved, paused=Fault.of(error)), SchemaOutcome.PAUSED
        if decision.read or renamed:
            last = max(version.lsn for version, found in steps if any(c.needs_read for c in found))
            since = self._version(last)
            moved = replace(
                moved, kept_since=max(since, stored.kept_since), read_id=self._asked(view)
            )
            if decision.rekeyed:
                moved = replace(moved, left_to_read=since)
        return moved, decision.outcome

    def _as_it_is(self, view: MirrorView, known: TableHistory, stored: ViewShape) -> ViewShape:
        """Returns a view's columns as its table has them now."""
        latest = known.versions[-1]
        schema = self._schemas.get(view.table)
        if schema is not None and latest.shape is not None:
            view = _without(view, stored, schema, latest.shape)
        plan_views([view], self._schemas, self._histories, self._topics)
        oid = latest.shape.oid if latest.shape else 0
        return replace(
            stored,
            table_oid=oid,
            tables=tuple(dict.fromkeys((*stored.tables, view.table))),
            change_id=latest.id,
            shape_id=latest.id,
            schema=self._schemas[view.table],
        )

    def _plan(self, view: MirrorView, known: TableHistory, stored: ViewShape) -> ViewPlan:
        latest, own = known.versions[-1], known.numbered(stored.shape_id)
        schema = replace(stored.schema, table=view.table)
        shape = own.shape if own is not None else None
        if shape is None or latest.shape is None:
            raise PlanError(f"view {view.name}: the earlier columns of {view.table} are unknown")
        if latest.shape.columns == shape.columns and view.table in self._schemas:
            schema = self._schemas[view.table]
        bound = _without(view, stored, schema, shape)
        (plan,) = plan_views([bound], {view.table: schema}, topics=self._topics)
        numbers = {c.name: c.number for c in shape.columns if c.name in plan.read.by_name}
        carries = view.on_schema_change is SchemaPolicy.IGNORE
        until = stored.change_id if carries else stored.shape_id
        now = {number: column.name for number, column in latest.shape.by_number.items()}
        topic = self._topics.of(view.table)
        former = [self._topics.of(table) for table in stored.tables if table != view.table]
        past = view.history is not None
        shapes = TableShapes(known, numbers, until, plan.unread, past)
        return replace(
            plan,
            shapes=dict.fromkeys((topic, *former), shapes),
            former=tuple(former),
            absent=frozenset(name for name, number in numbers.items() if number not in now),
            renamed={
                name: now[number]
                for name, number in numbers.items()
                if now.get(number, name) != name
            },
            left_to_read=stored.left_to_read,
            kept_since=stored.kept_since,
        )

    def _asked(self, view: MirrorView) -> int:
        return reads.ask(
            self._connection, self._source, self._epoch, reads.SnapshotRequest(view.table)
        )[0]

    def _version(self, lsn: Lsn) -> int:
        return ChangePosition.of_read(self._epoch, lsn).version


def _withholding(view: MirrorView) -> tuple[str, ...]:
    return tuple(str(each) for each in view.expectations if each.withholds)


def _numbered(
    view: MirrorView, known: TableHistory, stored: ViewShape
) -> dict[str, tuple[int, ...]]:
    """Returns the numbers of the excluded columns; numbers of another table do not count."""
    versions = known.numbered(stored.shape_id), known.latest
    shapes = [version.shape for version in versions if version is not None and version.shape]
    had = stored.left_out if all(s.oid == stored.table_oid for s in shapes) else {}
    return column_list.numbered(view, had, shapes)


def _without(
    view: MirrorView, stored: ViewShape, schema: TableSchema, shape: TableShape
) -> MirrorView:
    """Returns the view with its column list in the names of one schema of its table."""
    out = {*column_list.named(shape, stored.out), *stored.left_out} & schema.by_name.keys()
    return replace(view, left_out=tuple(sorted(out)))


def _up_to_date(stored: ViewShape, known: TableHistory) -> bool:
    own, latest = known.numbered(stored.shape_id), known.versions[-1]
    shape = own.shape if own is not None else None
    same = shape is not None and latest.shape is not None and shape.columns == latest.shape.columns
    return same and stored.paused is None


def _name(known: TableHistory) -> TableName | None:
    """Returns the present name of a table; None if it was dropped."""
    latest = known.versions[-1]
    return latest.shape.table if latest.shape is not None else None


def _declared(view: MirrorView, known: TableHistory, change: SchemaChange) -> bool:
    return change.kind is ChangeKind.TABLE_RENAMED and view.table == _name(known)


def _fault(view: MirrorView, reason: SchemaChange | None) -> Fault:
    resume = f"headwater view resume {view.name}"
    hints = {ChangeKind.TABLE_RENAMED: _DECLARE, ChangeKind.TABLE_DROPPED: _GONE}
    error = ViewPausedError(
        f"view {view.name} is paused: its table has changed",
        detail=str(reason),
        hint=hints.get(reason.kind, resume) if reason is not None else resume,
    )
    return Fault.of(error)
