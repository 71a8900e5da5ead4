"""PositionsTask: records the positions of views in the source database, about every second."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import structlog

from cdc.broker.client.admin import consumer
from cdc.broker.topics.offsets import partitions
from cdc.errors import CdcError
from cdc.postgres import session
from cdc.schema_change import history
from cdc.snapshot import reads
from projections.changes import sweeps
from projections.common.background_task import BackgroundTask
from projections.definition.views import Store, view_of
from projections.errors import WriterFencedError
from projections.planning import view_schemas
from projections.publishing import positions
from projections.publishing.boundary import CompleteThrough
from projections.publishing.frontier import Frontier
from projections.publishing.other_sources import reached_by_readers
from projections.publishing.published_versions import Published
from projections.versions import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc.lsn import Lsn
    from projections.common.offsets import Offsets
    from projections.job.schema_watch import TableWatch
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

_INTERVAL_S: Final = (0.2, 0.7)
"""Shortest and longest pause between two rounds; a position between samples waits for the next."""

_RESTS: Final = 9
"""Pause after a round, as a multiple of its duration, within these limits: it works a tenth of the
time."""

_CONNECT_S: Final = 5
_log = structlog.get_logger(__name__)


class _SnapshotSample(NamedTuple):
    """The state of the snapshots of the source's tables at one moment."""

    epoch: int
    unread: frozenset[str]
    waiting: Mapping[Store, frozenset[str]]
    whole: Mapping[str, reads.WholeRead]
    swept: Mapping[tuple[str, Store], int]
    spec: JobSpec

    def late(self, plan: ViewPlan, store: Store) -> bool:
        """Returns whether a view still lacks rows of its table's snapshot."""
        awaited = self.spec.awaited.get((plan.name, store), {})
        coming = {
            topic
            for topic, number in awaited.items()
            if topic not in self.whole or self.whole[topic].id < number
        }
        return bool(plan.topics.keys() & (self.unread | self.waiting[store] | coming))

    def swept_later(self, plan: ViewPlan, store: Store) -> bool:
        """Returns whether a view still has rows that no longer exist in the source."""
        return sweeps.pending(plan, store, self.whole, self.swept) is not None

    def read_lsn(self, plan: ViewPlan) -> int:
        """Position of the newest snapshot of a view's tables, in bytes."""
        snapshots = (self.whole[topic] for topic in plan.topics if topic in self.whole)
        return max((r.read_lsn.value for r in snapshots if r.epoch == self.epoch), default=0)


