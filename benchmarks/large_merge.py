"""What one task writes of a large batch into a Delta table, beside Spark's MERGE of the same rows.

A backlog is decoded by many tasks and written by one, through `deltalake`, which uses all cores of
its machine. Spark's MERGE divides the write as well. Both have the same rows before and get the
same batches, each with the newest row or delete of a key; ours is the write of the job, which also
keeps positions and records deletes, while the peer does neither. Its session has Java's usual
compilers, is warm, and is given the number of partitions that suits it. What both have at the end
is compared row by row before a figure counts.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import write_deltalake

from benchmarks.change_archive import PLAN
from benchmarks.order_feed import EPOCH, ROW, OrderFeed
from benchmarks.order_tables import alike, merge_by_spark, session
from benchmarks.result import Report, rate
from benchmarks.streaming import say
from projections.definition.views import Store
from projections.stores.delta.arrow import deletes_schema, table_schema
from projections.stores.delta.sink import WarehouseSink
from projections.stores.delta.table_format import COMPACTED_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATIO: Final = 1.0

_ROWS: Final = 2_000_000
_ROWS_QUICK: Final = 200_000
_ROWS_PER_CHANGE: Final = 5
_DELETES_IN: Final = 20
_BATCHES: Final = 4
_ORDERS: Final = replace(PLAN, to=frozenset([Store.TABLE]))


@dataclass(slots=True)
class _Side:
    """What one side took for each batch but the first."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def run(quick: bool) -> Report:
    """Measures; `quick` takes a tenth of the rows."""
    rows = _ROWS_QUICK if quick else _ROWS
    changes = rows // _ROWS_PER_CHANGE
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        root = Path(folder)
        spark = session(root)
        try:
            sides, right = _measured(spark, root, rows, changes)
        finally:
            spark.stop()
    ours, peer = sides["ours"], sides["Spark's MERGE"]
    name = f"{changes:,} changed keys into a table of {rows:,} rows"
    return Report(
        "large_merge",
        right,
        (
            rate(
                f"{name}, keys/s, beside Spark's MERGE",
                ours=changes / median(ours.seconds),
                peer=changes / median(peer.seconds),
                limit=None,
                target=RATIO,
            ),
            rate(
                "the same, keys per second of processor time",
                ours=changes / median(ours.cpu_s),
                peer=changes / median(peer.cpu_s),
                limit=None,
                target=RATIO,
            ),
        ),
    )


def _measured(
    spark: SparkSession, root: Path, rows: int, changes: int
) -> tuple[dict[str, _Side], bool]:
    tables = root / "tables"
    tables.mkdir()
    sink = WarehouseSink(tables)
    sink.prepare(_ORDERS)
    own, peer = tables / _ORDERS.name, root / "peer"
    for first in OrderFeed(rows, random.Random(7)).first():  # noqa: S311  # the same every time
        versions = pa.array(np.full(first.num_rows, EPOCH), pa.int64())
        ours = first.append_column("_version", versions).cast(table_schema(_ORDERS))
        for place, table in ((own, ours), (peer, first)):
            write_deltalake(place, table, mode="append", target_file_size=COMPACTED_BYTES)
    sides = {"ours": _Side(), "Spark's MERGE": _Side()}
    for number in range(_BATCHES):
        path = root / f"batch-{number}.parquet"
        batch = _batch(rows, changes, number + 1)
        pq.write_table(batch, path)
        ways = {
            "ours": partial(_merged, sink, batch),
            "Spark's MERGE": partial(merge_by_spark, spark, peer, path),
        }
        for name in sides if number % 2 else reversed(sides):
            cpu_s, began = _cpu_s(), time.monotonic()
            ways[name]()
            took_s, took_cpu_s = time.monotonic() - began, _cpu_s() - cpu_s
            say(f"{name}: {took_s:.2f} s, {took_cpu_s:.2f} s of processor time")
            if number:  # the first warms both
                sides[name].seconds.append(took_s)
                sides[name].cpu_s.append(took_cpu_s)
    sink.close()
    return sides, alike(spark, [own, peer])


def _batch(rows: int, changes: int, number: int) -> pa.Table:
    """The newest row or delete of some keys: one in twenty is deleted, as many come back."""
    keys = np.random.default_rng(number).choice(rows, changes, replace=False)
    live = np.arange(changes) % _DELETES_IN > 0
    notes = pa.array([f"the note of change {number} of order {key}" for key in keys.tolist()])
    return pa.table(
        {
            "id": pa.array(keys),
            "customer": pa.array(keys % 9973, pa.int32()),
            "price": pa.array(keys % 1000, pa.int32()).cast(pa.decimal128(12, 2)),
            "status": pa.array(np.full(changes, "paid", dtype=object), pa.string()),
            "note": notes,
            "live": pa.array(live),
            "version": pa.array(np.full(changes, EPOCH | 8 * number), pa.int64()),
        }
    )


def _merged(sink: WarehouseSink, batch: pa.Table) -> None:
    """Writes a batch as the job writes one that was decoded by columns."""
    named = batch.rename_columns([*ROW.names, "live", "_version"])
    live = named["live"]
    gone = named.filter(pc.invert(live)).select(deletes_schema(_ORDERS).names)
    rows = named.filter(live).select(table_schema(_ORDERS).names)
    sink.apply_rows(_ORDERS, rows.cast(table_schema(_ORDERS)), gone.cast(deletes_schema(_ORDERS)))


def _cpu_s() -> float:
    """Returns the processor time of this process and its children so far."""
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)
