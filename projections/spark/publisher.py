"""Publisher: tells the source database how far its views are, about every second."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog

from cdc.broker.admin import consumer
from cdc.broker.offsets import partitions
from cdc.errors import CdcError
from cdc.snapshot import reads
from projections import positions, sweeps, view_shapes
from projections.frontier import Frontier
from projections.view import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc.lsn import Lsn
    from projections.frontier import Offsets
    from projections.spec import JobSpec
    from projections.table_watch import TableWatch

INTERVAL_S: Final = 0.7
_CONNECT_S: Final = 5
_log = structlog.get_logger(__name__)


class Publisher(threading.Thread):
    """Publishes `applied_through` of every view in every store.

    A source or broker that does not answer only delays this: nothing is published meanwhile.

    Args:
        spec: The job.
        tables: Tells whether its views have to be bound to their tables anew.
        committed: Gives the offsets that a store's query has finished; None while it is down.
    """

    def __init__(
        self, spec: JobSpec, tables: TableWatch, committed: Callable[[Store], Offsets | None]
    ) -> None:
        super().__init__(name="publisher", daemon=True)
        self._spec = spec
        self._tables = tables
        self._committed = committed
        self._stopped = threading.Event()
        self._topics = frozenset(topic for plan in spec.plans for topic in plan.topics)
        # one for each view: a table that cannot be read holds up its own views only
        self._frontiers: Mapping[tuple[str, Store], Frontier] = {
            (plan.name, store): Frontier(frozenset(plan.topics))
            for store in Store
            for plan in spec.plans_in(store)
        }
        self._plans = {plan.name: plan for plan in spec.plans}

    def run(self) -> None:
        """Samples and publishes until stopped."""
        while not self._stopped.is_set():
            try:
                with (
                    psycopg.connect(
                        self._spec.source_dsn, autocommit=True, connect_timeout=_CONNECT_S
                    ) as connection,
                    consumer(self._spec.bootstrap) as broker,
                ):
                    while not self._stopped.wait(INTERVAL_S):
                        self._round(connection, broker)
            except (psycopg.Error, CdcError) as error:
                _log.warning("positions are not published", error=type(error).__name__)
                self._stopped.wait(INTERVAL_S)

    def stop(self) -> None:
        """Ends the thread after its current round."""
        self._stopped.set()

    def _round(self, connection: psycopg.Connection[Any], broker: Any) -> None:
        # the order of these is what the frontier rests on
        position = positions.confirmed(connection, self._spec.slot)
        if self._tables.look():
            return  # the views may lack what has come to their tables up to there
        unread = reads.unread_topics(connection, self._spec.source)
        stores = {store for _, store in self._frontiers}
        waiting = {store: self._waiting(connection, store) for store in stores}
        # whoever sees that a read is done sees here what it lets be removed
        whole, swept = reads.whole_reads(connection, self._spec.source), sweeps.done(connection)
        ends = {
            (place.topic, place.partition): offset
            for place, offset in broker.end_offsets(partitions(broker, self._topics)).items()
        }
        committed = {store: self._committed(store) for store in stores}
        found: dict[Lsn, list[tuple[str, Store]]] = defaultdict(list)
        for (view, store), frontier in self._frontiers.items():
            # what a table held before is part of what its views must have applied
            late = frontier.topics & (unread | waiting[store] | self._awaited(view, store, whole))
            frontier.sample(None if late else position, ends)
            if sweeps.pending(self._plans[view], store, whole, swept) is not None:
                continue  # rows that are gone are still in the view
            finished = committed[store]
            reached = frontier.advance(finished) if finished else None
            if reached is not None:
                found[reached].append((view, store))
        for reached, views in found.items():
            positions.publish(connection, self._spec.source, views, reached)

    def _awaited(
        self, view: str, store: Store, whole: Mapping[str, reads.WholeRead]
    ) -> frozenset[str]:
        """Topics that a view came too late for, and whose tables have not been read since."""
        awaited = self._spec.awaited.get((view, store), {})
        return frozenset(
            topic
            for topic, number in awaited.items()
            if topic not in whole or whole[topic].id < number
        )

    def _waiting(self, connection: psycopg.Connection[Any], store: Store) -> frozenset[str]:
        if not self._spec.views:
            return frozenset()
        views = [plan.name for plan in self._spec.plans_in(store)]
        return view_shapes.waiting_topics(connection, self._spec.source, store, views)
