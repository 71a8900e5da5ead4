"""Fill of search and cache in tasks: newest records delivered to a store as live delivery does it.

Each write is guarded by the version of its row, like every write to these stores. A task may
therefore be repeated: a second write of a row has no effect. If a record does not result in one
whole row or one delete, or the store refuses it, its number is returned. The replay then delivers
it with all records of its key, and quarantines it if necessary.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from projections.archive.progress import rest
from projections.archive.rebuilding.plain_rows import READ, TAKEN_AT_ONCE, PlainChanges
from projections.changes.row_change import Applied
from projections.common.made_ahead import made_ahead
from projections.common.pooled_memory import pooled_memory
from projections.common.task_fence import TaskFence
from projections.common.throttle import FULL_PACE, Pace
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from projections.archive.fold import Integers
    from projections.archive.rebuilding.row_numbers import RowNumbers
    from projections.archive.scan import ArchiveScan
    from projections.changes.row_change import RowChange
    from projections.changes.sink import Sink
    from projections.changes.task_outcome import BlockedKeys
    from projections.common.task_files import TaskFiles
    from projections.planning.job_config import StoreAddresses
    from projections.planning.view_plan import ViewPlan

DELIVERED: Final = pa.schema(
    [("upserted", pa.int64()), ("deleted", pa.int64()), ("left", pa.list_(pa.int64()))]
)

WRITTEN_AT_ONCE: Final = 20_000
"""Changes of a write: at the end of each one, a store is idle for a while."""


@dataclass(frozen=True, slots=True)
class FillStore:
    """Delivers newest records of keys to search or the cache.

    Attributes:
        scan: The archive.
        plan: The view, in one store.
        topic: The topic.
        numbers: Numbers of the records.
        files: Where tasks store the results of finished pieces; see `TaskFence`.
        held: Quarantined keys, by view.
        addresses: Address of the store.
        pace: How fast the task works.
    """

    scan: ArchiveScan
    plan: ViewPlan
    topic: str
    numbers: RowNumbers
    files: TaskFiles
    held: Mapping[str, BlockedKeys]
    addresses: StoreAddresses
    pace: Pace = FULL_PACE
    result_schema: ClassVar = DELIVERED

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the pieces with these numbers."""
        with self.files.at_work(), delivery(self.plan, self.files, self.addresses) as store:
            yield from self.files.pieces(batches, DELIVERED, partial(self._piece, store))

    def _piece(self, store: TaskDelivery, number: int) -> dict[str, Any]:
        rows = self.numbers.of(number)
        throttle, unwritten, applied = self.pace.throttle(), list[int](), Applied()
        # most of the time, a store works while its client waits
        for changes, numbers in made_ahead(gathered(self._decoded(rows, unwritten))):
            applied += store.delivered(changes, numbers, unwritten)
            rest(throttle)
        return {"upserted": applied.upserted, "deleted": applied.deleted, "left": unwritten}

    def _decoded(
        self, rows: Integers, unwritten: list[int]
    ) -> Iterator[tuple[list[RowChange], Integers]]:
        reader = PlainChanges(self.plan, self.topic, self.held)
        first = 0
        for _, batch in self.scan.chosen(READ, rows):
            own = rows[first : first + batch.num_rows]
            first += batch.num_rows
            yield from decoded(reader, batch, own, unwritten)


@dataclass(frozen=True, slots=True)
class TaskDelivery:
    """The store of a task, and the fence that the task holds.

    Attributes:
        plan: The view, in one store.
        sink: The store.
        fence: Ends the task when its work is no longer needed.
    """

    plan: ViewPlan
    sink: Sink
    fence: TaskFence

    def taken(
        self, reader: PlainChanges, records: pa.RecordBatch, rows: Integers, unwritten: list[int]
    ) -> Iterator[Applied]:
        """Delivers records to the store.

        Args:
            reader: Decodes them.
            records: The records.
            rows: Their numbers.
            unwritten: Receives the numbers of records with another result, or that the store
                refuses.
        """
        for changes, numbers in decoded(reader, records, rows, unwritten):
            yield self.delivered(changes, numbers, unwritten)

    def delivered(self, changes: list[RowChange], rows: Integers, unwritten: list[int]) -> Applied:
        """Delivers changes, with the numbers of their records; see `taken`.

        Raises:
            ReplayStoppedError: The work of the task is no longer needed.
        """
        self.fence.check()
        applied = self.sink.apply(self.plan, changes)
        if applied.refused:
            refused = {id(each.change) for each in applied.refused}
            unwritten += [
                row
                for change, row in zip(changes, rows.tolist(), strict=True)
                if id(change) in refused
            ]
        return applied


def decoded(
    reader: PlainChanges, records: pa.RecordBatch, rows: Integers, unwritten: list[int]
) -> Iterator[tuple[list[RowChange], Integers]]:
    """Yields the changes of some records at a time, with the numbers of these; see `taken`."""
    for start in range(0, records.num_rows, TAKEN_AT_ONCE):
        piece = records.slice(start, TAKEN_AT_ONCE)
        own = rows[start : start + piece.num_rows]
        yield from reader.taken(piece, own, unwritten, lambda changes: changes)


def gathered(
    parts: Iterable[tuple[list[RowChange], Integers]],
) -> Iterator[tuple[list[RowChange], Integers]]:
    """Yields the same changes, about as many at a time as a store takes best."""
    changes: list[RowChange] = []
    numbers: list[Integers] = []
    for part, own in parts:
        changes += part
        numbers.append(own)
        if len(changes) >= WRITTEN_AT_ONCE:
            yield changes, np.concatenate(numbers)
            changes, numbers = [], []
    if changes:
        yield changes, np.concatenate(numbers)


@contextmanager
def delivery(plan: ViewPlan, files: TaskFiles, addresses: StoreAddresses) -> Iterator[TaskDelivery]:
    """Opens the store of a view for a task.

    Raises:
        ReplayStoppedError: The work of the task is no longer needed.
    """
    (store,) = plan.to
    fence = TaskFence(files.folder)
    with fence.task(), closing(open_sink(store, addresses)) as sink, pooled_memory():
        yield TaskDelivery(plan, sink, fence)
