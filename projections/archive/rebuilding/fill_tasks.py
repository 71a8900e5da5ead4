"""Fill in tasks: newest records decoded as live delivery decodes them, and stored as rows.

If a record results in one whole row or one delete, that is stored for the commit. The numbers of
all other records are returned, and the replay delivers them itself; see `plain_rows`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from projections.archive.progress import rest
from projections.archive.rebuilding.plain_rows import READ, PlainRowDecoder
from projections.common.pooled_memory import pooled_memory
from projections.common.throttle import FULL_PACE, Pace
from projections.stores.delta.arrow import deletes_schema, table_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from projections.archive.rebuilding.row_numbers import RowNumbers
    from projections.archive.scan import ArchiveScan
    from projections.changes.task_outcome import BlockedKeys
    from projections.common.task_files import TaskFiles
    from projections.planning.view_plan import ViewPlan

FILLED: Final = pa.schema(
    [
        ("rows_file", pa.string()),
        ("upserted", pa.int64()),
        ("deletes_file", pa.string()),
        ("deleted", pa.int64()),
        ("left", pa.list_(pa.int64())),
    ]
)
"""A task's result: its files, the number of rows in each, and the numbers of unwritten records."""


@dataclass(frozen=True, slots=True)
class FillRows:
    """Decodes newest records of keys.

    Attributes:
        scan: The archive.
        plan: The view.
        topic: The topic.
        numbers: Numbers of the records.
        files: Where files of rows are written.
        held: Quarantined keys, by view.
        pace: How fast the task works.
    """

    scan: ArchiveScan
    plan: ViewPlan
    topic: str
    numbers: RowNumbers
    files: TaskFiles
    held: Mapping[str, BlockedKeys]
    pace: Pace = FULL_PACE
    result_schema: ClassVar = FILLED

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the pieces with these numbers."""
        with self.files.at_work(), pooled_memory():
            yield from self.files.pieces(batches, FILLED, self._piece)

    def _piece(self, number: int) -> dict[str, Any]:
        rows = self.numbers.of(number)
        throttle, unwritten = self.pace.throttle(), list[int]()
        schemas = table_schema(self.plan), deletes_schema(self.plan)
        counts = [0, 0]
        decoder = PlainRowDecoder(self.plan, self.topic, self.held)
        with ExitStack() as stack:
            made = [stack.enter_context(self.files.writing(schema)) for schema in schemas]
            first = 0
            for _, batch in self.scan.chosen(READ, rows):
                own = rows[first : first + batch.num_rows]
                first += batch.num_rows
                for part in decoder.parts(batch, own, unwritten):
                    for of, table in enumerate(part):
                        made[of][1].write_table(table)
                        counts[of] += table.num_rows
                    rest(throttle)
        names = [name for name, _ in made]
        return dict(
            zip(FILLED.names, [names[0], counts[0], names[1], counts[1], unwritten], strict=True)
        )
