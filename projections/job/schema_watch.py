"""Detects changes of the tables that a job's views are bound to."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import structlog

from cdc.errors import CdcError
from cdc.postgres import session
from cdc.schema_change import catalog_mark, history, trigger
from projections.definition.views import MirrorView
from projections.planning import view_schemas
from projections.versions import derived as versions_derived
from projections.versions import registry

if TYPE_CHECKING:
    from cdc.lsn import Lsn
    from projections.definition.views import DerivedView
    from projections.planning.job_spec import JobSpec

_log = structlog.get_logger(__name__)


class TableWatch:
    """Binds the views of a job to their tables, and detects when they have to be bound again.

    A change of a table commits before any row of the new shape can reach Kafka. A look after the
    records of a batch are known, and before they are applied, therefore sees every change that
    precedes them. While the source does not answer, nothing is detected: a record with other
    columns is then refused, and the read that the change requests corrects any misread value.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._views = [view.name for view in spec.views]
        self._tables = [view.table for view in spec.views if isinstance(view, MirrorView)]
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._mark: tuple[object, ...] = ()
        self._names: list[str] = []
        self._known: frozenset[str] = frozenset()
        self._read: frozenset[str] = frozenset()
        self._bound: JobSpec | None = None
        self._coming = False
        self._looked_at: Lsn | None = None
        self._catalogs: tuple[object, ...] = ()
        self._changed = False

    def bind(self) -> JobSpec:
        """Returns the job with its views bound to the present state of their tables.

        Raises:
            PlanError: A view that was never bound does not fit its table.
            PostgresError: The source does not answer.
        """
        if not self._spec.views:
            return self._spec
        with self._lock:
            self._changed = False
            self._bound = self._bind(self._connected())
            return self._bound

    @property
    def coming(self) -> bool:
        """Whether the last look found versions that no query has adopted."""
        return self._coming

    def met(self) -> JobSpec | None:
        """Binds new versions, while the other views stay as they are.

        They count as bound from now on: a later batch may include them.

        Returns:
            The job with them; None if something else changed, so that all views have to be bound
            again.

        Raises:
            PlanError: A version does not fit its table.
            PostgresError: The source does not answer.
        """
        with self._lock:
            before, read, self._coming = self._bound, self._read, False
            self._bound = bound = self._bind(self._connected())
            there = {plan.name for plan in before.plans} if before is not None else set()
            others = tuple(
                plan for plan in bound.plans if plan.name in there or plan.name not in bound.joining
            )
            same = before is not None and (others, bound.paused) == (before.plans, before.paused)
            if not same or not self._read <= read:
                self._changed = True
            return None if self._changed else bound

    def give_up(self) -> None:
        """Requests that all views are bound again."""
        self._changed = True

    def _bind(self, connection: psycopg.Connection[Any]) -> JobSpec:
        spec = self._spec
        self._observe(connection, always=True)
        # a change between the two is bound but not in the mark, so the next look detects it
        versions = registry.mark(connection, spec.config.source, self._views)
        derived = self._derived(connection)
        bound = registry.bind_maintained(
            connection,
            spec.config.source,
            spec.views,
            decides=True,
            hiding=spec.config.hiding,
        )
        names = [plan.name for plan in bound.plans] + [view.name for view in bound.paused]
        self._names = names
        # the job does not adopt versions of undeclared views
        self._known = versions.joining.union(names)
        self._mark = (*bound.mark, versions.among(self._known))
        others = tuple(plan for plan in spec.plans if plan.events and plan.name not in names)
        return replace(
            spec,
            plans=(*bound.plans, *others),
            paused=bound.paused,
            joining=bound.joining,
            derived=derived,
        )

    def _derived(self, connection: psycopg.Connection[Any]) -> tuple[DerivedView, ...]:
        """Returns the derived views; the job determines them again at each boundary."""
        spec = self._spec
        reads = self._reads(connection)
        derived = versions_derived.maintained_views(
            connection, spec.config.source, spec.declared_derived, spec.config.functions
        )
        derived = derived or spec.derived
        self._read = reads.union(*(view.inputs for view in derived))
        return derived

    def _reads(self, connection: psycopg.Connection[Any]) -> frozenset[str]:
        names = [view.name for view in self._spec.declared_derived]
        return versions_derived.read(connection, self._spec.config.source, names)

    def look(self) -> bool:
        """Returns whether the views have to be bound again."""
        if not self._spec.views or self._changed:
            return self._changed
        with self._lock:
            try:
                connection = self._connected()
                self._observe(connection, always=False)
                source = self._spec.config.source
                versions = registry.mark(connection, source, self._views)
                shapes = view_schemas.mark(connection, source, self._names)
                # a version may read a table that no view has read so far
                others = not self._reads(connection) <= self._read
                if others or (*shapes, versions.among(self._known)) != self._mark:
                    self._changed = True  # and never back: another thread may have seen it
                self._coming = not versions.joining <= self._known
            except (psycopg.Error, CdcError) as error:
                self._close()
                _log.warning("tables cannot be checked", error=type(error).__name__)
        return self._changed

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._close()

    def _observe(self, connection: psycopg.Connection[Any], *, always: bool) -> None:
        """Looks for changes that the source does not record itself."""
        if not view_schemas.ready(connection) or (trigger.active(connection) and not always):
            return
        looked_at = history.position(connection)
        oids = history.oids(connection, self._tables)
        if always or not self._unchanged(connection, oids):
            self._catalogs = ()
            catalogs = catalog_mark.read(connection, oids)
            try:
                history.observe(connection, self._tables, self._looked_at)
            except psycopg.errors.LockNotAvailable:
                return  # DDL is under way: it is seen as soon as it has ended
            self._catalogs = catalogs
        self._looked_at = looked_at

    def _unchanged(self, connection: psycopg.Connection[Any], oids: list[int]) -> bool:
        """Returns whether no table was changed since the last look or is being changed."""
        if not self._catalogs or catalog_mark.being_changed(connection, oids):
            return False
        return catalog_mark.read(connection, oids) == self._catalogs

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = session.connect(self._spec.config.source_dsn)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
