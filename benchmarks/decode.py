"""Change records in Kafka to typed columns in Spark: as the job decodes them, and naively.

Both connectors capture the same rows. Ours are decoded as the job does it, from the reader's
columns through `mapInArrow` to the Arrow columns that a table takes. The peer is the textbook's
`from_json` over the stock connector's records, which carry their schema. The limit is Spark reading
our topic and doing nothing with it. Each topic has one partition, as the job reads it in one task,
and the three take turns.

All run in one JVM with its own defaults. The job's JVM does without the second compiler to stay
small; a peer whose parser runs there would be slowed to half, and ours much less.
"""

from __future__ import annotations

import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import psycopg
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from benchmarks import streaming
from benchmarks.result import Report, rate
from benchmarks.streaming import DEADLINE_S, INSERT, OURS, SIDES, STOCK, TABLE, say
from cdc.broker.topics.offsets import end_offsets
from cdc.postgres import catalog
from headwater.runtime.java.jars import ensure
from projections.changes.row_change import Applied
from projections.definition.views import MirrorView, Store
from projections.job import batch_writer
from projections.job.batch_writer import BatchWriter
from projections.job.record_columns import record_columns
from projections.job.spark.session import start_session
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import plan_views
from projections.stores.delta.arrow import rows_table, table_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.streaming import Capture
    from headwater.runtime import Endpoints
    from projections.changes.row_change import RowChange
    from projections.planning.view_plan import ViewPlan

NAIVE_RATIO: Final = 3.0
LIMIT_RATIO: Final = 0.5
LIMIT: Final = "limit"

_ROWS: Final = 300_000
_ROWS_QUICK: Final = 50_000
_TRANSACTION_ROWS: Final = 5_000
_ROUNDS: Final = 5
_ROUNDS_QUICK: Final = 3
_JAVA_OPTIONS: Final = "-Djava.net.preferIPv4Stack=true"
_ROW: Final = "id long, customer_id int, status string, total string, placed_at string, note string"
_SOURCE: Final = "ts_ms long, ts_us long, schema string, `table` string, txId long, lsn long"


