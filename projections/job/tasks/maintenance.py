"""Maintenance: what the job does for its views beside batches, about twice a second.

It retries quarantined records that are due, requests a read of rows that lack a value, and removes
rows that a snapshot of the table no longer has.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog

from cdc.errors import CdcError
from cdc.snapshot import reads
from projections.changes import sweeps
from projections.changes.quarantine import rereads
from projections.changes.quarantine import table as quarantine_table
from projections.changes.quarantine.retry import retry_keys
from projections.changes.quarantine.table import RetryResult
from projections.common.background_task import BackgroundTask
from projections.definition.views import Store
from projections.errors import (
    ProjectionError,
    SinkError,
    StableTableError,
    VersionError,
    ViewHaltedError,
)
from projections.publishing.published_versions import Published
from projections.stores.factory import open_sink
from projections.versions import cutover, handover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdc.snapshot.reads import WholeRead
    from projections.changes.quarantine.table import Connection, RetriedRecord
    from projections.changes.quarantine.write_guard import StoreGuard
    from projections.changes.sink import Sink
    from projections.common.offsets import Offsets
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.stores.valkey.epoch import CacheEpoch

INTERVAL_S: Final = 0.5
_READS_S: Final = 1.0
"""Seconds between two checks for requested and finished reads; a view that waits for a read claims
no position before."""

_PAUSE_S: Final = 5.0
_log = structlog.get_logger(__name__)


class MaintenanceTask(BackgroundTask):
    """Maintains the views of a job.

    A source or store that does not answer only delays it.

    Args:
        spec: The job.
        guards: By store, the lock between its batches and other writes.
        committed: Returns the offsets that a store's query has finished; None while it is down.
        epoch: The identity of the cache; None without a cache.
    """

    def __init__(
        self,
        spec: JobSpec,
        guards: Mapping[Store, StoreGuard],
        committed: Callable[[Store], Offsets | None],
        epoch: CacheEpoch | None = None,
    ) -> None:
        super().__init__("caretaker")
        self._epoch = epoch
        self._built: set[str] = set()
        self._pointers_restored = False
        self._unmoved: str | None = None
        self._spec = spec
        self._guards = guards
        self._committed = committed
        self._sinks: dict[Store, Sink] = {}

    def run(self) -> None:
        """Runs until stopped."""
        super().run()
        for sink in self._sinks.values():
            sink.close()

    def work(self) -> None:
        """Maintains the views round by round; a source or store that does not answer delays it."""
        while not self._stopped.is_set():
            try:
                with quarantine_table.connect(self._spec.config.ledger) as connection:
                    self._tend(connection)
            except (CdcError, ProjectionError, psycopg.Error) as error:
                code = getattr(error, "code", None) or getattr(error, "sqlstate", None)
                message = getattr(error, "message", type(error).__name__)
                _log.warning("views are not tended", code=code, reason=message)
                self.rested(_PAUSE_S)

    def meet(self, spec: JobSpec) -> None:
        """Continues with a job that has adopted a version."""
        self._spec = spec

    def retry(self, connection: Connection, store: Store) -> None:
        """Retries the quarantined records of a store that are due.

        Raises:
            QuarantineDownError: The quarantine cannot be read or written.
            SinkError: The store cannot be written; the records stay due.
        """
        guard, source = self._guards[store], self._spec.config.source
        plans = {plan.name: plan for plan in self._spec.plans_in(store)}
        while not self._stopped.is_set():
            with guard.writing():
                cases = quarantine_table.due(connection, source, store, plans)
                if not cases:
                    return
                held = quarantine_table.held(connection, source, store)
                try:
                    for name, of_view in _by_view(cases).items():
                        given_up = held[name].given_up
                        verdicts = self._verdicts(plans[name], store, of_view, given_up)
                        quarantine_table.settle(connection, store, verdicts)
                finally:
                    guard.changed()

    def _tend(self, connection: Connection) -> None:
        looked_at = 0.0
        while not self.rested(INTERVAL_S):
            due = quarantine_table.due_stores(connection, self._spec.config.source)
            for store in self._guards:
                if store in due:
                    self.retry(connection, store)
            if time.monotonic() > looked_at + _READS_S:
                looked_at = time.monotonic()
                rereads.ask(connection, self._spec)
                self._tend_versions(connection)
                self._sweep(connection)
                self._look_at_cache(connection)

    def _tend_versions(self, connection: Connection) -> None:
        """Records adopted versions, and completes unfinished cutovers."""
        handover.settle(connection, self._spec)
        try:
            cutover.resume(connection, self._spec.config)
            # a store that lost its data has also lost the pointers to the active versions
            if not self._pointers_restored:
                cutover.restore_pointers(connection, self._spec.config)
                self._pointers_restored = True
            self._unmoved = None
        except (SinkError, StableTableError, VersionError) as error:
            # the rest of the maintenance continues, and this is retried
            if self._unmoved != error.message:
                _log.warning("readers are not moved yet", code=error.code, reason=error.message)
            self._unmoved = error.message

    def _verdicts(
        self,
        plan: ViewPlan,
        store: Store,
        cases: Sequence[RetriedRecord],
        given_up: Mapping[str, int | None],
    ) -> list[RetryResult]:
        try:
            return retry_keys(plan, cases, lambda: self._sink(store), given_up)
        except ViewHaltedError as error:
            quarantine_table.halt(self._spec.config.ledger, plan.name, error)
            raise
        except CdcError as error:  # one of the keys fails, and with it the whole call
            by_key: dict[str, list[RetriedRecord]] = defaultdict(list)
            for case in cases:
                by_key[case.key].append(case)
            if len(by_key) == 1:
                return [RetryResult(case, error) for case in cases]
            return [
                verdict
                for of_key in by_key.values()
                for verdict in self._verdicts(plan, store, of_key, given_up)
            ]

    def _sweep(self, connection: Connection) -> None:
        whole = reads.whole_reads(connection, self._spec.config.source)
        swept = sweeps.swept_versions(connection)
        for store, guard in self._guards.items():
            for plan in self._spec.plans_in(store):
                sweep = sweeps.pending(plan, store, whole, swept)
                if sweep is None:
                    continue
                committed = self._committed(store)
                if committed is None or not sweep.covered_by(committed):
                    continue
                with guard.writing():
                    if not sweep.covered_by(self._applied(store, committed)):
                        continue
                    spans = sweeps.spans(connection, plan)
                    removed = self._sink(store).sweep(plan, sweep.below_version, spans)
                if plan.history is None:  # a history needs quarantined changes, however old
                    below = {plan.name: sweep.below_version}
                    quarantine_table.obsolete(connection, self._spec.config.source, store, below)
                sweeps.note(connection, plan.name, store, sweep, removed)
                if removed:
                    _log.info("rows removed", view=plan.name, store=str(store), rows=removed)

    def _applied(self, store: Store, committed: Offsets) -> Offsets:
        """Returns the offsets below which a store has every record, while no batch is written."""
        if store is not Store.TABLE:
            return committed
        published = Published(self._spec.config.addresses.tables, self._spec.config.source)
        return sweeps.applied(committed, published.waiting_from())

    def _look_at_cache(self, connection: Connection) -> None:
        """Detects a cache that has lost data, and records when a view of it is complete."""
        if self._epoch is None or self._epoch.lost.is_set():
            return
        try:
            with self._guards[Store.CACHE].writing():
                self._epoch.look()
            whole = reads.whole_reads(connection, self._spec.config.source)
            swept = sweeps.swept_versions(connection)
            for plan in self._spec.plans_in(Store.CACHE):
                if plan.name not in self._built and self._whole(plan, whole, swept):
                    self._epoch.built(plan)
                    self._built.add(plan.name)
        except SinkError as error:  # the other stores need not wait for it
            _log.warning("the cache cannot be checked", code=error.code, reason=error.message)

    def _whole(
        self, plan: ViewPlan, whole: Mapping[str, WholeRead], swept: Mapping[tuple[str, Store], int]
    ) -> bool:
        awaited = self._spec.awaited.get((plan.name, Store.CACHE), {})
        if any(topic not in whole or whole[topic].id < n for topic, n in awaited.items()):
            return False
        below = sweeps.due(plan, whole)
        return below is not None and sweeps.pending(plan, Store.CACHE, whole, swept) is None

    def _sink(self, store: Store) -> Sink:
        if store not in self._sinks:
            self._sinks[store] = open_sink(store, self._spec.config.addresses)
        return self._sinks[store]


def _by_view(cases: Sequence[Any]) -> dict[str, list[Any]]:
    by_view: dict[str, list[Any]] = defaultdict(list)
    for case in cases:
        by_view[case.view].append(case)
    return by_view
