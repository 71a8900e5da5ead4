"""Sight of the tables of a job's views: whether they are still what the views were bound to."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import structlog

from cdc.errors import CdcError
from cdc.postgres import session
from cdc.schema_change import history, trigger
from projections import view_shapes
from projections.binding import bind

if TYPE_CHECKING:
    from cdc.lsn import Lsn
    from projections.spec import JobSpec

_log = structlog.get_logger(__name__)


class TableWatch:
    """Binds the views of a job to their tables, and sees when that has to be done anew.

    A change of a table commits before any row of the new shape can be in Kafka. So whoever looks
    after the records of a batch are known, and before they are applied, knows of every change that
    they come after. While the source does not answer, nothing is seen: a record whose columns are
    others is then refused by itself, and whatever could be mistaken is corrected by the read that
    the change asks for.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._tables = [view.table for view in spec.views]
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._mark: tuple[object, ...] = ()
        self._looked_at: Lsn | None = None
        self._changed = False

    def bind(self) -> JobSpec:
        """Returns the job with its views bound to their tables as these are now.

        Raises:
            PlanError: A view that was never bound does not fit its table.
            PostgresError: The source does not answer.
        """
        if not self._spec.views:
            return self._spec
        with self._lock:
            connection = self._connected()
            self._observe(connection, always=True)
            bound = bind(
                connection,
                self._spec.source,
                self._spec.views,
                decides=True,
                hiding=self._spec.hiding,
            )
            self._mark = bound.mark
            self._changed = False
        events = tuple(plan for plan in self._spec.plans if plan.events is not None)
        return replace(self._spec, plans=(*bound.plans, *events), paused=bound.paused)

    def look(self) -> bool:
        """Tells whether the views have to be bound anew."""
        if not self._spec.views or self._changed:
            return self._changed
        with self._lock:
            try:
                connection = self._connected()
                self._observe(connection, always=False)
                self._changed = view_shapes.mark(connection, self._spec.source) != self._mark
            except (psycopg.Error, CdcError) as error:
                self._close()
                _log.warning("tables are not looked at", error=type(error).__name__)
        return self._changed

    def close(self) -> None:
        """Lets go of the connection."""
        with self._lock:
            self._close()

    def _observe(self, connection: psycopg.Connection[Any], *, always: bool) -> None:
        """Looks for changes that the source does not note by itself."""
        if not view_shapes.ready(connection) or (trigger.active(connection) and not always):
            return
        looked_at = history.position(connection)
        try:
            history.observe(connection, self._tables, self._looked_at)
        except psycopg.errors.LockNotAvailable:
            return  # DDL is under way: it is seen as soon as it has ended
        self._looked_at = looked_at

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = session.connect(self._spec.source_dsn)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
