"""The streaming queries: one for each store, and one that archives the source's topics."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog

from cdc.broker.errors import BrokerError
from cdc.broker.topics import extent, topics
from projections.archive.table import GIVEN, ArchiveRetention
from projections.common import spark_checkpoint
from projections.common.fault import FaultError
from projections.definition.views import Store
from projections.errors import (
    CheckpointTornError,
    ProjectionError,
    UnknownShapeError,
    WriterFencedError,
)
from projections.job import data_loss
from projections.job.active_plans import SentPlans
from projections.job.archive_writer import ADDED_DDL, Archiver
from projections.job.backlog_tasks import PIECE_RECORDS, BacklogTasks
from projections.job.batch_writer import COUNTERS_DDL, BatchWriter
from projections.job.record_columns import epoch_column, record_columns
from projections.publishing.batch_fence import BatchFence
from projections.publishing.published_versions import Published
from projections.versions import handover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from cdc.broker.topics.extent import PartitionId
    from projections.changes.quarantine.write_guard import StoreGuard
    from projections.common.offsets import Offsets
    from projections.job.active_plans import ActivePlans
    from projections.job.schema_watch import TableWatch
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.publishing.boundary import CompleteThrough
    from projections.stores.valkey.epoch import CacheEpoch

ARCHIVE: Final = "archive"
_EARLIEST: Final = "earliest"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TriggerPace:
    """When a query starts a batch, and how large one is.

    Attributes:
        every_ms: Shortest time between the starts of two batches.
        offsets_max: Most records of a batch.
    """

    every_ms: int
    offsets_max: int


@dataclass(frozen=True, slots=True)
class BatchContext:
    """The checks that a batch passes before it is written.

    Attributes:
        guard: Knows the quarantined keys of the store, and keeps retries apart from batches.
        active_plans: The store's views.
        tables: Detects that the views have to be bound again.
        reach: Returns the position through which the tables are complete at a batch's end.
        epoch: Of the cache: detects that it has lost data.
    """

    guard: StoreGuard
    active_plans: ActivePlans
    tables: TableWatch
    reach: Callable[[Offsets], CompleteThrough | None]
    epoch: CacheEpoch | None = None

    def beat(self) -> None:
        """Checks a store for lost data, before a batch and after it."""
        if self.epoch is not None:
            try:
                self.epoch.beat()
            except ProjectionError as error:
                raise FaultError(error) from None


# A batch costs about 0.2 s of a core whatever it holds, so each store gets one no more often than
# its freshness needs; a batch of the tables costs about as much again for every few of them. Each
# merge of a table reads and writes the files of the changed keys, so a backlog is taken in few.
_PACES: Final[dict[str, TriggerPace]] = {
    Store.CACHE: TriggerPace(500, 40_000),
    Store.SEARCH: TriggerPace(1_000, 60_000),
    Store.TABLE: TriggerPace(750, 500_000),
}
_ARCHIVE_OFFSETS_MAX: Final = 200_000
_TABLES_MS: Final = 250
"""Delay of the next batch for each table."""

_TABLES_MS_MAX: Final = 3_000

CHANGED: Final = UnknownShapeError("tables have changed: the job binds the views again")

_CONSUMER: Final = {
    "kafka.default.api.timeout.ms": "20000",
    "kafka.request.timeout.ms": "10000",
    "kafkaConsumer.pollTimeoutMs": "20000",
    # After each read of a partition, Spark asks twice for its offsets. The broker answers a
    # connection in order, so each question waits for the fetch before it, as long as that waits
    # for data: with hundreds of topics in a batch, for seconds.
    "kafka.fetch.max.wait.ms": "1",
    # Each partition has a client with over a hundred metrics. Its two reporters keep an entry for
    # each metric, and nothing here reads them.
    "kafka.auto.include.jmx.reporter": "false",
    "kafka.enable.metrics.push": "false",
}


def pace(spec: JobSpec, query: str) -> TriggerPace:
    """Returns a query's pace; the tables' query pauses longer the more tables there are."""
    if query == ARCHIVE:
        return TriggerPace(round(spec.config.archive_interval_s * 1_000), _ARCHIVE_OFFSETS_MAX)
    usual = _PACES[query]
    if query != Store.TABLE:
        return usual
    wanted_ms = _TABLES_MS * len(spec.plans_in(Store.TABLE))
    return replace(usual, every_ms=min(max(usual.every_ms, wanted_ms), _TABLES_MS_MAX))


def start_query(
    session: SparkSession,
    spec: JobSpec,
    store: Store,
    context: BatchContext,
    on_batch: Callable[[int, list[dict[str, Any]]], None],
) -> StreamingQuery:
    """Starts the query of a store.

    Args:
        session: The Spark session.
        spec: The job.
        store: The store; some view must live there.
        context: The checks before a write.
        on_batch: Called with a batch's id and its counters once the batch is in the store.

    Raises:
        JobError: The query cannot continue from the store's checkpoint.
        BrokerError: The broker does not answer.
    """
    writer = replace(_writer(spec, store), derives=bool(spec.derived))
    checkpoint, wanted = spec.config.checkpoint(store), sorted(spec.topics_in(store))
    starting, begins = _starting(spec, store)
    records = record_columns(_records(session, spec, store, _exactly(wanted), starting))
    tables = spec.config.addresses.tables
    backlog = BacklogTasks.of(tables, spec.config.source) if store is Store.TABLE else None
    if backlog is not None:
        backlog.clear()  # what a killed driver has left

    def write(batch: DataFrame, batch_id: int) -> None:
        try:
            with context.guard.writing():
                # the batch's records are fixed by now, so every earlier change of a table is
                # visible, and no version is dropped before the batch is written
                if context.tables.look():
                    raise FaultError(CHANGED)
                ends = spark_checkpoint.batch_end(checkpoint, batch_id)
                writing = replace(writer, plans=context.active_plans.sent)
                context.beat()
                delivered = partial(_delivered, batch)
                if backlog is not None:
                    turns = BatchFence(Published(tables, spec.config.source).folder)
                    writing = replace(writing, reach=context.reach(ends), turn=turns.begin())
                    before = begins | context.active_plans.stands
                    sizes = {each: max(0, end - before.get(each, 0)) for each, end in ends.items()}
                    delivered = partial(_delivered_to_tables, batch, backlog, sizes)
                counters = _written(context.guard, writing, delivered)
                context.beat()
                context.active_plans.written(ends)
        except WriterFencedError as error:
            raise FaultError(error) from None
        on_batch(batch_id, counters)

    if backlog is None:  # the rows of a partition stay in one task
        records = records.coalesce(spec.config.tasks)
    return _started(session, spec, store, records.writeStream.foreachBatch(write))


def start_archive(
    session: SparkSession, spec: JobSpec, on_batch: Callable[[int, int], None]
) -> StreamingQuery:
    """Starts the query that adds every record of the source's topics to the archive.

    Args:
        session: The Spark session.
        spec: The job.
        on_batch: Called with a batch's id and its new records once they are in the archive.

    Raises:
        CheckpointForeignError: The checkpoint is another query's.
        RecordsLostError: It is damaged, and the records after it are gone.
    """
    checkpoint = spec.config.checkpoint(ARCHIVE)
    spark_checkpoint.check(checkpoint)
    if (path := spark_checkpoint.damaged(checkpoint)) is not None:
        if (lost := data_loss.find(spec.config, ARCHIVE)) is not None:
            raise lost
        _log.warning("a checkpoint is damaged, the query begins another", file=str(path))
        spark_checkpoint.set_aside(
            checkpoint
        )  # the archive itself knows up to where it has records
    spark_checkpoint.claim(checkpoint, {})
    pattern = re.escape(f"{spec.config.source}.") + ".*"
    records = _records(session, spec, ARCHIVE, pattern).withColumn("epoch", epoch_column())
    archiver = Archiver(
        spec.config.archive, ArchiveRetention(spec.config.archive_days), spec.driver_token
    )
    identities: dict[str, str] = {}

    def write(batch: DataFrame, batch_id: int) -> None:
        ends = spark_checkpoint.batch_end(spec.config.checkpoint(ARCHIVE), batch_id)
        if {topic for topic, _ in ends} - identities.keys():
            # a query whose topic is recreated while it runs ends and restarts
            identities.update(_identities(spec.config, ends))
        aware = replace(archiver, ends=ends, identities=identities)
        rows = batch.mapInArrow(aware.write, ADDED_DDL).collect()
        on_batch(batch_id, sum(row["added"] for row in rows))

    stream = records.select(*GIVEN).coalesce(1).writeStream.foreachBatch(write)
    return _started(session, spec, ARCHIVE, stream)


def _identities(config: JobConfig, ends: Offsets) -> dict[str, str]:
    try:
        return topics.identities(config.bootstrap, {topic for topic, _ in ends})
    except BrokerError as error:
        raise FaultError(error) from None


def prepare_store(session: SparkSession, spec: JobSpec, store: Store) -> None:
    """Prepares a store for its views, in a worker process, which is then warm."""
    writer = _writer(spec, store)
    session.range(1, numPartitions=1).mapInArrow(writer.prepare, COUNTERS_DDL).collect()


def _writer(spec: JobSpec, store: Store) -> BatchWriter:
    plans = SentPlans(spec.plans_in(store))
    return BatchWriter(
        store,
        plans,
        spec.config.addresses,
        spec.config.ledger,
        driver_token=spec.driver_token,
        mark=spec.mark,
    )


def committed_offsets(query: StreamingQuery) -> Offsets:
    """Returns the offsets up to which a query's finished batches reach."""
    stream = query._jsq.streamingQuery()  # noqa: SLF001  # public in Scala only
    progress = stream.committedOffsets().values().iterator()
    offsets: Offsets = {}
    while progress.hasNext():
        for topic, partitions in orjson.loads(progress.next().json()).items():
            for partition, offset in partitions.items():
                offsets[topic, int(partition)] = offset
    return offsets


