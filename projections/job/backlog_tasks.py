"""BacklogTasks: lets many tasks read a large batch of the tables, before one of them writes it.

The batch is divided at offsets into pieces. Each task reads some of them, and stores what it has
read in a folder of that batch; the writing task takes all in the order of their offsets. A task
that is repeated writes another file, which counts instead of the first. Nothing of the batch is in
the tables before all have ended.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from projections.common.fault import FaultError
from projections.common.task_files import TaskFiles, disk_full
from projections.job.backlog_reader import BacklogReader, space_error
from projections.job.batch_writer import LARGE_RECORDS
from projections.job.plain_topic import topic_readers
from projections.job.record_runs import PIECE
from projections.job.spark.task_runs import tasks_at_once
from projections.job.stored_runs import STORED_DDL, StoredRun, StoredRuns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from cdc.broker.topics.extent import PartitionId
    from projections.job.batch_writer import BatchWriter

PIECE_RECORDS: Final = 50_000
"""Most records of a piece: few enough for ten tasks to share the largest batch."""

TASKS_MIN: Final = 3
"""Tasks from which on reading apart pays. Two on two cores are as fast as the writing task alone,
for 13 % more processor time and 300 MiB more memory."""

_GROUPS_MAX: Final = 64
_FOLDER: Final = ".backlog"


@dataclass(frozen=True, slots=True)
class BacklogTasks:
    """The reading tasks of one source's large batches.

    Args:
        folder: Where the files of batches are; of this source alone, beside its tables.
    """

    folder: Path

    @classmethod
    def of(cls, tables: Path, source: str) -> BacklogTasks:
        """Returns those of a source."""
        return cls(tables / _FOLDER / source)

    def clear(self) -> None:
        """Removes the files of earlier batches, as the only driver of the source."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def read(
        self, batch: DataFrame, writer: BatchWriter, sizes: Mapping[PartitionId, int]
    ) -> Iterator[StoredRuns | None]:
        """Reads a batch if it is large and tasks are free; else yields None: the writer reads it.

        Args:
            batch: The batch, uncoalesced.
            writer: Its writer, with the quarantined keys.
            sizes: How many records it has at most, by partition.

        Raises:
            FaultError: The disk is full.
        """
        readable = _readable(writer, sizes)
        tasks = tasks_at_once(batch.sparkSession) if readable > LARGE_RECORDS else 1
        if tasks < TASKS_MIN:
            yield None
            return
        self.clear()
        files = self._files()
        try:
            reader = BacklogReader(writer.plans, writer.held, files)
            pieces = batch.withColumn(PIECE, fn.spark_partition_id())
            share = pieces.coalesce(groups(sizes, tasks)).mapInArrow(reader.read, STORED_DDL)
            runs = tuple(StoredRun(*row) for row in share.collect())
            yield StoredRuns(files.folder, runs)
        finally:
            files.remove()  # no others: a query that began meanwhile may have made them

    def _files(self) -> TaskFiles:
        try:
            return TaskFiles.made(self.folder)
        except OSError as error:
            if disk_full(error):
                raise FaultError(space_error(self.folder)) from None
            raise


def groups(sizes: Mapping[PartitionId, int], tasks: int) -> int:
    """Returns into how many groups of consecutive pieces a batch is divided.

    There are as many as tasks if most pieces are full, or hardly one. If a few large partitions are
    among hundreds of small ones, no group has more full pieces than one task's share of them.

    Args:
        sizes: Records of each partition.
        tasks: How many tasks run at once.
    """
    pieces = sum(-(-size // PIECE_RECORDS) for size in sizes.values())
    full = sum(size // PIECE_RECORDS for size in sizes.values())
    if full * 2 >= pieces or full <= 1:
        return min(pieces, tasks)
    share = -(-full // tasks)
    return max(tasks, min(-(-pieces // share), _GROUPS_MAX))


def _readable(writer: BatchWriter, sizes: Mapping[PartitionId, int]) -> int:
    """Returns how many records of a batch can be read by columns."""
    if sum(sizes.values()) <= LARGE_RECORDS:
        return 0
    readers = topic_readers(writer.plans, writer.held)
    return sum(size for (topic, _), size in sizes.items() if readers.get(topic) is not None)
