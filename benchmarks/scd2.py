"""A history kept in a Delta table, batch by batch, beside Delta's documented recipe in Spark.

Both begin with the same rows and take the same batches in turn, from the same Parquet files: skewed
keys, several changes of a key in a batch, deletes and rows that come again. The recipe is that of
Delta's documentation, a MERGE of the changes in union with themselves: once with their key, which
ends the current state, once without, which inserts the new one. As documented it takes one change
of a key; a window over the batch makes it right for several. It has a warm JVM, few partitions and
no bookkeeping; ours keeps every change beside the states as well. What both have at the end is
compared row by row, and with what the feed itself says.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as fn

from benchmarks.order_tables import session
from benchmarks.result import Report, faster
from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.stores.delta.history.sink import HistorySink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

RATIO: Final = 2.0

_ROWS: Final = 1_000_000
_ROWS_QUICK: Final = 50_000
_BATCHES: Final = 12
_BATCHES_QUICK: Final = 3
_CHANGES: Final = 10_000
_WARM: Final = 1
_SKEW: Final = 4
_DELETED: Final = 0.05
_LOADED_AT_ONCE: Final = 100_000
_EPOCH: Final = 1 << 56
_BEGINNING: Final = datetime(2026, 1, 1, tzinfo=UTC)
_COLUMNS: Final = (
    Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("customer", ColumnKind.INTEGER, "integer"),
    Column("price", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
    Column("status", ColumnKind.TEXT, "text"),
    Column("note", ColumnKind.TEXT, "text"),
)
_NAMES: Final = tuple(column.name for column in _COLUMNS)
_FEED: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.int32()),
        ("price", pa.decimal128(12, 2)),
        ("status", pa.string()),
        ("note", pa.string()),
        ("live", pa.bool_()),
        ("version", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
_SHOWN: Final = (*_NAMES, "valid_from", "valid_to", "is_current")
_MERGE: Final = """
MERGE INTO delta.`{table}` AS h USING staged AS s ON h.id = s.merge_id AND h.is_current
WHEN MATCHED THEN UPDATE SET is_current = false, valid_to = s.at
WHEN NOT MATCHED AND s.merge_id IS NULL THEN INSERT
    (id, customer, price, status, note, valid_from, valid_to, is_current)
    VALUES (s.id, s.customer, s.price, s.status, s.note, s.at, s.valid_to, s.valid_to IS NULL)
