"""Generation: everything that runs while the views are bound to one state of their tables.

When a table changes, the generation ends, the views are bound again, and the next one begins at the
same offsets; an unfinished batch is repeated. Session and process stay.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from cdc.errors import CdcError
from projections.changes.quarantine import table as quarantine_table
from projections.changes.quarantine.write_guard import StoreGuard
from projections.common.fault import Fault
from projections.definition.views import Store
from projections.errors import ProjectionError
from projections.job import data_loss
from projections.job.active_plans import ActivePlans
from projections.job.backlog import QueryBacklog
from projections.job.batch_writer import LARGE_RECORDS
from projections.job.initial_load import load_new
from projections.job.query_supervisor import SupervisedQuery
from projections.job.spark.session import session_of_batches
from projections.job.status import QueryProgress
from projections.job.streaming_query import (
    ARCHIVE,
    CHANGED,
    BatchContext,
    committed_offsets,
    pace,
    prepare_store,
    start_archive,
    start_query,
)
from projections.job.tasks.derived_tables import DerivedTablesTask
from projections.job.tasks.handover import HandoverTask, StoreQuery
from projections.job.tasks.maintenance import MaintenanceTask
from projections.job.tasks.positions import PositionsTask
from projections.job.tasks.rebuilds import RebuildServer
from projections.job.tasks.stable_tables import StableTablesTask
from projections.stores import identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from projections.common.background_task import BackgroundTask
    from projections.common.offsets import Offsets
    from projections.job.schema_watch import TableWatch
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.stores.valkey.epoch import CacheEpoch

_END_S = 60.0
_log = structlog.get_logger(__name__)


class Generation:
    """The queries of one binding of the views, and the background tasks beside them.

    Args:
        session: The Spark session.
        spec: The job, its views bound.
        tables: Detects that they have to be bound again.
        progress: Figures of the queries, by name, which outlive the generation.
        epoch: The identity of the cache; None without a cache.
    """

    def __init__(
        self,
        session: SparkSession,
        spec: JobSpec,
        tables: TableWatch,
        progress: dict[str, QueryProgress],
        epoch: CacheEpoch | None = None,
    ) -> None:
        self.spec = spec
        self._epoch = epoch
        self.queries: dict[str, SupervisedQuery] = {}
        self._session = session
        self._batches = session_of_batches(session)
        self._tables = tables
        self._progress = progress
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._guards = {
            store: StoreGuard(spec.config.ledger, store, spec.driver_token)
            for store in Store
            if spec.plans_in(store)
        }
        self._active_plans = {store: ActivePlans(spec.plans_in(store)) for store in self._guards}
        self._marking = threading.Lock()
        self._maintenance = MaintenanceTask(spec, self._guards, self._committed, epoch)
        self._derived_tables = (
            DerivedTablesTask(session, self._batches, spec) if spec.derived else None
        )
        reached = None if self._derived_tables is None else self._derived_tables.reached
        self._positions = PositionsTask(spec, tables, self._committed, self._plans_of, reached)
        queries = {
            store: StoreQuery(guard, self._active_plans[store], partial(self._committed, store))
            for store, guard in self._guards.items()
        }
        self._handover = HandoverTask(self._batches, spec, tables, queries, self._adopted)
        self._rebuilds = RebuildServer(session, spec.config)
        self._stable_tables = StableTablesTask(spec.config.addresses.tables, spec.config.source)
        for store in (Store.CACHE, Store.SEARCH, Store.TABLE):
            if spec.plans_in(store):
                self._add(store, partial(self._start_store, store))
        self._add(ARCHIVE, self._start_archive)

    @property
    def fault(self) -> Fault | None:
        """Why a query or a background task has failed; None if none has."""
        faults = [query.fault for query in self.queries.values()]
        faults += [task.fault for task in self.background_tasks]
        return next((fault for fault in faults if fault), None)

    @property
    def background_tasks(self) -> tuple[BackgroundTask, ...]:
        """The background tasks beside the queries."""
        beside = self._beside
        return (
            beside if self._derived_tables is None else (*beside, *self._derived_tables.companions)
        )

    @property
    def _beside(self) -> tuple[BackgroundTask, ...]:
        """The background tasks that the generation starts and stops itself."""
        own = (self._positions, self._stable_tables, self._maintenance, self._handover)
        tended = (*own, self._rebuilds)
        return tended if self._derived_tables is None else (*tended, self._derived_tables)

    @property
    def running(self) -> bool:
        """Whether every query runs."""
        return all(query.query is not None for query in self.queries.values())

    def start(self) -> None:
        """Starts everything; each query has its own supervising thread."""
        self._retry_reshaped()
        for task in self._beside:
            task.start()
        for query in self.queries.values():
            thread = threading.Thread(
                target=query.run, args=(self._ending,), name=query.name, daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Stops everything that `start` started; the next generation repeats unfinished work."""
        self._ending.set()
        for task in self._beside:
            task.stop()
        for query in self.queries.values():
            query.stop()

    def wait(self) -> None:
        """Waits until an ended generation has stopped, so that another may begin."""
        for thread in (*self._threads, *self._beside):
            thread.join(_END_S)
        # a query that was just starting when it had to stop
        for query in self.queries.values():
            query.stop()
        for guard in self._guards.values():
            guard.close()

    def _retry_reshaped(self) -> None:
        """Retries records that were quarantined because of columns that the views now have."""
        try:
            with quarantine_table.connect(self.spec.config.ledger) as connection:
                views = [plan.name for plan in self.spec.plans]
                quarantine_table.retry_reshaped(connection, self.spec.config.source, views)
        except ProjectionError as error:
            _log.warning(
                "quarantined records are not retried yet", code=error.code, reason=error.message
            )

    def _add(self, name: str, start: Callable[[], Any]) -> None:
        # a batch of the tables is larger than that only if there is a backlog
        usual = LARGE_RECORDS if name == Store.TABLE else pace(self.spec, name).offsets_max
        backlog = QueryBacklog(usual)
        progress = self._progress.setdefault(str(name), QueryProgress(backlog=backlog))
        self.queries[str(name)] = SupervisedQuery(
            str(name), start, progress, lambda: self._loss(name)
        )

    def _loss(self, query: str) -> Fault | None:
        error = data_loss.find(self.spec.config, query)
        return None if error is None else Fault.of(error)

    def _start_store(self, store: Store) -> StreamingQuery:
        with self.spec.writing():
            if store is Store.TABLE:
                on_progress = self._progress[str(store)].loading
                load_new(self._session, self.spec, self._ending.is_set, on_progress)
            identity.check(self.spec, store)
        with self._guards[store].writing():
            # a version that was dropped after its plan was bound is not created again
            if self._tables.look():
                raise CHANGED
            prepare_store(self._session, self.spec, store)
            self._mark(store)
        self._retry_first(store)
        epoch = self._epoch if store is Store.CACHE else None
        context = BatchContext(
            self._guards[store],
            self._active_plans[store],
            self._tables,
            self._positions.reach,
            epoch,
        )
        on_batch = self._progress[store].record
        return start_query(self._batches, self.spec, store, context, on_batch)

    def _mark(self, store: Store) -> None:
        with self._marking:
            identity.keep(self.spec, store)

    def _plans_of(self, store: Store) -> tuple[ViewPlan, ...]:
        active_plans = self._active_plans.get(store)
        return () if active_plans is None else active_plans.plans

    def _adopted(self, spec: JobSpec) -> None:
        """Continues with a version that batches of all its stores include."""
        self.spec = spec
        for store in spec.plans[0].to:
            with spec.writing():
                self._mark(store)
        self._maintenance.meet(spec)

    def _start_archive(self) -> StreamingQuery:
        return start_archive(self._batches, self.spec, self._progress[ARCHIVE].archived)

    def _retry_first(self, store: Store) -> None:
        """Frees capacity in a full quarantine before the next batch needs it."""
        try:
            with quarantine_table.connect(self.spec.config.ledger) as connection:
                self._maintenance.retry(connection, store)
        except (CdcError, ProjectionError) as error:
            _log.warning("nothing is retried yet", code=error.code, reason=error.message)

    def _committed(self, store: Store) -> Offsets | None:
        supervised = self.queries.get(store)
        query = supervised.query if supervised else None
        return committed_offsets(query) if query is not None else None
