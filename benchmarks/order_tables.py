"""Tables of orders, and the two usual ways to bring a batch of changes into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as fn

from benchmarks.order_feed import NAMES
from headwater.runtime.java.jars import ensure
from projections.job.spark.session import start_session
from projections.planning.job_config import JobConfig

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

_MERGE: Final = """
MERGE INTO delta.`{table}` AS t USING newest AS s ON t.id = s.id
WHEN MATCHED AND NOT s.live THEN DELETE
WHEN MATCHED THEN UPDATE SET
    customer = s.customer, price = s.price, status = s.status, note = s.note
WHEN NOT MATCHED AND s.live THEN INSERT
    (id, customer, price, status, note) VALUES (s.id, s.customer, s.price, s.status, s.note)
"""


def session(root: Path) -> SparkSession:
    """A session without a job; it has the compiler that the job's driver does without."""
    config = JobConfig.of_tables(
        "benchmark",
        root,
        tuple(ensure("spark", progress=False)),
        master="local[2]",
        driver_memory_mib=2048,
        conf={"spark.driver.extraJavaOptions": "-Djava.net.preferIPv4Stack=true"},
    )
    return start_session(config)


def merge_by_spark(spark: SparkSession, place: Path, path: Path) -> None:
    """What stands in the textbook's `foreachBatch`: each key's newest change, and a MERGE.

    Args:
        spark: A session.
        place: The table.
        path: A batch of an `OrderFeed`, in Parquet.
    """
    of_key = Window.partitionBy("id").orderBy(fn.desc("version"))
    changes = spark.read.parquet(str(path))
    newest = changes.withColumn("number", fn.row_number().over(of_key)).where("number = 1")
    newest.createOrReplaceTempView("newest")
    spark.sql(_MERGE.format(table=place))


def merge_by_deltalake(place: Path, path: Path, *, streamed: bool = True) -> None:
    """The same by `deltalake`.

    Args:
        place: The table.
        path: A batch of an `OrderFeed`, in Parquet.
        streamed: Whether the batch is read once, as `deltalake` does unless told otherwise; its
            statistics tell nothing of the files to leave alone then.
    """
    changes = pq.read_table(path)
    newest = changes.group_by("id").aggregate([("version", "max")])
    newest = newest.rename_columns({"version_max": "version"})
    values = {name: f"s.{name}" for name in NAMES}
    (
        DeltaTable(place)
        .merge(
            newest.join(changes, ["id", "version"], join_type="inner"),
            "t.id = s.id",
            source_alias="s",
            target_alias="t",
            streamed_exec=streamed,
        )
        .when_matched_delete("NOT s.live")
        .when_matched_update(values)
        .when_not_matched_insert(values, "s.live")
        .execute()
    )


def alike(spark: SparkSession, places: Iterable[Path]) -> bool:
    """Whether all tables have the same rows, each as often as the others."""
    first, *others = (
        spark.read.format("delta").load(str(place)).select(*NAMES) for place in places
    )
    return all(
        first.exceptAll(other).isEmpty() and other.exceptAll(first).isEmpty() for other in others
    )
