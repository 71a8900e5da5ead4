"""Views of a captured database, kept by a thread: the job without Spark."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.change_event import EPOCH_HEADER
from projections.changes.applier import TaskApplier
from projections.changes.record import Record
from projections.definition.views import MirrorView, Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import plan_views
from projections.publishing import positions
from projections.stores.factory import open_sink
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from projections.changes.sink import Sink
    from tests.fix_capture import Captured

_PACE_S = 0.1
"""Between two rounds: each commits to every table that was written to, and the job's are rarer."""


@dataclass(slots=True)
class Follower:
    """Takes the topics of a job into its stores, record by record, and publishes positions.

    Attributes:
        spec: The job.
    """

    spec: JobSpec
    failed: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)
        if self.failed is not None:
            raise self.failed

    def caught_up(self, timeout_s: float = 120) -> None:
        """Waits until all that is committed now is applied."""
        with psycopg.connect(self.spec.config.source_dsn, autocommit=True) as connection:
            (end,) = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
            places = {(plan.name, store) for plan in self.spec.plans for store in plan.to}

            def behind() -> set[tuple[str, Store]]:
                assert self.failed is None, self.failed
                return places - {
                    (p.view, p.store)
                    for p in positions.read(connection)
                    if p.applied_through.value >= end
                }

            wait_until(behind, "no view behind", accept=lambda left: not left, timeout_s=timeout_s)

    def _run(self) -> None:
        from cdc.broker.client.admin import consumer
        from cdc.broker.topics.offsets import partitions

        try:
            with ExitStack() as stack:
                connection = stack.enter_context(
                    psycopg.connect(self.spec.config.source_dsn, autocommit=True)
                )
                client = stack.enter_context(consumer(self.spec.config.bootstrap))
                sinks = {
                    store: stack.enter_context(
                        closing(open_sink(store, self.spec.config.addresses))
                    )
                    for store in Store
                }
                for plan in self.spec.plans:
                    for store in plan.to:
                        sinks[store].prepare(plan)
                topics = sorted({topic for plan in self.spec.plans for topic in plan.topics})
                places = partitions(client, topics)
                client.assign(places)
                client.seek_to_beginning(*places)
                while not self._stop.wait(_PACE_S):
                    self._round(connection, client, places, sinks)
        except BaseException as error:  # noqa: BLE001  # the test's thread raises it
            self.failed = error

    def _round(
        self, connection: psycopg.Connection, client: Any, places: Any, sinks: dict[Store, Sink]
    ) -> None:
        position = positions.confirmed(connection, self.spec.config.slot)
        ends = client.end_offsets(places)
        while any(client.position(place) < ends[place] for place in places):
            for place, records in client.poll(timeout_ms=100).items():
                self._take(place.topic, [_record(each) for each in records], sinks)
        if position is not None:
            wanted = [(plan.name, store) for plan in self.spec.plans for store in plan.to]
            positions.publish(connection, self.spec.config.source, wanted, position)

    def _take(self, topic: str, records: list[Record], sinks: dict[Store, Sink]) -> None:
        for store, sink in sinks.items():
            delivery = TaskApplier(self.spec.plans_in(store), lambda sink=sink: sink)
            delivery.take(topic, records)
            delivery.finish()
            assert not delivery.waiting, delivery.waiting


def _record(found: Any) -> Record:
    headers = dict(found.headers or ())
    epoch = headers.get(EPOCH_HEADER)
    return Record(
        found.key, found.value, epoch.decode() if epoch else None, found.partition, found.offset
    )


@pytest.fixture
def follower(
    tmp_path: Path, kafka_bootstrap: str, search_url: str, cache_url: str
) -> Iterator[Callable[..., Follower]]:
    """Makes and starts the follower that keeps the given views, or mirrors of all tables."""
    from cdc.postgres import catalog

    made: list[Follower] = []

    def make(captured: Captured, *views: MirrorView) -> Follower:
        name = captured.spec.name
        wanted = views or [
            MirrorView(f"{name}_{table.name}", name, table, (), frozenset(Store))
            for table in captured.spec.tables
        ]
        with psycopg.connect(captured.database) as connection:
            schemas = catalog.describe(connection, captured.spec.tables)
        plans = plan_views(wanted, schemas)
        places = kafka_bootstrap, captured.database, captured.spec.slot, tmp_path / "home"
        made.append(Follower(JobSpec(JobConfig(name, *places, cache_url, search_url, ()), plans)))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop()
