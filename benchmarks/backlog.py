"""A backlog of changes in Kafka, applied to a mirror with rows: in large batches and in small ones.

The topic holds changes as the connector writes them: skewed updates, deletes with their tombstones,
rows inserted again. The query of the job's tables reads them, once in batches as large as it takes
them and once in batches of 100,000 records, as it did before there were large ones, in both orders;
each begins with the same rows. The session is started and has applied a small backlog: in a job it
is there. What both tables have at the end is compared with what the changes come to, row by row,
and with each other, versions and deletes of keys without a row included, before a figure counts.

Nothing but this query runs: no archive, no other store. Processor time and the greatest memory are
those of this process, of Spark's JVM and of its workers. `HEADWATER_BACKLOG_CHANGES` takes another
number of changes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as fn

from benchmarks import change_archive
from benchmarks.change_archive import PLAN, SOURCE, TOPIC
from benchmarks.rebuild_spark import Side, rows_of, watched
from benchmarks.result import Report, at_most, rate
from benchmarks.streaming import say
from cdc.broker.topics import topics
from cdc.broker.topics.topics import TopicSpec
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from headwater.runtime.java.jars import ensure
from projections.common import spark_checkpoint
from projections.definition.views import Store
from projections.job import streaming_query
from projections.job.active_plans import ActivePlans
from projections.job.spark.session import start_session
from projections.job.streaming_query import BatchContext, TriggerPace
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.stores.delta.arrow import table_schema
from projections.stores.delta.sink import WarehouseSink
from projections.stores.delta.table_format import COMPACTED_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from benchmarks.change_archive import ChangeArchive

RATIO: Final = 2.0
MEMORY_MIB: Final = 1_536.0

_CHANGES: Final = 5_000_000
_CHANGES_QUICK: Final = 600_000
_ROWS: Final = 2_000_000
_ROWS_QUICK: Final = 200_000
_WARM: Final = 150_000
_SMALL: Final = TriggerPace(750, 100_000)
_ORDER: Final = ("small", "large", "large", "small")
_BATCH: Final = 500_000
_FIRST_VERSION: Final = 1 << 56 | 1
_TABLE_PLAN: Final = replace(PLAN, to=frozenset([Store.TABLE]))


class _Quiet:
    """What a batch asks before it is written: nothing is quarantined, and no table changes."""

    @staticmethod
    def writing() -> Any:
        """Admits it."""
        return nullcontext()

    @staticmethod
    def held() -> dict[str, Any]:
        """Has no quarantined keys."""
        return {}

    @staticmethod
    def changed() -> None:
        """Reads nothing again."""

    @staticmethod
    def look() -> bool:
        """Sees no change."""
        return False


@dataclass(frozen=True, slots=True)
class _Backlog:
    """What is to be applied.

    Attributes:
        made: The rows and the changes after them.
        rows: How many rows the mirror has before.
        config: The job.
    """

    made: ChangeArchive
    rows: int
    config: JobConfig

    @property
    def changes(self) -> int:
        return self.made.changes - self.rows


def run(quick: bool) -> Report:
    """Measures; `quick` takes an eighth of the changes and a tenth of the rows."""
    changes, rows = (_CHANGES_QUICK, _ROWS_QUICK) if quick else (_CHANGES, _ROWS)
    changes = int(os.environ.get("HEADWATER_BACKLOG_CHANGES", changes))
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        services = {ServiceName.KAFKA: Spawned()}
        endpoints = runtime.up(RuntimeSpec(home=home, services=services, lifeline=True))
        try:
            return _measured(endpoints.kafka_bootstrap, Path(folder), changes, rows)
        finally:
            runtime.down(home)


def _measured(bootstrap: str, folder: Path, changes: int, rows: int) -> Report:
    jars = tuple(ensure("spark", progress=False))
    config = JobConfig.of_tables(SOURCE, folder / "home", jars, conf={"spark.log.level": "ERROR"})
    config = replace(config, bootstrap=bootstrap)
    session = start_session(config)
    warm = _sent(session, folder / "warm", config, _WARM, _WARM // 10)
    for name in ("small", "large"):
        with _mirror(warm) as begun:
            _applied(session, begun, name, Side())
    backlog = _sent(session, folder / "archive", config, changes, rows)
    sides = {name: Side() for name in _ORDER}
    expected, kept, right = backlog.made.expected(), None, True
    for name in _ORDER:
        with _mirror(backlog) as begun:
            _applied(session, begun, name, sides[name])
            tables = begun.config.addresses.tables
            found = _content(tables)
        same = found[0].select(expected.column_names)
        kept = kept or found
        right &= same.equals(expected.cast(same.schema)) and found == kept
        side = sides[name]
        say(
            f"{name} batches: {changes / side.seconds[-1]:,.0f} changes/s, {side.cpu_s[-1]:.1f} s"
            f" of processor time, {side.memory_mib[-1]:,.0f} MiB, {'right' if right else 'WRONG'}"
        )
    session.stop()
    large, small = sides["large"], sides["small"]
    name = f"{changes:,} changes in Kafka into a mirror of {rows:,} rows"
    return Report(
        "backlog",
        right,
        (
            rate(
                f"{name}, changes/s, beside batches of {_SMALL.offsets_max:,}",
                ours=changes / median(large.seconds),
                peer=changes / median(small.seconds),
                limit=None,
                target=RATIO,
            ),
            rate(
                "the same, changes per second of processor time",
                ours=changes / median(large.cpu_s),
                peer=changes / median(small.cpu_s),
                limit=None,
                target=RATIO,
            ),
            at_most(
                "the same, MiB of driver, JVM and workers",
                ours=max(large.memory_mib),
                target=MEMORY_MIB,
            ),
        ),
    )


def _sent(
    session: SparkSession, folder: Path, config: JobConfig, changes: int, rows: int
) -> _Backlog:
    """Makes changes, and sends all but the inserts of the mirror's rows to the topic."""
    made = change_archive.make(folder, rows + changes, rows)
    topics.delete(config.bootstrap, [TOPIC])
    topics.ensure(config.bootstrap, [TopicSpec(TOPIC)])
    parts = [
        fn.lit('{"before":'),
        fn.coalesce("before", fn.lit("null")),
        fn.lit(',"after":'),
        fn.coalesce("after", fn.lit("null")),
        fn.lit(',"source":'),
        fn.col("source"),  # NULL for a tombstone, and so is the whole
        fn.col("rest"),
    ]
    archived = session.read.format("delta").load(str(folder)).where(fn.col("offset") >= rows)
    (
        archived.repartition(1)
        .sortWithinPartitions("offset")
        .select("key", fn.concat(*parts).alias("value"), "headers")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", config.bootstrap)
        .option("includeHeaders", "true")
        .option("topic", TOPIC)
        .save()
    )
    shutil.rmtree(folder)
    return _Backlog(made, rows, config)


