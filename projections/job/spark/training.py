"""Does on a small scale what a job does, without a server, so that its JVM loads a job's classes.

Run as a program by `class_archive.make`, with a folder to work in, the archive, the home of Java
and the jars.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from projections.job.spark.session import JAVA_OPTIONS, start_session
from projections.planning.job_config import JobConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_MERGES: Final = 2
_JVM_END_S: Final = 300
_FEED: Final = "'delta.enableChangeDataFeed' = 'true'"
_TABLE: Final = (
    f"CREATE TABLE delta.`{{}}` (id BIGINT, note STRING, at TIMESTAMP, price DECIMAL(12, 2))"
    f" USING delta TBLPROPERTIES ({_FEED})"
)
_MERGE: Final = (
    "MERGE INTO delta.`{}` t USING changes s ON t.id = s.id WHEN MATCHED AND s.id = 2 THEN DELETE"
    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
_DERIVED: Final = """
SELECT t.note, count(*) AS n, sum(t.price) AS total, max(t.at) AS latest,
       array_sort(collect_list(struct(t.id, t.price))) AS rows
FROM source t LEFT JOIN source o ON o.id = t.id + 1 AND o.note IS NOT NULL
WHERE t.id IN (SELECT id FROM source) GROUP BY t.note
"""


def train(spark: SparkSession, folder: Path) -> None:
    """Writes tables, merges, reads them back and their changes, and streams.

    Args:
        spark: A session with a job's settings.
        folder: An empty folder.
    """
    table, view = folder / "table", folder / "view"
    spark.sql(_TABLE.format(table))
    for number in range(_MERGES):
        _changes(spark, number).createOrReplaceTempView("changes")
        spark.sql(_MERGE.format(table))
    spark.read.format("delta").load(str(table)).createOrReplaceTempView("source")
    spark.sql(_DERIVED).write.format("delta").save(str(view))
    changes = spark.read.format("delta").option("readChangeFeed", "true")
    changes.option("startingVersion", 1).load(str(table)).collect()
    lines = spark.range(9).selectExpr("id % 2 AS part", "to_json(struct(id)) AS value")
    lines.write.partitionBy("part").parquet(str(folder / "lines"))
    _stream(spark, table, folder)


def _changes(spark: SparkSession, number: int) -> DataFrame:
    return spark.range(number, number + 5).selectExpr(
        "id", "concat('n', id % 3) AS note", "now() AS at", "cast(id AS DECIMAL(12, 2)) AS price"
    )


def _stream(spark: SparkSession, table: Path, folder: Path) -> None:
    def passed_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def write(batch: DataFrame, number: int) -> None:
        batch.repartition(1).mapInArrow(passed_on, batch.schema).persist().collect()
        batch.withColumn("batch", batch.id + number).write.mode("append").parquet(
            str(folder / "appended")
        )

    stream = spark.readStream.format("delta").option("ignoreChanges", "true").load(str(table))
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    query.stop()


def main(words: list[str]) -> int:
    """Trains a session and waits until its JVM has written the archive."""
    folder, archive, java_home, *jars = map(Path, words)
    options = f'{JAVA_OPTIONS} "-XX:ArchiveClassesAtExit={archive}"'
    config = JobConfig.of_tables(
        "training",
        folder,
        tuple(jars),
        master="local[2]",
        java_home=java_home,
        conf={"spark.driver.extraJavaOptions": options},
    )
    session = start_session(config)
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001  # its process has no other name
    train(session, folder)
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_JVM_END_S)
    if not archive.is_file():
        sys.stderr.write("Java ended without writing the archive\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