class PositionsTask(BackgroundTask):
    """Publishes `applied_through` of every view in every store.

    A source or broker that does not answer only delays this: nothing is published meanwhile.

    Args:
        spec: The job.
        tables: Detects that its views have to be bound again.
        committed: Returns the offsets that a store's query has finished; None while it is down.
        active_plans: Returns the views of a store's batches, with adopted versions.
        derived: Returns the positions of derived views in each store.
    """

    def __init__(
        self,
        spec: JobSpec,
        tables: TableWatch,
        committed: Callable[[Store], Offsets | None],
        active_plans: Callable[[Store], tuple[ViewPlan, ...]],
        derived: Callable[[], Mapping[tuple[str, Store], Lsn]] | None = None,
    ) -> None:
        super().__init__("publisher")
        self._spec = spec
        self._tables = tables
        self._committed = committed
        self._active_plans = active_plans
        self._delivered = derived
        self._topics = spec.topics_in(Store.TABLE).union(*(plan.topics for plan in spec.plans))
        # one for each view: a table that cannot be read blocks only its own views
        self._frontiers = {
            (plan.name, store): Frontier(frozenset(plan.topics))
            for store in (Store.SEARCH, Store.CACHE)
            for plan in spec.plans_in(store)
        }
        # the JVM returns a query's offsets as text of all partitions: ask once for each store
        self._stores = sorted({store for _, store in self._frontiers})
        self._plans = {plan.name: plan for plan in spec.plans}
        self._published = Published(spec.config.addresses.tables, spec.config.source)
        # the tables are one group: all of them are where all of their topics are
        self._group = Frontier(spec.topics_in(Store.TABLE))
        self._group_lock = threading.Lock()
        # before which position a table that came later is not published, in bytes
        self._tables_since = {plan.name: 0 for plan in spec.plans_in(Store.TABLE)}
        self._reached: Lsn | None = None
        self._whole: dict[str, int] = {}  # since which position, in bytes
        self._epoch = 0
        self._reported = 0
        self._readers: dict[tuple[str, Store], Lsn] | None = None

    def work(self) -> None:
        """Samples and publishes until stopped."""
        self._published.begin()
        while not self._stopped.is_set():
            try:
                with (
                    session.connect(
                        self._spec.config.source_dsn, timeout_s=_CONNECT_S
                    ) as connection,
                    consumer(self._spec.config.bootstrap) as broker,
                ):
                    rest_s = 0.0
                    while not self.rested(rest_s):
                        began = time.monotonic()
                        self._round(connection, broker)
                        shortest, longest = _INTERVAL_S
                        rest_s = min(max(shortest, _RESTS * (time.monotonic() - began)), longest)
            except (psycopg.Error, CdcError, WriterFencedError) as error:
                _log.warning("positions are not published", error=type(error).__name__)
                self.rested(_INTERVAL_S[1])

    def reach(self, ends: Offsets) -> CompleteThrough | None:
        """Returns the position through which the tables are complete after a batch.

        Returns:
            The position and the views that are complete there; None if it is not known yet.
        """
        with self._group_lock:
            reached = self._group.advance(ends)
            if reached is not None:
                self._reached = reached
            if self._reached is None:
                return None
            lsn = self._reached.value
            return CompleteThrough(self._epoch, lsn, dict(self._whole))

    def _round(self, connection: psycopg.Connection[Any], broker: Any) -> None:
        # the frontier relies on the order of these steps
        position = positions.confirmed(connection, self._spec.config.slot)
        if self._tables.look():
            return  # the views may lack columns that their tables have by that position
        self._meet(connection)
        seen = self._look(connection)
        ends = {
            (place.topic, place.partition): offset
            for place, offset in broker.end_offsets(partitions(broker, self._topics)).items()
        }
        self._sample_group(seen, position, ends)
        committed = {store: self._committed(store) for store in self._stores}
        positions_reached: dict[Lsn, list[tuple[str, Store]]] = defaultdict(list)
        by_topic: dict[str, Offsets] = defaultdict(dict)
        for place, end in ends.items():
            by_topic[place[0]][place] = end
        for (view, store), frontier in self._frontiers.items():
            own = {place: end for t in frontier.topics for place, end in by_topic[t].items()}
            frontier.sample(None if seen.late(self._plans[view], store) else position, own)
            if seen.swept_later(self._plans[view], store):
                continue
            finished = committed[store]
            reached = frontier.advance(finished) if finished else None
            if reached is not None:
                positions_reached[reached].append((view, store))
        if self._delivered is not None:
            gone = registry.dropped(connection, self._spec.config.source)
            for place, reached in self._delivered().items():
                if place[0] not in gone:
                    positions_reached[reached].append(place)
        for reached, views in (*positions_reached.items(), *self._of_tables().items()):
            with self._spec.writing():
                positions.publish(connection, self._spec.config.source, views, reached)
        self._publish_readers(connection)

    def _publish_readers(self, connection: psycopg.Connection[Any]) -> None:
        """Publishes the positions of views that jobs of other sources derive from these."""
        spec, readers = self._spec, self._spec.cross_reads.readers
        reached = {
            place: lsn
            for owner in sorted(set(readers.values()))
            for place, lsn in reached_by_readers(
                spec.config.derived_file_of(owner), spec.config.source, self._epoch
            ).items()
            if view_of(place[0]) in readers
        }
        if reached != self._readers:
            with spec.writing():
                positions.publish_readers(connection, spec.config.source, reached, readers)
            self._readers = reached

    def _meet(self, connection: psycopg.Connection[Any]) -> None:
        """Adds versions that batches have adopted.

        Such a version may be ahead of the other tables' boundary, but not of the end of the
        source's log, which is read afterwards.
        """
        for store in self._stores:
            for plan in self._active_plans(store):
                if (plan.name, store) not in self._frontiers:
                    self._frontiers[plan.name, store] = Frontier(frozenset(plan.topics))
                    self._plans[plan.name] = plan
        coming = [p for p in self._active_plans(Store.TABLE) if p.name not in self._tables_since]
        if coming:
            end = history.position(connection).value
            self._tables_since |= {plan.name: end for plan in coming}
            self._plans |= {plan.name: plan for plan in coming}

    def _look(self, connection: psycopg.Connection[Any]) -> _SnapshotSample:
        source, spec = self._spec.config.source, self._spec
        unread = reads.unread_topics(connection, source)
        waiting = {store: self._waiting(connection, store) for store in Store}
        # a read that is seen as done here has also made its sweep visible
        whole, swept = reads.whole_reads(connection, source), sweeps.swept_versions(connection)
        return _SnapshotSample(
            view_schemas.epoch(connection, source), unread, waiting, whole, swept, spec
        )

    def _sample_group(self, seen: _SnapshotSample, position: Lsn | None, ends: Offsets) -> None:
        with self._group_lock:
            if seen.epoch != self._epoch:
                if self._epoch:  # positions of another incarnation are not comparable
                    self._tables_since = dict.fromkeys(self._tables_since, 0)
                self._epoch, self._reached = seen.epoch, None
                self._group.sample(None, ends)
                self._whole.clear()
            self._group.sample(position, ends)
            for plan in self._active_plans(Store.TABLE):
                if plan.name not in self._tables_since:
                    continue  # it arrives at this moment
                late = seen.late(plan, Store.TABLE) or seen.swept_later(plan, Store.TABLE)
                if late or position is None:
                    self._whole.pop(plan.name, None)
                else:
                    # a batch below these offsets may lack rows of the snapshot
                    begun = self._tables_since[plan.name]
                    since = max(position.value, seen.read_lsn(plan), begun)
                    self._whole.setdefault(plan.name, since)

    def _of_tables(self) -> dict[Lsn, list[tuple[str, Store]]]:
        """Returns the positions of the tables that were published last."""
        positions_reached: dict[Lsn, list[tuple[str, Store]]] = defaultdict(list)
        latest = self._published.latest()
        if latest is None or latest.number == self._reported:
            return positions_reached
        self._reported = latest.number
        for view, table in latest.views.items():
            if view in self._plans:
                positions_reached[table.applied_through].append((view, Store.TABLE))
        return positions_reached

    def _waiting(self, connection: psycopg.Connection[Any], store: Store) -> frozenset[str]:
        if not self._spec.views:
            return frozenset()
        views = [plan.name for plan in self._active_plans(store)]
        return view_schemas.waiting_topics(connection, self._spec.config.source, store, views)
