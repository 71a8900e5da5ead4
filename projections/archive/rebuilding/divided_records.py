"""DividedRecords: reads the files of `divide_tasks`, one bucket of keys at a time.

BucketTask: what each task has that fills a view from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.rebuilding.divide_tasks import LEFT_KEY, PART, ROW, TOPIC
from projections.archive.survey import flags, integers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from projections.archive.fold import Integers
    from projections.changes.task_outcome import BlockedKeys
    from projections.common.task_files import TaskFiles
    from projections.common.throttle import Pace
    from projections.planning.view_plan import ViewPlan

PORTION_ROWS: Final = 150_000
"""Records that a task holds at a time; a key with more changes is left to the replay."""


@dataclass(frozen=True, slots=True)
class DividedRecords:
    """The records of a view's topics, divided by the hash of their keys.

    Attributes:
        files: Folder of the files of `DivideRecords`.
        names: Names of these files.
        buckets: Number of parts into which keys are divided.
        truncated: Version of the newest truncate among them; 0 if there is none.
    """

    files: TaskFiles
    names: tuple[str, ...]
    buckets: int
    truncated: int

    def portions(
        self, bucket: int, held: BlockedKeys | None, undivided: list[int]
    ) -> Iterator[pa.RecordBatch]:
        """Yields all records of some keys of a part, in the order of their topics.

        Args:
            bucket: The part.
            held: Quarantined keys of the view, which are left to the replay.
            undivided: Receives the numbers of the records of keys that are left to the replay.
        """
        of_key, keys = self._keys(bucket, held, undivided)
        for portion in range(int(of_key.max(initial=-1)) + 1):
            yield self._records(bucket, keys.filter(pa.array(of_key == portion)))

    def _keys(
        self, bucket: int, held: BlockedKeys | None, undivided: list[int]
    ) -> tuple[Integers, pa.Array]:
        """Divides keys into portions; returns the portion of each, and the keys."""
        records = pa.concat_tables(
            [pa.Table.from_batches([b]) for b in self._batches(bucket, (ROW, "key"))]
            or [pa.table({ROW: pa.array([], pa.int64()), "key": pa.array([], pa.string())})]
        )
        rows = integers(records[ROW].combine_chunks())
        coded = records["key"].combine_chunks().dictionary_encode()
        codes, keys = integers(coded.indices), coded.dictionary
        is_record = rows != LEFT_KEY
        counts = np.bincount(codes[is_record], minlength=len(keys))
        leaves = counts > PORTION_ROWS
        leaves[codes[~is_record]] = True
        if held is not None:
            waits = pa.array(sorted({*held.keys, *held.given_up}), pa.string())
            leaves |= flags(pc.is_in(keys, value_set=waits))
        undivided += rows[is_record & leaves[codes]].tolist()
        counts[leaves] = 0
        portions = np.maximum(np.cumsum(counts) - 1, 0) // PORTION_ROWS
        portions[leaves] = -1
        return portions, keys

    def _records(self, bucket: int, keys: pa.Array) -> pa.RecordBatch:
        """The records of some keys in the order of their topic."""
        parts = []
        for batch in self._batches(bucket, None):
            wanted = pc.is_in(batch.column("key"), value_set=keys)
            wanted = pc.and_(wanted, pc.not_equal(batch.column(ROW), LEFT_KEY))
            parts.append(batch.filter(wanted))
        table = pa.Table.from_batches(parts, PART)
        if not len(table):
            return pa.RecordBatch.from_pylist([], PART)
        order = [(TOPIC, "ascending"), ("partition", "ascending"), ("offset", "ascending")]
        return table.sort_by(order).combine_chunks().to_batches()[0]

    def _batches(self, bucket: int, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        fields = None if columns is None else [PART.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        for name in self.names:
            with pa.ipc.open_file(str(self.files.folder / name), options=options) as file:
                for number in range(bucket, file.num_record_batches, self.buckets):
                    batch = file.get_batch(number)
                    if batch.num_rows:
                        yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTask:
    """A task that processes all records of the keys of some buckets.

    Attributes:
        plan: The view.
        topics: Its topics.
        divided: Its records.
        first: The bucket of the first task.
        files: Where files of rows, or the results of finished pieces, are written.
        held: Quarantined keys, by view.
        pace: How fast the task works.
    """

    plan: ViewPlan
    topics: tuple[str, ...]
    divided: DividedRecords
    first: int
    files: TaskFiles
    held: Mapping[str, BlockedKeys]
    pace: Pace
