"""The latest rows kept in a Delta table, batch by batch, beside the two usual ways to do it.

All three begin with the same rows and take the same batches in turn, from the same Parquet files:
skewed keys, several changes of a key in a batch, deletes, keys that are new. The peers are the
textbook's: in Spark, what stands in a `foreachBatch`, a window that leaves the newest change of a
key, and a MERGE; in Python, the same reduction and a merge by `deltalake`. They have a warm JVM,
few partitions and no bookkeeping. Ours also keeps each row's position, remembers deletes, compacts
and vacuums. What the three have after all batches is compared row by row before a figure counts.
`HEADWATER_SCD1_ROWS` takes another number of rows.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from benchmarks.order_feed import (
    CHANGES,
    EPOCH,
    LOADED_AT_ONCE,
    NAMES,
    ROW,
    OrderFeed,
)
from benchmarks.order_tables import alike, merge_by_deltalake, merge_by_spark, session
from benchmarks.result import Measure, Report, faster
from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.planning.view_plan import ViewPlan
from projections.stores.delta.arrow import deletes_schema, table_schema
from projections.stores.delta.table_format import COMPACTED_BYTES, CONFIGURATION
from projections.stores.delta.table_sink import TableSink
from tests.oracles.sink_contract import latest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SPARK_RATIO: Final = 3.0
RUST_RATIO: Final = 1.5

_ROWS: Final = 10_000_000
_ROWS_QUICK: Final = 100_000
_BATCHES: Final = 7
_BATCHES_QUICK: Final = 2
_WARM: Final = 1
_COLUMNS: Final = (
    Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("customer", ColumnKind.INTEGER, "integer"),
    Column("price", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
    Column("status", ColumnKind.TEXT, "text"),
    Column("note", ColumnKind.TEXT, "text"),
)


class _Side(Protocol):
    place: Path

    def take(self, path: Path) -> None:
        """Applies a batch."""
        ...


class _Ours:
    def __init__(self, root: Path, first: Path) -> None:
        schema = TableSchema(TableName("public", "orders"), _COLUMNS, ("id",))
        to = frozenset({Store.TABLE})
        self.plan = ViewPlan("orders", "shop", "shop.public.orders", schema, ("id",), to)
        self.place = root / "orders"
        self._load(first)
        self._sink = TableSink(root)
        self._sink.prepare(self.plan)

    def _load(self, first: Path) -> None:
        """As a new view's table is filled from the source."""
        loaded = table_schema(self.plan)

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in pq.ParquetFile(first).iter_batches(LOADED_AT_ONCE):
                version = pa.array([EPOCH] * batch.num_rows, pa.int64())
                columns = [*batch.columns, version]
                yield pa.RecordBatch.from_arrays(columns, schema=loaded)

        DeltaTable.create(str(self.place), loaded, configuration=dict(CONFIGURATION))
        deletes = deletes_schema(self.plan)
        DeltaTable.create(f"{self.place}.deleted", deletes, configuration=dict(CONFIGURATION))
        reader = pa.RecordBatchReader.from_batches(loaded, batches())
        write_deltalake(self.place, reader, mode="append", target_file_size=COMPACTED_BYTES)

    def take(self, path: Path) -> None:
        """Applies a batch."""
        changes = [
            RowChange(
                (row["id"],),
                row["version"],
                {name: row[name] for name in NAMES} if row["live"] else None,
                0,
            )
            for row in pq.read_table(path).to_pylist()
        ]
        self._sink.apply(self.plan, latest(changes))


class _Spark:
    def __init__(self, spark: SparkSession, place: Path, first: Path) -> None:
        self.place = place
        self._spark = spark
        spark.read.parquet(str(first)).write.format("delta").save(str(place))

    def take(self, path: Path) -> None:
        """Merges a batch."""
        merge_by_spark(self._spark, self.place, path)


class _Rust:
    def __init__(self, place: Path, first: Path) -> None:
        self.place = place
        batches = pq.ParquetFile(first).iter_batches(LOADED_AT_ONCE)
        write_deltalake(place, pa.RecordBatchReader.from_batches(ROW, batches))

    def take(self, path: Path) -> None:
        """Merges a batch."""
        merge_by_deltalake(self.place, path)


def run(quick: bool) -> Report:
    """Measures; `quick` takes a hundredth of the rows and fewer batches."""
    rows, batches = (_ROWS_QUICK, _BATCHES_QUICK) if quick else (_ROWS, _BATCHES)
    rows = int(os.environ.get("HEADWATER_SCD1_ROWS", rows))
    feed = OrderFeed(rows, random.Random(7))  # noqa: S311  # the same feed every time
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        root = Path(folder)
        spark = session(root)
        try:
            sides = _loaded(spark, root, feed)
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(_WARM + batches):
                path = root / f"batch-{number}.parquet"
                pq.write_table(feed.batch(), path)
                for name, side in sides.items():
                    began = time.perf_counter()
                    side.take(path)
                    seconds[name].append(time.perf_counter() - began)
                _say(", ".join(f"{name} {took[-1]:.2f} s" for name, took in seconds.items()))
            checked = alike(spark, [side.place for side in sides.values()])
        finally:
            spark.stop()
    took = {name: median(each[_WARM:]) for name, each in seconds.items()}
    return Report("scd1", checked, _measures(took, rows))


def _measures(took: dict[str, float], rows: int) -> tuple[Measure, ...]:
    name = f"seconds for {CHANGES:,} changes into a table of {rows:,} rows, beside"
    spark, rust = f"{name} foreachBatch and MERGE", f"{name} a merge by deltalake"
    ours = took["ours"]
    return (
        faster(spark, ours=ours, peer=took["spark"], limit=None, target=SPARK_RATIO),
        faster(rust, ours=ours, peer=took["deltalake"], limit=None, target=RUST_RATIO),
    )


def _loaded(spark: SparkSession, root: Path, feed: OrderFeed) -> dict[str, _Side]:
    """All sides with the same first rows."""
    first = root / "first.parquet"
    began = time.perf_counter()
    with pq.ParquetWriter(first, ROW) as writer:
        for rows in feed.first():
            writer.write_table(rows)
    sides: dict[str, _Side] = {
        "ours": _Ours(root / "tables", first),
        "spark": _Spark(spark, root / "spark", first),
        "deltalake": _Rust(root / "deltalake", first),
    }
    _say(f"{feed.rows:,} first rows, three times: {time.perf_counter() - began:.0f} s")
    return sides


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