class _Columns:
    """A store that only makes the columns which a table takes."""

    def __init__(self) -> None:
        self.made: list[pa.Table] = []

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Makes them."""
        self.made.append(rows_table(plan, changes))
        return Applied(upserted=len(changes))


@dataclass(frozen=True, slots=True)
class Decoder:
    """The job's writer, on a store that keeps nothing."""

    writer: BatchWriter

    def decode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the columns of the newest change of each key."""
        store = _Columns()
        batch_writer._sinks[self.writer.store, self.writer.addresses] = store  # type: ignore[assignment]  # noqa: SLF001
        for _ in self.writer.write(batches):
            pass
        for table in store.made:
            yield from table.to_batches()


def run(quick: bool) -> Report:
    """Measures; `quick` takes a sixth of the rows."""
    rows, rounds = (_ROWS_QUICK, _ROUNDS_QUICK) if quick else (_ROWS, _ROUNDS)
    with streaming.servers() as endpoints, tempfile.TemporaryDirectory() as folder:
        dsn, captures = _captured(endpoints, rows)
        spec = _spec(endpoints, dsn, captures[OURS], Path(folder))
        session = start_session(spec.config)
        try:
            frames = _frames(session, endpoints.kafka_bootstrap, captures, spec)
            checked = {_checksum(frames[side]) for side in SIDES} == {_expected(dsn)}
            seconds = _timed(frames, rounds)
        finally:
            session.stop()
    per_s = {name: rows / took_s for name, took_s in seconds.items()}
    return Report(
        "decode",
        checked,
        (
            rate(
                f"{rows:,} records into typed columns, records/s, beside from_json",
                ours=per_s[OURS],
                peer=per_s[STOCK],
                limit=per_s[LIMIT],
                target=NAIVE_RATIO,
            ),
            rate(
                "the same beside reading without parsing, records/s",
                ours=per_s[OURS],
                peer=per_s[LIMIT],
                limit=None,
                target=LIMIT_RATIO,
            ),
        ),
    )


def _captured(endpoints: Endpoints, rows: int) -> tuple[str, dict[str, Capture]]:
    dsn = streaming.make_database(endpoints, "decode")
    captures = {side: streaming.capture(endpoints, dsn, side, "decode") for side in SIDES}
    for found in captures.values():
        found.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for first in range(1, rows + 1, _TRANSACTION_ROWS):
            last = first + _TRANSACTION_ROWS - 1
            connection.execute(INSERT.format(first=first, last=last).encode())
    deadline = time.monotonic() + DEADLINE_S
    for found in captures.values():
        while sum(end_offsets(endpoints.kafka_bootstrap, [found.topic]).values()) < rows:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{found.topic} does not reach {rows} records")
            time.sleep(0.1)
        found.pause()
    return dsn, captures


def _spec(endpoints: Endpoints, dsn: str, capture: Capture, home: Path) -> JobSpec:
    view = MirrorView("orders", capture.spec.name, TABLE, (), frozenset([Store.TABLE]))
    with psycopg.connect(dsn) as connection:
        plans = plan_views([view], catalog.describe(connection, [TABLE]))
    return JobSpec(
        JobConfig(
            source=capture.spec.name,
            bootstrap=endpoints.kafka_bootstrap,
            source_dsn=dsn,
            slot=capture.spec.slot,
            home=home,
            cache_url="",
            search_url="",
            jars=tuple(ensure("spark", progress=False)),
            conf={"spark.driver.extraJavaOptions": _JAVA_OPTIONS},
            code=(Path(__file__).resolve().parents[1],),
        ),
        plans=plans,
    )


def _frames(
    session: SparkSession, bootstrap: str, captures: dict[str, Capture], spec: JobSpec
) -> dict[str, DataFrame]:
    def read(side: str) -> DataFrame:
        return (
            session.read.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", captures[side].topic)
            .option("includeHeaders", "true")
            .load()
        )

    records = record_columns(read(OURS))
    decoder = Decoder(
        BatchWriter(Store.TABLE, spec.plans, spec.config.addresses, spec.config.ledger)
    )
    return {
        OURS: records.mapInArrow(decoder.decode, from_arrow_schema(table_schema(spec.plans[0]))),
        STOCK: _naive(read(STOCK)),
        LIMIT: read(OURS).select("key", "value"),
    }


def _naive(records: DataFrame) -> DataFrame:
    row = StructType.fromDDL(_ROW)
    payload = (
        StructType()
        .add("before", row)
        .add("after", row)
        .add("source", StructType.fromDDL(_SOURCE))
        .add("op", "string")
    )
    parsed = fn.from_json(fn.col("value").cast("string"), StructType().add("payload", payload))
    unscaled = fn.conv(fn.hex(fn.unbase64("total")), 16, 10).cast("decimal(14,0)")
    return (
        records.select(parsed.alias("record"))
        .select("record.payload.op", "record.payload.source.lsn", "record.payload.after.*")
        .withColumn("total", (unscaled / 100).cast("decimal(12,2)"))
        .withColumn("placed_at", fn.to_timestamp("placed_at"))
    )


def _timed(frames: dict[str, DataFrame], rounds: int) -> dict[str, float]:
    """Returns the seconds of each, the median of its rounds; the first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in frames}
    for number in range(rounds + 1):
        for name, frame in frames.items():
            began = time.monotonic()
            frame.write.format("noop").mode("overwrite").save()
            took_s = time.monotonic() - began
            say(f"{name}: {took_s:.2f} s{'' if number else ' to warm up'}")
            if number:
                taken[name].append(took_s)
    return {name: median(of) for name, of in taken.items()}


def _checksum(frame: DataFrame) -> tuple[int, ...]:
    text = fn.concat_ws(
        "|", "id", "customer_id", "status", "total", fn.unix_micros("placed_at"), "note"
    )
    row = frame.agg(fn.count("*"), fn.sum(fn.crc32(text))).collect()[0]
    return tuple(row)


def _expected(dsn: str) -> tuple[int, ...]:
    query = (
        "SELECT concat_ws('|', id, customer_id, status, total,"
        " (extract(epoch FROM placed_at) * 1000000)::bigint, note) FROM orders"
    )
    with psycopg.connect(dsn) as connection, connection.cursor("rows") as cursor:
        cursor.itersize = 20_000
        sums = [zlib.crc32(text.encode()) for (text,) in cursor.execute(query)]
    return len(sums), sum(sums)