def _delivered(batch: DataFrame, writer: BatchWriter) -> list[Row]:
    """Writes a batch; returns the counters of its tasks."""
    return batch.mapInArrow(writer.write, COUNTERS_DDL).collect()


def _delivered_to_tables(
    batch: DataFrame, backlog: BacklogTasks, sizes: Offsets, writer: BatchWriter
) -> list[Row]:
    """Writes a batch by one task: the tables have one writer at a time."""
    with backlog.read(batch, writer, sizes) as stored:
        if stored is not None:
            one = batch.sparkSession.range(1, numPartitions=1)
            writing = replace(writer, stored=stored)
            rows = one.mapInArrow(writing.write_stored, COUNTERS_DDL).collect()
            if all(row["view"] is not None for row in rows):
                return rows
    # for one task, Spark keeps the pieces of a partition in their order, as a test shows
    return _delivered(batch.coalesce(1), writer)


def _written(
    guard: StoreGuard, writer: BatchWriter, delivered: Callable[[BatchWriter], list[Row]]
) -> list[dict[str, Any]]:
    """Writes a batch with the known quarantined keys; the next batch knows those that it adds."""
    try:
        aware = replace(writer, held=guard.held())
    except ProjectionError as error:
        raise FaultError(error) from None
    set_apart = True
    try:
        rows = delivered(aware)
        counters = [row.asDict() for row in rows]
        set_apart = any(row["quarantined"] for row in counters)
    finally:
        if set_apart:
            guard.changed()
    return counters


