"""Block tasks: the first tasks of a rebuild, which read blocks and write files for the second ones.

Keys are divided by their hash: each file of a first task has a batch for every bucket of hashes,
and a second task reads all batches of its bucket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np
import pyarrow as pa

from projections.common.pooled_memory import pooled_memory
from projections.common.throttle import FULL_PACE, Pace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter
    from projections.common.task_files import TaskFiles
    from projections.common.throttle import Throttle


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTask(ABC):
    """A task that reads blocks of an archive.

    Attributes:
        scan: The archive.
        taken: The filter of records.
        groups: Numbers of the first block of each task, and of the one after its last.
        buckets: Number of parts into which keys are divided by their hash.
        files: Where it writes.
        pace: How fast the task works.
        result_schema: Schema of the result for a group.
    """

    scan: ArchiveScan
    taken: RecordFilter
    groups: tuple[tuple[int, int], ...]
    buckets: int
    files: TaskFiles
    pace: Pace = FULL_PACE
    result_schema: ClassVar[pa.Schema]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the groups with these numbers; yields the result of `group` for each."""
        throttle = self.pace.throttle()

        def result_of(number: int) -> Mapping[str, Any]:
            return self.group(*self.groups[number], throttle)

        with self.files.at_work(), pooled_memory():
            yield from self.files.pieces(batches, self.result_schema, result_of)

    @abstractmethod
    def group(self, first: int, end: int, throttle: Throttle) -> Mapping[str, Any]:
        """Processes one group of blocks.

        Args:
            first: Number of its first block.
            end: Number of the one after its last.
            throttle: Called at intervals, to pause the task.
        """


class Buckets:
    """Writes rows by the hash of their keys.

    Args:
        file: The file.
        buckets: Number of parts into which they are divided.
    """

    def __init__(self, file: pa.RecordBatchFileWriter, buckets: int) -> None:
        self._file = file
        self._buckets = buckets

    def write(self, rows: pa.Table) -> None:
        """Writes one batch for each part, whether or not it has rows; `key` is their key."""
        keys = rows["key"].cast(pa.binary()).fill_null(b"").to_pylist()
        of_bucket = np.fromiter(map(crc32, keys), np.int64, len(keys)) % self._buckets
        order = np.argsort(of_bucket, kind="stable")
        ends = np.searchsorted(of_bucket[order], np.arange(1, self._buckets + 1))
        rows, begin = rows.take(pa.array(order)), 0
        for end in ends.tolist():
            part = rows.slice(begin, end - begin).combine_chunks().to_batches()
            self._file.write_batch(part[0] if part else pa.RecordBatch.from_pylist([], rows.schema))
            begin = end
