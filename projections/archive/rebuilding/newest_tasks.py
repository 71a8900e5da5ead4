"""Newest rows in tasks: the rows of some keys, from all records of these keys.

A row may have records in several topics: those of its table's former names, or of the table of
events and that of archived ones. Its newest record determines it, as in live delivery; some of its
times are from other records, see `row_times`. All records of a key are left to the replay if the
division determined that, if the newest one does not result in one whole row or one delete, or if
the key is quarantined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import numpy as np
import pyarrow as pa

from projections.archive.progress import rest
from projections.archive.rebuilding.divide_tasks import ROW, TOPIC
from projections.archive.rebuilding.divided_records import BucketTask
from projections.archive.rebuilding.fill_tasks import FILLED
from projections.archive.rebuilding.keyless_records import first_copies, without_row_ids
from projections.archive.rebuilding.plain_rows import PlainChanges, PlainRowDecoder
from projections.archive.rebuilding.row_times import amendment, newest_of
from projections.archive.rebuilding.store_tasks import DELIVERED, delivery
from projections.archive.survey import integers, versions_of
from projections.changes.row_change import Applied
from projections.common.pooled_memory import pooled_memory
from projections.errors import ReplayError
from projections.stores.delta.arrow import deletes_schema, table_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from projections.archive.fold import Flags, Integers
    from projections.archive.rebuilding.plain_rows import Amended
    from projections.archive.rebuilding.store_tasks import TaskDelivery
    from projections.planning.job_config import StoreAddresses

T = TypeVar("T")
if TYPE_CHECKING:
    Take = Callable[[pa.RecordBatch, Integers, list[int]], Iterator[T]]
    """Converts records, given their indices; adds the indices of unwritten ones to a list."""

    Taker = Callable[[str, Amended | None], Take[T]]

NEWEST: Final = pa.schema([*FILLED, ("filtered", pa.int64())])
_TAKEN_AT_ONCE: Final = 32_768


@dataclass(slots=True)
class Outcome:
    """The records that a task does not write.

    Attributes:
        unwritten: Numbers of the records of keys that are left to the replay.
        filtered: Number of other records that show the view only when a row was inserted.
    """

    unwritten: list[int] = field(default_factory=list)
    filtered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestTask(BucketTask, ABC):
    """Processes the newest records of keys; see `BucketTask`.

    Attributes:
        code: Digest of the code that converts events to rows; see `EventForm.code`.
    """

    code: str
    result_schema: ClassVar[pa.Schema]

    @abstractmethod
    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the buckets with these numbers.

        Raises:
            FaultError: The classes of the events are others in this process; see `TaskFiles`.
        """

    def check_code(self) -> None:
        """Makes sure that this process has the classes of events that the view was bound to.

        They come by the name of their module, which a process that has run for long may have
        imported before it was edited.

        Raises:
            ReplayError: It has others.
        """
        events = self.plan.events
        if events is not None and events.form.code != self.code:
            raise ReplayError(
                "the job has other classes of the events",
                hint="headwater up restarts the job with the edited ones",
            )

    def made(self, number: int, taker: Taker[T], outcome: Outcome) -> Iterator[T]:
        """Converts the newest records of the keys of one bucket.

        Args:
            number: The task.
            taker: Returns the converter of a topic's records.
            outcome: Receives the records that are left to the replay.
        """
        throttle, held = self.pace.throttle(), self.held.get(self.plan.name)
        for records in self.divided.portions(self.first + number, held, outcome.unwritten):
            codes = integers(records.column("key").dictionary_encode().indices)
            newest, failed = self._newest(records, codes)
            plain = without_row_ids(records) if self.plan.append_only else records
            of_topic = integers(records.column(TOPIC))[newest]
            amended = amendment(self.plan, self.topics, records, codes, self.divided.truncated)
            for place, topic in enumerate(self.topics):
                own = newest[of_topic == place]
                take = taker(topic, amended)
                for start in range(0, len(own), _TAKEN_AT_ONCE):
                    numbers = own[start : start + _TAKEN_AT_ONCE]
                    for taken in take(plain.take(pa.array(numbers)), numbers, failed):
                        yield taken
                        rest(throttle)
            fails = np.isin(codes, codes[failed])
            outcome.unwritten += integers(records.column(ROW))[fails].tolist()
            outcome.filtered += int((~fails & self._older(records)).sum())

    def _newest(self, records: pa.RecordBatch, codes: Integers) -> tuple[Integers, list[int]]:
        """Returns the indices of the newest records, and those of keys without one."""
        if self.plan.append_only:
            return first_copies(records), []
        counts = np.flatnonzero(~self._older(records))
        newest = counts[newest_of(codes[counts], versions_of(records)[counts])]
        return newest, np.flatnonzero(~np.isin(codes, codes[newest])).tolist()

    def _older(self, records: pa.RecordBatch) -> Flags:
        """Returns which records only show when a row was inserted: a snapshot replaces the rest."""
        return versions_of(records) < self.plan.left_to_read


@dataclass(frozen=True, slots=True, kw_only=True)
class FillNewest(NewestTask):
    """Writes files of rows and deletes for the commit."""

    result_schema: ClassVar = NEWEST

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the buckets with these numbers; see `NewestTask`."""
        with self.files.at_work(), pooled_memory():
            self.check_code()
            yield from self.files.pieces(batches, NEWEST, self._bucket)

    def _bucket(self, number: int) -> dict[str, Any]:
        outcome, counts = Outcome(), [0, 0]
        schemas = table_schema(self.plan), deletes_schema(self.plan)
        with ExitStack() as stack:
            made = [stack.enter_context(self.files.writing(schema)) for schema in schemas]
            for part in self.made(number, self._decoder, outcome):
                for of, table in enumerate(part):
                    made[of][1].write_table(table)
                    counts[of] += table.num_rows
        names = [name for name, _ in made]
        values = [names[0], counts[0], names[1], counts[1], outcome.unwritten, outcome.filtered]
        return dict(zip(NEWEST.names, values, strict=True))

    def _decoder(self, topic: str, amended: Amended | None) -> Take[tuple[pa.Table, pa.Table]]:
        return PlainRowDecoder(self.plan, topic, self.held, amended).parts


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverNewest(NewestTask):
    """Delivers rows and deletes to search or the cache; see `store_tasks`.

    Attributes:
        addresses: Address of the store.
    """

    addresses: StoreAddresses
    result_schema: ClassVar = DELIVERED

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the buckets with these numbers; see `NewestTask`."""
        with self.files.at_work(), delivery(self.plan, self.files, self.addresses) as store:
            self.check_code()
            yield from self.files.pieces(batches, DELIVERED, partial(self._bucket, store))

    def _bucket(self, store: TaskDelivery, number: int) -> dict[str, Any]:
        outcome = Outcome()
        applied = sum(self.made(number, partial(self._taker, store), outcome), Applied())
        return {"upserted": applied.upserted, "deleted": applied.deleted, "left": outcome.unwritten}

    def _taker(self, store: TaskDelivery, topic: str, amended: Amended | None) -> Take[Applied]:
        return partial(store.taken, PlainChanges(self.plan, topic, self.held, amended=amended))
