"""Views of events in tasks: the rows of some keys, from all records of these.

An event is in the table of events or in that of archived ones, and a snapshot may have read it in
either: its newest record makes its row, as in live delivery. An event is left to the replay with
all its records if the division has said so, if its newest record does not come to one whole row,
or if it waits in quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from projections.archive.survey import integers, versions_of
from projections.common.throttle import Throttle
from projections.errors import ReplayError
from projections.job.rebuilding.block_tasks import pooled_memory
from projections.job.rebuilding.divide_tasks import ROW, TOPIC
from projections.job.rebuilding.fill_tasks import PlainChanges
from projections.stores.delta.arrow import rows_table, table_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from projections.archive.fold import Integers
    from projections.changes.task_outcome import BlockedKeys
    from projections.job.rebuilding.divided_records import DividedRecords
    from projections.job.rebuilding.task_files import TaskFiles
    from projections.planning.view_plan import ViewPlan

EVENTS: Final = pa.schema(
    [
        ("rows_file", pa.string()),
        ("upserted", pa.int64()),
        ("deleted", pa.int64()),
        ("left", pa.list_(pa.int64())),
    ]
)
EVENTS_DDL: Final = "rows_file string, upserted bigint, deleted bigint, left array<bigint>"

_TAKEN_AT_ONCE: Final = 8_192


@dataclass(frozen=True, slots=True)
class FillEvents:
    """Makes the rows of the events of some hashes.

    Attributes:
        plan: The view.
        topics: Its topics.
        divided: Its records.
        first: The part that the first task takes.
        code: Digest of the code that makes the rows; see `EventForm.code`.
        files: Where rows are put aside.
        held: What of the view waits already.
        share: Of its time, how much the task takes at most.
    """

    plan: ViewPlan
    topics: tuple[str, ...]
    divided: DividedRecords
    first: int
    code: str
    files: TaskFiles
    held: Mapping[str, BlockedKeys]
    share: float = 1.0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Does the tasks named by number.

        Raises:
            FaultError: The classes of the events are others in this process; see `TaskFiles`.
        """
        with self.files.at_work(), pooled_memory():
            self._check()
            yield from self.files.pieces(batches, EVENTS, self._bucket)

    def _check(self) -> None:
        """Makes sure that this process has the classes that the view was bound to.

        They come by the name of their module, which a process that has run for long may have
        imported before it was edited.
        """
        events = self.plan.events
        if events is None or events.form.code != self.code:
            raise ReplayError(
                "the job has other classes of the events",
                hint="headwater up restarts the job with the edited ones",
            )

    def _bucket(self, number: int) -> dict[str, Any]:
        throttle, left = Throttle(self.share), list[int]()
        held, upserted = self.held.get(self.plan.name), 0
        with self.files.writing(table_schema(self.plan)) as (name, file):
            for records in self.divided.portions(self.first + number, held, left):
                for rows in self._rows(records, left):
                    file.write_table(rows)
                    upserted += rows.num_rows
                    throttle.step()
        return dict(zip(EVENTS.names, [name, upserted, 0, left], strict=True))

    def _rows(self, records: pa.RecordBatch, left: list[int]) -> Iterator[pa.Table]:
        """Makes the rows of the newest records of keys."""
        coded = records.column("key").dictionary_encode()
        codes, failed = integers(coded.indices), list[int]()
        newest = newest_of(codes, versions_of(records))
        of_topic = integers(records.column(TOPIC))[newest]
        for number, topic in enumerate(self.topics):
            own = newest[of_topic == number]
            reader = PlainChanges(self.plan, topic, self.held, planned_keys=True)
            for start in range(0, len(own), _TAKEN_AT_ONCE):
                places = own[start : start + _TAKEN_AT_ONCE]
                piece = records.take(pa.array(places))
                for rows, _ in reader.taken(
                    piece, places, failed, lambda changes: rows_table(self.plan, changes)
                ):
                    yield rows
        if failed:
            fails = np.zeros(len(coded.dictionary), np.bool_)
            fails[codes[failed]] = True
            left += integers(records.column(ROW))[fails[codes]].tolist()


def newest_of(codes: Integers, versions: Integers) -> Integers:
    """Returns the places of the newest records of each key; the first of equal ones.

    Args:
        codes: Keys of records as numbers, in the order of their topics.
        versions: Their versions.
    """
    order = np.lexsort((np.arange(len(codes)), -versions, codes))
    ordered = codes[order]
    firsts = np.ones(len(order), np.bool_)
    firsts[1:] = ordered[1:] != ordered[:-1]
    return np.sort(order[firsts])