def _content(tables: Path) -> list[pa.Table]:
    """The rows of the mirror, and what it remembers of keys without a row.

    Of a key that is deleted and inserted again, one large batch has only the insert.
    """
    rows, deletes = (rows_of(tables / each) for each in (PLAN.name, f"{PLAN.name}.deleted"))
    there = pc.is_in(deletes["id"], value_set=rows["id"].combine_chunks())
    return [rows, deletes.filter(pc.invert(there)).combine_chunks()]


@contextmanager
def _mirror(backlog: _Backlog) -> Iterator[_Backlog]:
    """The mirror with its first rows, as a load leaves it, in a folder of its own."""
    # workers keep tables open, by their paths
    home = Path(tempfile.mkdtemp(prefix="round-", dir=backlog.config.home.parent))
    begun = replace(backlog, config=replace(backlog.config, home=home))
    tables = begun.config.addresses.tables
    tables.mkdir(parents=True)
    WarehouseSink(tables).prepare(_TABLE_PLAN)
    for start in range(0, backlog.rows, _BATCH):
        keys = np.arange(start, min(start + _BATCH, backlog.rows))
        versions = pa.array(np.full(len(keys), _FIRST_VERSION), pa.int64())
        rows = change_archive.rows_of(keys, keys).append_column("_version", versions)
        table = DeltaTable(str(tables / PLAN.name))
        rows = rows.cast(table_schema(_TABLE_PLAN))
        write_deltalake(table, rows, mode="append", target_file_size=COMPACTED_BYTES)
    yield begun
    shutil.rmtree(home)


def _applied(session: SparkSession, backlog: _Backlog, name: str, side: Side) -> None:
    """Applies the backlog, in batches of a size."""
    spec = JobSpec(backlog.config, plans=(_TABLE_PLAN,))
    spark_checkpoint.adopt(backlog.config.checkpoint(Store.TABLE).parent)
    quiet: Any = _Quiet()
    context = BatchContext(quiet, ActivePlans(spec.plans), quiet, lambda _: None)
    counted: list[int] = []

    def on_batch(_: int, counters: list[dict[str, Any]]) -> None:
        counted.append(sum(each["records"] for each in counters))

    paces = streaming_query._PACES  # noqa: SLF001  # the size of a batch is what is compared
    usual = paces[Store.TABLE]
    paces[Store.TABLE] = _SMALL if name == "small" else usual
    try:
        with watched(side, tasks=True):
            query = streaming_query.start_query(session, spec, Store.TABLE, context, on_batch)
            query.processAllAvailable()
    finally:
        paces[Store.TABLE] = usual
    query.stop()
    say(f"{name}: {len(counted)} batches, {sum(counted):,} records")
