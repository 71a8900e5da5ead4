"""Fill in tasks: newest records decoded as live delivery decodes them, and given as rows.

A record goes through the same delivery as in a batch of the job, into a store that only takes what
it is given. What comes out as one whole row, or as one delete, is written; every other record is
named, and the replay delivers it itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from cdc.errors import CdcError
from projections.archive.records import COLUMNS, records
from projections.changes.applier import TaskApplier
from projections.changes.row_change import Applied
from projections.common.throttle import Throttle
from projections.errors import ProjectionError
from projections.stores.delta.arrow import keys_table, rows_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from projections.archive.scan import ArchiveScan
    from projections.changes.applier import Held
    from projections.changes.row_change import RowChange
    from projections.planning.view_plan import ViewPlan

_TAKEN_AT_ONCE: Final = 8_192
_NUMBERS: Final = pa.schema([("row", pa.int64())])


@dataclass(frozen=True, slots=True)
class FillRows:
    """Decodes newest records of keys.

    Attributes:
        scan: The archive.
        plan: The view.
        topic: The topic.
        rows: Numbers of the records, rising.
        cuts: Where each task begins in them, and where the last one ends.
        deletes: Whether they are deletes, of which the keys are given.
        held: What of the view waits already.
        share: Of its time, how much the task takes at most.
    """

    scan: ArchiveScan
    plan: ViewPlan
    topic: str
    rows: NDArray[np.int64]
    cuts: tuple[int, ...]
    deletes: bool
    held: Mapping[str, Held]
    share: float = 1.0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gives the rows of the table, or its deletes, of the tasks named by number."""
        for table, _ in self._pieces(batches):
            if table is not None:
                yield from table.combine_chunks().to_batches()

    def left(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gives the numbers of the records that `run` leaves out."""
        for _, numbers in self._pieces(batches):
            if len(numbers):
                yield pa.RecordBatch.from_arrays([pa.array(numbers)], schema=_NUMBERS)

    def _pieces(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[pa.Table | None, NDArray[np.int64]]]:
        throttle = Throttle(self.share)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = self.rows[self.cuts[number] : self.cuts[number + 1]]
                done = 0
                for _, found in self.scan.chosen(COLUMNS, rows):
                    for start in range(0, found.num_rows, _TAKEN_AT_ONCE):
                        piece = found.slice(start, _TAKEN_AT_ONCE)
                        yield from self._taken(piece, rows[done : done + piece.num_rows])
                        done += piece.num_rows
                        throttle.step()

    def _taken(
        self, piece: pa.RecordBatch, rows: NDArray[np.int64]
    ) -> Iterator[tuple[pa.Table | None, NDArray[np.int64]]]:
        """Decodes records together; where that does not give a row for each, in halves."""
        table = self._decoded(piece)
        if table is not None:
            yield table, rows[:0]
        elif len(rows) == 1:
            yield None, rows
        else:
            middle = len(rows) // 2
            yield from self._taken(piece.slice(0, middle), rows[:middle])
            yield from self._taken(piece.slice(middle), rows[middle:])

    def _decoded(self, piece: pa.RecordBatch) -> pa.Table | None:
        """The rows or deletes that records come to; None if any comes to something else."""
        given = _Given()
        delivery = TaskApplier([self.plan], lambda: given, self.held, changes_per_write=1 << 62)
        try:
            delivery.take(self.topic, records(piece))
            delivery.finish()
            if delivery.waiting or delivery.truncated or len(given.changes) != piece.num_rows:
                return None
            if any(self._other(change) for change in given.changes):
                return None
            convert = keys_table if self.deletes else rows_table
            return convert(self.plan, given.changes)
        except (CdcError, ProjectionError):
            return None  # the replay comes to the same error, and says what it is

    def _other(self, change: RowChange) -> bool:
        return (change.row is None) is not self.deletes or bool(change.kept)


class _Given:
    """A store that takes changes, and knows of none before."""

    def __init__(self) -> None:
        self.changes: list[RowChange] = []

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:  # noqa: ARG002
        self.changes += changes
        return Applied()

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:  # noqa: ARG002
        return [0] * len(changes)

    def __getattr__(self, name: str) -> Any:
        raise ProjectionError("a task takes rows only", detail=name)