def _starting(spec: JobSpec, store: Store) -> tuple[str, Offsets]:
    """Returns where a query begins, for Spark and in offsets.

    It sets aside a checkpoint that the query cannot continue from.

    Raises:
        CheckpointForeignError: The checkpoint is another query's.
        CheckpointTornError: No batch of it can be read, and the topics lack earlier records.
        RecordsLostError: Its next records are gone, or its topics were recreated.
        BrokerError: The broker does not answer.
    """
    wanted, checkpoint = spec.topics_in(store), spec.config.checkpoint(store)
    spark_checkpoint.take_back(checkpoint)
    known = spark_checkpoint.check(checkpoint)
    stands, damaged = spark_checkpoint.committed(checkpoint), spark_checkpoint.damaged(checkpoint)
    at = handover.rewound(spec, store, stands)
    standing = {partition: offset for partition, offset in at.items() if partition[0] in wanted}
    bounds = extent.bounds(spec.config.bootstrap, wanted)
    identities = topics.identities(spec.config.bootstrap, wanted)
    lost = data_loss.find_recreated(store, wanted & known.keys(), known, identities)
    if lost := lost or data_loss.lost(store, standing, bounds):
        raise lost
    restart = damaged is not None or at != stands
    starts = spark_checkpoint.starts(at, wanted, bounds, restart=restart)
    if damaged is not None:
        _check_known(damaged, at, bounds)
    if starts is not None or damaged is not None:
        spark_checkpoint.set_aside(checkpoint)
    spark_checkpoint.claim(checkpoint, identities)
    begins = {partition: first for partition, (first, _) in bounds.items()} | standing
    return _EARLIEST if starts is None else orjson.dumps(starts).decode(), begins


