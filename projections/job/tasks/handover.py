"""Hand-over: the running job adopts a version that the archive has filled.

The archive ends at one offset, and a store's query is further on. The gap is replayed into the new
version alone, while batches continue for all other views, until the version is close to the query.
The few remaining records are then replayed between two batches, and the next batch includes the
version. No batch therefore includes a version that lacks earlier records, and no query restarts.

Until the version is recorded as held, it counts as joining: if the process is killed, or a step
fails, the next generation's queries go back for it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import orjson
import psycopg
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from cdc.broker.topics import extent
from cdc.errors import CdcError
from projections.changes.quarantine import table as quarantine_table
from projections.common import store_lock
from projections.common.background_task import BackgroundTask
from projections.errors import ProjectionError
from projections.job import backfill
from projections.job.active_plans import SentPlans
from projections.job.batch_writer import COUNTERS_DDL, BatchWriter
from projections.job.record_columns import record_columns
from projections.job.streaming_query import of_topics
from projections.stores.factory import open_sink
from projections.versions import handover
from projections.versions.handover import HandoverOffsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from projections.changes.quarantine.write_guard import StoreGuard
    from projections.changes.task_outcome import BlockedKeys
    from projections.common.offsets import Offsets
    from projections.definition.views import Store
    from projections.job.active_plans import ActivePlans
    from projections.job.schema_watch import TableWatch
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

INTERVAL_S: Final = 0.25
RECORDS_MAX: Final = 50_000
"""Records of a partition per round: a worker has them in memory."""

ROUNDS_MAX: Final = 400
"""Rounds in which a version has to reach the offsets of a store's batches."""

_BESIDE: Final = 3
"""Rounds to the topics' ends after which the next batch waits for the rest. Before that, a version
is adopted as soon as no batch was written during a round."""

_UNKNOWN_MAX: Final = 30
"""Rounds in which the start of the next batch may be unknown, since the query has just started."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A store whose query runs.

    Attributes:
        guard: The lock between its batches and other writes.
        active_plans: The views that its batches have.
        committed: Returns the offsets that its query has finished; None while it is down.
    """

    guard: StoreGuard
    active_plans: ActivePlans
    committed: Callable[[], Offsets | None]


class HandoverTask(BackgroundTask):
    """Adopts versions that become ready to join while the queries of a generation run.

    Args:
        session: The Spark session.
        spec: The job, its views bound.
        tables: Detects new versions.
        queries: The stores.
        adopted: Receives the job with a version that all its stores have adopted.
    """

    def __init__(
        self,
        session: SparkSession,
        spec: JobSpec,
        tables: TableWatch,
        queries: Mapping[Store, StoreQuery],
        adopted: Callable[[JobSpec], None],
    ) -> None:
        super().__init__("takeover")
        self._session = session
        self._spec = spec
        self._tables = tables
        self._queries = queries
        self._adopted = adopted

    def work(self) -> None:
        """Waits for versions until stopped."""
        while not self.rested(INTERVAL_S):
            if not self._tables.coming:
                continue
            try:
                self._take_over()
            except (
                *(CdcError, ProjectionError, PySparkException),
                *(Py4JError, psycopg.Error, OSError),
            ) as error:
                if not self._stopped.is_set():
                    code = getattr(error, "code", type(error).__name__)
                    _log.warning("a version is not adopted yet", error=code)
                self._tables.give_up()

    def _take_over(self) -> None:
        spec = self._tables.met()
        if spec is None:
            return  # the generation ends
        known = {plan.name for plan in self._spec.plans}
        coming = {place: ends for place, ends in spec.joining.items() if place not in known}
        spec = handover.checked(replace(spec, joining=coming))
        for plan in spec.plans:
            if plan.name not in spec.joining:
                continue
            ends = spec.joining[plan.name]
            if not self._fits(plan) or not all(self._bring(plan, s, ends) for s in sorted(plan.to)):
                self._tables.give_up()
                return
            self._spec = replace(self._spec, plans=(plan, *self._spec.plans))
            self._adopted(self._spec)
            _log.info("a version is adopted", version=plan.name)

    def _fits(self, plan: ViewPlan) -> bool:
        """Returns whether the running queries read the version's topics."""
        return all(
            store in self._queries and plan.topics.keys() <= self._spec.topics_in(store)
            for store in plan.to
        )

    def _bring(self, plan: ViewPlan, store: Store, ends: Offsets) -> bool:
        """Replays a version up to a store's batches; returns whether they include it now."""
        spec, query = replace(self._spec, plans=(plan,)), self._queries[store]
        version = _HandoverVersion(self._session, spec, store, ends)
        unknown = beside = 0
        with quarantine_table.connect(spec.config.ledger) as connection:
            for _ in range(ROUNDS_MAX):
                # no drop and no cutover happens meanwhile
                with store_lock.shared(connection, spec.config.source, store):
                    until, whole = version.next()
                    # as for a batch: changes of the table before these records are visible now
                    if self._ended():
                        return False
                    version.prepare()
                    version.take(
                        until, quarantine_table.held(connection, spec.config.source, store)
                    )
                    handover.note(spec.config, plan.name, {store: version.progress})
                if not whole:
                    continue
                with query.guard.writing():
                    begins = query.active_plans.stands or query.committed() or {}
                    if self._ended():
                        return False
                    beside += 1
                    if begins and (version.has(begins) or beside > _BESIDE):
                        version.take(begins, query.guard.held())
                        self._log_adopted(plan, store, version)
                        backfill.joined(spec.config, store, plan.name)
                        query.guard.changed()
                        query.active_plans.add(spec.plans_in(store))
                        return True
                unknown += not begins
                if unknown > _UNKNOWN_MAX or self._stopped.wait(0 if begins else 1):
                    return False
        return False

    @staticmethod
    def _log_adopted(plan: ViewPlan, store: Store, version: _HandoverVersion) -> None:
        _log.info(
            "a version is where a store is",
            version=plan.name,
            store=str(store),
            records=version.records,
            seconds=round(version.seconds, 2),
        )

    def _ended(self) -> bool:
        return self._stopped.is_set() or self._tables.look()