"""


@dataclass(slots=True)
class _Feed:
    """Makes changes as a source would, each at a time of its own."""

    rows: int
    random: random.Random
    number: int = 0

    def first(self) -> Iterator[pa.Table]:
        """Every row, as it was inserted."""
        for start in range(0, self.rows, _LOADED_AT_ONCE):
            keys = range(start, min(start + _LOADED_AT_ONCE, self.rows))
            yield self._table([self._change(key) for key in keys])

    def batch(self) -> pa.Table:
        """Changes of skewed keys, now and then a delete."""
        found = []
        for _ in range(_CHANGES):
            key = int(self.rows * self.random.random() ** _SKEW)
            found.append(self._change(key, live=self.random.random() >= _DELETED))
        return self._table(found)

    def _change(self, key: int, *, live: bool = True) -> dict[str, Any]:
        self.number += 1
        change: dict[str, Any] = {
            "id": key,
            "live": live,
            "version": _EPOCH | 8 * self.number,
            "at": _BEGINNING + timedelta(milliseconds=self.number),
        }
        if live:
            change |= {
                "customer": key % 9973,
                "price": Decimal(self.number).scaleb(-2),
                "status": ("placed", "paid", "sent")[self.number % 3],
                "note": f"the note of change {self.number} of order {key}, as long as notes are",
            }
        return change

    @staticmethod
    def _table(changes: list[dict[str, Any]]) -> pa.Table:
        return pa.Table.from_pylist(changes, schema=_FEED)


class _Ours:
    def __init__(self, root: Path) -> None:
        schema = TableSchema(TableName("public", "orders"), _COLUMNS, ("id",))
        kept = HistoryPlan(_NAMES)
        to = frozenset({Store.TABLE})
        self.plan = ViewPlan(
            "orders", "shop", "shop.public.orders", schema, ("id",), to, history=kept
        )
        self.place = root / "orders"
        self._sink = HistorySink(root)
        self._sink.prepare(self.plan)

    def take(self, path: Path) -> None:
        """Applies a batch."""
        self._sink.apply(self.plan, [_change(row) for row in pq.read_table(path).to_pylist()])


class _Recipe:
    def __init__(self, spark: SparkSession, place: Path, first: Path) -> None:
        self.place = place
        self._spark = spark
        rows = spark.read.parquet(str(first))
        (
            rows.select(
                *_NAMES,
                fn.col("at").alias("valid_from"),
                fn.lit(None).cast("timestamp").alias("valid_to"),
                fn.lit(True).alias("is_current"),
            )
            .write.format("delta")
            .save(str(place))
        )

    def take(self, path: Path) -> None:
        """Merges a batch."""
        of_key = Window.partitionBy("id").orderBy("version")
        changes = (
            self._spark.read.parquet(str(path))
            .withColumn("valid_to", fn.lead("at").over(of_key))
            .withColumn("number", fn.row_number().over(of_key))
        )
        ends = changes.where("number = 1").withColumn("merge_id", fn.col("id"))
        begins = changes.where("live").withColumn("merge_id", fn.lit(None).cast("long"))
        ends.unionByName(begins).createOrReplaceTempView("staged")
        self._spark.sql(_MERGE.format(table=self.place))


def run(quick: bool) -> Report:
    """Measures; `quick` takes a twentieth of the rows and fewer batches."""
    rows, batches = (_ROWS_QUICK, _BATCHES_QUICK) if quick else (_ROWS, _BATCHES)
    feed = _Feed(rows, random.Random(7))  # noqa: S311  # the same feed every time
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        root = Path(folder)
        spark = session(root)
        try:
            ours, recipe = _loaded(spark, root, feed)
            seconds: dict[str, list[float]] = {"ours": [], "recipe": []}
            for number in range(_WARM + batches):
                path = root / f"batch-{number}.parquet"
                pq.write_table(feed.batch(), path)
                for name, side in (("ours", ours), ("recipe", recipe)):
                    began = time.perf_counter()
                    side.take(path)
                    seconds[name].append(time.perf_counter() - began)
                _say(", ".join(f"{name} {took[-1]:.2f} s" for name, took in seconds.items()))
            shown = _shown(ours.place), _rows_of(spark, recipe.place)
            checked = shown[0].equals(shown[1]) and _follows(shown[0], root)
        finally:
            spark.stop()
    ours_s, recipe_s = (median(seconds[name][_WARM:]) for name in ("ours", "recipe"))
    _say(f"a batch of {_CHANGES:,}: {ours_s:.2f} s, the recipe {recipe_s:.2f} s")
    name = (
        f"seconds for {_CHANGES:,} changes into a history of {rows:,} keys, beside union and MERGE"
    )
    measure = faster(name, ours=ours_s, peer=recipe_s, limit=None, target=RATIO)
    return Report("scd2", checked, (measure,))


def _loaded(spark: SparkSession, root: Path, feed: _Feed) -> tuple[_Ours, _Recipe]:
    """Both sides with the same first rows."""
    first = root / "first"
    first.mkdir()
    ours = _Ours(root / "tables")
    began = time.perf_counter()
    for number, rows in enumerate(feed.first()):
        path = first / f"{number:03}.parquet"
        pq.write_table(rows, path)
        ours.take(path)
    _say(f"{feed.rows:,} first rows: {time.perf_counter() - began:.0f} s")
    return ours, _Recipe(spark, root / "recipe", first)


def _change(row: dict[str, Any]) -> RowChange:
    at_us = (row["at"] - _BEGINNING) // timedelta(microseconds=1) + _BEGINNING_US
    values = {name: row[name] for name in _NAMES} if row["live"] else None
    return RowChange((row["id"],), row["version"], values, at_us)


_BEGINNING_US: Final = int(_BEGINNING.timestamp()) * 1_000_000


def _shown(place: Path) -> pa.Table:
    table = DeltaTable(str(place)).to_pyarrow_dataset().to_table(columns=list(_SHOWN))
    return _ordered(table)


def _rows_of(spark: SparkSession, place: Path) -> pa.Table:
    return _ordered(spark.read.format("delta").load(str(place)).select(*_SHOWN).toArrow())


def _ordered(table: pa.Table) -> pa.Table:
    times = {name: pa.timestamp("us", "UTC") for name in ("valid_from", "valid_to")}
    schema = pa.schema([pa.field(f.name, times.get(f.name, _plain(f.type))) for f in table.schema])
    return table.cast(schema).sort_by([("id", "ascending"), ("valid_from", "ascending")])


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_large_string(kind) else kind


def _follows(shown: pa.Table, root: Path) -> bool:
    """Whether there is a state for every row that the feed ever gave, and one current at most."""
    files = [*sorted((root / "first").iterdir()), *root.glob("batch-*.parquet")]
    given = pa.concat_tables([pq.read_table(path, columns=["id", "live"]) for path in files])
    live = pc.sum(given["live"].cast(pa.int64())).as_py()
    current = shown.filter(shown["is_current"])["id"]
    return bool(shown.num_rows == live and pc.count_distinct(current).as_py() == len(current))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