def _check_known(damaged: Path, at: Offsets, bounds: Mapping[PartitionId, tuple[int, int]]) -> None:
    """Refuses to start over where records are gone and nothing shows whether they were read.

    Raises:
        CheckpointTornError: No batch can be read, and a topic does not begin with its first record.
    """
    if not at and any(first > 0 for first, _ in bounds.values()):
        raise CheckpointTornError(
            "a query's checkpoint is damaged, and its topics do not have all their records",
            detail=str(damaged),
            hint="remove the query's folder of checkpoints and the .json file of that name beside "
            "it: its views are filled again",
        )
    _log.warning("a checkpoint is damaged, the query begins another", file=str(damaged))


def _records(
    session: SparkSession, spec: JobSpec, query: str, pattern: str, starting: str = _EARLIEST
) -> DataFrame:
    # a pattern, because a subscription by name fails while one of the topics does not exist yet
    reader = (
        of_topics(session.readStream.format("kafka"), spec.config)
        .option("subscribePattern", pattern)
        .option("startingOffsets", starting)
        .option("maxOffsetsPerTrigger", pace(spec, query).offsets_max)
    )
    if query == Store.TABLE:
        reader = reader.option("maxRecordsPerPartition", PIECE_RECORDS)
    records: DataFrame = reader.load()
    return records


def of_topics(reader: Any, config: JobConfig) -> Any:
    """Configures a Spark reader, streaming or batch, to read topics as a query does."""
    reader = (
        reader.option("kafka.bootstrap.servers", config.bootstrap)
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        # no offset is committed to the group; of one group, the queries share their connections
        .option("kafka.group.id", f"headwater-{config.source}")
    )
    for name, value in _CONSUMER.items():
        reader = reader.option(name, value)
    return reader


def _started(session: SparkSession, spec: JobSpec, query: str, stream: Any) -> StreamingQuery:
    # the pool is a property of this thread that the query's own thread inherits
    session.sparkContext.setLocalProperty("spark.scheduler.pool", query)
    started: StreamingQuery = (
        stream.queryName(str(query))
        .option("checkpointLocation", str(spec.config.checkpoint(query)))
        .trigger(processingTime=f"{pace(spec, query).every_ms} milliseconds")
        .start()
    )
    return started


def _exactly(names: list[str]) -> str:
    """A pattern of these names: what they begin with is compared once, not for each of hundreds."""
    prefix = os.path.commonprefix(names)  # noqa: RUF071  # of characters
    rest = "|".join(re.escape(name.removeprefix(prefix)) for name in names)
    return f"{re.escape(prefix)}(?:{rest})"