class _HandoverVersion:
    """A version in one store during its hand-over.

    Attributes:
        records: Approximate number of replayed records.
        seconds: Duration of the replays.

    Args:
        session: The Spark session.
        spec: The job, with only this version.
        store: The store.
        ends: Offset after the version's last record of each partition.
    """

    def __init__(self, session: SparkSession, spec: JobSpec, store: Store, ends: Offsets) -> None:
        self._session = session
        self._spec = spec
        self._store = store
        self._ends = dict(ends)
        self._whole: Offsets = {}
        self._prepared = False
        self.records = 0
        self.seconds = 0.0
        (plan,) = spec.plans_in(store)
        self._topics = frozenset(plan.topics)
        addresses, own = spec.config.addresses, SentPlans([plan])
        writer = BatchWriter(
            store,
            own,
            addresses,
            spec.config.ledger,
            driver_token=spec.driver_token,
            mark=spec.mark,
        )
        self._writer = replace(writer, beside=True)

    def prepare(self) -> None:
        """Prepares the store for the version, once."""
        if self._prepared:
            return
        with (
            self._spec.writing(),
            closing(open_sink(self._store, self._spec.config.addresses)) as sink,
        ):
            for plan in self._spec.plans_in(self._store):
                sink.prepare(plan)
        self._prepared = True

    def next(self) -> tuple[Offsets, bool]:
        """Returns the next offsets to replay up to, and whether they are the ends of the topics."""
        bounds = extent.bounds(self._spec.config.bootstrap, self._topics)
        ends = self._whole = {place: end for place, (_, end) in bounds.items()}
        through = {p: min(end, self._ends.get(p, 0) + RECORDS_MAX) for p, end in ends.items()}
        return through, through == ends

    @property
    def progress(self) -> HandoverOffsets:
        """Its progress towards the last known ends of its topics."""
        lacking = self._lacking(self._whole)
        missing = sum(end - self._ends.get(place, 0) for place, end in lacking.items())
        return HandoverOffsets(sum(self._ends.values()), missing)

    def has(self, ends: Offsets) -> bool:
        """Returns whether it has all records of its topics below these offsets."""
        return not self._lacking(ends)

    def take(self, ends: Offsets, held: Mapping[str, BlockedKeys]) -> None:
        """Replays the missing records below these offsets.

        Args:
            ends: The offsets.
            held: Quarantined keys of the store's views.
        """
        lacking = self._lacking(ends)
        if not lacking:
            return
        began = time.monotonic()
        begin = {place: self._ends.get(place, 0) for place in lacking}
        assigned: dict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(lacking):
            assigned[topic].append(partition)
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", str(self._store))
        records = (
            of_topics(self._session.read.format("kafka"), self._spec.config)
            .option("assign", orjson.dumps(assigned).decode())
            .option("startingOffsets", _as_spark_reads(begin))
            .option("endingOffsets", _as_spark_reads(lacking))
            .load()
        )
        writer = replace(self._writer, held=held)
        record_columns(records).coalesce(1).mapInArrow(writer.write, COUNTERS_DDL).collect()
        self._ends |= lacking
        self.records += sum(end - begin[place] for place, end in lacking.items())
        self.seconds += time.monotonic() - began

    def _lacking(self, ends: Offsets) -> Offsets:
        return {
            place: end
            for place, end in ends.items()
            if place[0] in self._topics and end > self._ends.get(place, 0)
        }


def _as_spark_reads(offsets: Offsets) -> str:
    by_topic: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic[topic][str(partition)] = offset
    return orjson.dumps(by_topic).decode()
