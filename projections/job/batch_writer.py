"""What runs in Spark's Python workers: decode, reduce, write, count.

A batch returns nothing to the driver but one row of counters for each view. Sinks stay open between
batches, since Spark reuses its worker processes.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from cdc.position import version_of
from projections.changes.applier import TaskApplier
from projections.changes.quarantine import table as quarantine_table
from projections.common.shared_folder import SharedFolder
from projections.common.side_by_side import side_by_side
from projections.definition.views import Store
from projections.errors import QuarantineFullError, ViewHaltedError, ViewOverfullError
from projections.job.backlog_writer import BacklogWriter
from projections.job.record_runs import OffsetOrder, by_topic
from projections.job.task_edge import collecting_rarely, crossing
from projections.planning.job_spec import writing
from projections.publishing.batch_fence import BatchFence
from projections.publishing.boundary import divide
from projections.publishing.published_versions import Published
from projections.stores.delta.sink import WarehouseSink
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from projections.changes.sink import Sink
    from projections.changes.task_outcome import BlockedKeys, ViewCount
    from projections.common.driver_lock import DriverToken
    from projections.job.backlog_writer import BacklogRun
    from projections.job.stored_runs import StoredRuns
    from projections.planning.job_config import LedgerAddress, StoreAddresses
    from projections.planning.view_plan import ViewPlan
    from projections.publishing.boundary import CompleteThrough, Run

COUNTERS: Final = pa.schema(
    [
        ("view", pa.string()),
        ("records", pa.int64()),
        ("applied", pa.int64()),
        ("quarantined", pa.int64()),
        ("filtered", pa.int64()),
        ("upserted", pa.int64()),
        ("deleted", pa.int64()),
        ("stale", pa.int64()),
        ("size_bytes", pa.int64()),
        ("fresh_changes", pa.int64()),
        ("lag_p50_us", pa.int64()),
        ("lag_p99_us", pa.int64()),
        ("failed", pa.map_(pa.string(), pa.int64())),
    ]
)
_DDL: Final = {pa.string(): "string", pa.int64(): "long"}
COUNTERS_DDL: Final = ", ".join(
    f"{field.name} {_DDL.get(field.type, 'map<string,long>')}" for field in COUNTERS
)

# a merge costs the same for one change and for thousands; the other stores do best with a steady
# flow, although search is idle for a while at the end of each write
_CHANGES_PER_WRITE: Final = {Store.TABLE: 100_000, Store.SEARCH: 20_000, Store.CACHE: 10_000}

_WAITING_MAX: Final = 20_000
"""Records that wait for a later boundary; more are a backlog."""

LARGE_RECORDS: Final = 100_000
LARGE_BYTES: Final = 128 << 20
"""A batch of the tables with more records, or more bytes in their values, is not held in memory as
a whole; see `BacklogWriter`."""

_UNWRITTEN: Final = pa.RecordBatch.from_pylist([{"view": None}], schema=COUNTERS)

_sinks: dict[tuple[Store, StoreAddresses], Sink] = {}


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes record batches of change topics into one store.

    Attributes:
        store: The store.
        plans: The views of that store.
        addresses: Where the store answers.
        ledger: Where the quarantine is.
        held: Quarantined keys, by view.
        reach: For tables, the position through which they are complete after this batch.
        derives: Whether derived views read these, so that a boundary is readable only with them.
        mark: The driver's mark in the folder of the tables; None if no other machine can write
            there.
        turn: For tables, the number of the batch in the order of batches.
        beside: Whether this is no batch, but the replay of versions that no batch has yet: it
            publishes no tables.
        stored: For a large batch of tables, its records as other tasks have read them.
    """

    store: Store
    plans: Sequence[ViewPlan]
    addresses: StoreAddresses
    ledger: LedgerAddress
    held: Mapping[str, BlockedKeys] = field(default_factory=dict)
    reach: CompleteThrough | None = None
    derives: bool = False
    driver_token: DriverToken | None = None
    mark: str | None = None
    turn: int = 0
    beside: bool = False
    stored: StoredRuns | None = None

    def prepare(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Prepares the store for the views; the batches are ignored."""
        for _ in batches:
            pass
        try:
            with writing(self.driver_token):
                sink = self._sink()
                if self.store is Store.SEARCH:  # most of the time is the engine's
                    side_by_side(sink.prepare, self.plans)
                else:
                    for plan in self.plans:
                        sink.prepare(plan)
        except Exception as error:  # noqa: BLE001  # the edge of the process
            raise crossing(error) from None
        yield _counters({})

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Applies all batches of a task and yields one row of counters for each view."""
        try:
            with collecting_rarely(), writing(self.driver_token):
                counts = self._write(batches)
        except Exception as error:  # noqa: BLE001  # the edge of the process
            raise crossing(error) from None
        yield _UNWRITTEN if counts is None else _counters(counts)

    def write_stored(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Applies the runs that are stored, as `write` does; the batches are ignored.

        Yields:
            The counters; a single row without a view if the batch has to be written by `write`.
        """
        for _ in batches:
            pass
        yield from self.write(())

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Mapping[str, ViewCount] | None:
        """Returns None if the batch has to be written from its records."""
        delivery = TaskApplier(
            self.plans,
            self._sink,
            self.held,
            changes_per_write=_CHANGES_PER_WRITE[self.store],
            overlapped=self.store is Store.SEARCH,  # most of the time is its own
        )
        order = OffsetOrder()
        runs = (run for batch in batches for run in by_topic(batch, order))
        written = True
        try:
            with closing(delivery):
                if self.store is Store.TABLE and not self.beside:
                    published = Published(self.addresses.tables, self.ledger.source)
                    with BatchFence(published.folder).taken(self.turn):
                        written = self._write_tables(published, delivery, runs)
                else:
                    _take(delivery, runs)
                    self._quarantine(delivery)
        except ViewHaltedError as error:
            if delivery.halted is not None:
                quarantine_table.halt(self.ledger, delivery.halted, error)
            raise
        return delivery.counts if written else None

    def _quarantine(self, delivery: TaskApplier) -> None:
        """Quarantines records; pauses a mirror that has too many of them, and no other view.

        Raises:
            ViewOverfullError: A mirror was paused; without it the batch can be written again.
            QuarantineError: The records cannot be stored.
        """
        if not delivery.waiting and not delivery.truncated:
            return
        try:
            quarantine_table.write(self.ledger, self.store, delivery.waiting, delivery.truncated)
        except QuarantineFullError as error:
            if any(plan.name == error.view and plan.events is not None for plan in self.plans):
                raise  # a view of events cannot be read again
            paused = ViewOverfullError(
                error.message,
                detail=error.detail,
                hint=error.hint
                if "view resume" in str(error.hint)
                else f"{error.hint}; headwater view resume {error.view} reads the table again",
            )
            quarantine_table.halt(self.ledger, error.view, paused)
            raise paused from None

    def _write_tables(
        self, published: Published, delivery: TaskApplier, runs: Iterable[Run]
    ) -> bool:
        """Returns whether the batch is written; see `BacklogWriter.write`."""
        large: Iterator[BacklogRun]
        if self.stored is not None:
            large = self.stored.read()
        else:
            first, rest = _first(runs)
            if rest is None:
                self._write_group(published, delivery, first)
                return True
            large = chain(_drained(first), rest)
        backlog = BacklogWriter(self.plans, self.held, delivery, published, self._warehouse)
        if not backlog.write(large):
            return False
        self._quarantine(delivery)
        backlog.settle()
        return True

    def _write_group(
        self, published: Published, delivery: TaskApplier, runs: Iterable[Run]
    ) -> None:
        """Writes up to a boundary, and publishes the tables at that boundary.

        Later records wait for the next batch, and are stored before this batch counts as done. A
        process that is killed meanwhile has published only versions that exist, and finds the
        records that waited before: they are forgotten once they are in the tables or in quarantine.
        """
        topics = frozenset(topic for plan in self.plans for topic in plan.topics)
        carried = published.beyond()
        division = divide(chain(carried.waiting, runs), topics, self.reach, carried.ahead)
        _take(delivery, division.within)
        if division.boundary is not None and self.reach is not None:
            versions = self._table_versions(self.reach, division.boundary)
            if versions:
                published.publish(
                    self.reach.epoch, division.boundary, versions, complete=not self.derives
                )
        if sum(len(records) for _, records in division.beyond) <= _WAITING_MAX:
            self._quarantine(delivery)
            published.keep_beyond(division.settled, division.beyond)
            return
        # so many are a backlog: they are written at once, and the next boundary is at their end
        published.keep_beyond(division.ahead, carried.waiting)
        _take(delivery, division.beyond)
        self._quarantine(delivery)
        published.keep_beyond(division.ahead)

    def _table_versions(self, reach: CompleteThrough, boundary: int) -> dict[str, int]:
        """Returns the versions of the tables that are complete at a boundary, and not beyond it."""
        sink, at = self._warehouse(), version_of(reach.epoch, boundary)
        whole = {view for view, since in reach.views.items() if since <= boundary}
        plans = [plan for plan in self.plans if plan.name in whole]
        versions = {plan.name: sink.version_at(plan, at) for plan in plans}
        return {view: version for view, version in versions.items() if version is not None}

    def _warehouse(self) -> WarehouseSink:
        sink = self._sink()
        assert isinstance(sink, WarehouseSink)  # noqa: S101  # tells the type checker
        return sink

    def _sink(self) -> Sink:
        opened = (self.store, self.addresses) in _sinks
        if self.store is Store.TABLE and self.mark is not None and not opened:
            SharedFolder(self.addresses.tables, self.ledger.source, self.mark).check()
        return process_sink(self.store, self.addresses)


def process_sink(store: Store, addresses: StoreAddresses) -> Sink:
    """Returns this process's sink of a store; the first use connects."""
    place = store, addresses
    if place not in _sinks:
        _sinks[place] = open_sink(*place)
    return _sinks[place]


def _first(runs: Iterable[Run]) -> tuple[list[Run], Iterator[Run] | None]:
    """Returns all runs of a batch and None, or the first runs of a large one and the others."""
    first: list[Run] = []
    records, size_bytes, remaining = 0, 0, iter(runs)
    for topic, run in remaining:
        first.append((topic, run))
        records += len(run)
        size_bytes += sum(len(record[1]) for record in run if record[1] is not None)
        if records > LARGE_RECORDS or size_bytes > LARGE_BYTES:
            return first, remaining
    return first, None


def _drained(runs: list[Run]) -> Iterator[Run]:
    """Yields runs, and keeps none that it has yielded."""
    runs.reverse()
    while runs:
        yield runs.pop()


def _take(delivery: TaskApplier, runs: Iterable[Run]) -> None:
    for topic, records in runs:
        delivery.take(topic, records)  # records of a topic that no view reads are skipped
    delivery.finish()


def _counters(counts: Mapping[str, ViewCount]) -> pa.RecordBatch:
    rows = []
    for view, count in counts.items():
        lags = sorted(count.lags_us)
        rows.append(
            {
                "view": view,
                "records": count.records,
                "applied": count.applied,
                "quarantined": count.quarantined,
                "filtered": count.filtered,
                "upserted": count.changes.upserted,
                "deleted": count.changes.deleted,
                "stale": count.changes.stale,
                "size_bytes": count.changes.size_bytes,
                "fresh_changes": len(lags),
                "lag_p50_us": lags[len(lags) // 2] if lags else None,
                "lag_p99_us": lags[len(lags) * 99 // 100] if lags else None,
                "failed": list(count.failed.items()),
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=COUNTERS)
