"""Newest rows in tasks: the rows of some keys, from all records of these.

A row may have records in several topics: those of its table's former names, or of the table of
events and that of archived ones. Its newest record makes it, as in live delivery. A key is left to
the replay with all its records if the division has said so, if its newest record does not come to
one whole row or one delete, or if it waits in quarantine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import numpy as np
import pyarrow as pa

from projections.archive.survey import integers, versions_of
from projections.changes.row_change import Applied
from projections.common.throttle import Throttle
from projections.errors import ReplayError
from projections.job.rebuilding.block_tasks import pooled_memory
from projections.job.rebuilding.divide_tasks import ROW, TOPIC
from projections.job.rebuilding.fill_tasks import FILLED, FILLED_DDL
from projections.job.rebuilding.keyless_records import first_copies, without_row_ids
from projections.job.rebuilding.plain_rows import PlainChanges, PlainRowDecoder
from projections.job.rebuilding.store_tasks import DELIVERED, DELIVERED_DDL, delivery
from projections.stores.delta.arrow import deletes_schema, table_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from projections.archive.fold import Integers
    from projections.changes.task_outcome import BlockedKeys
    from projections.job.rebuilding.divided_records import DividedRecords
    from projections.job.rebuilding.store_tasks import TaskDelivery
    from projections.job.rebuilding.task_files import TaskFiles
    from projections.planning.job_config import StoreAddresses
    from projections.planning.view_plan import ViewPlan

T = TypeVar("T")
if TYPE_CHECKING:
    Take = Callable[[pa.RecordBatch, Integers, list[int]], Iterator[T]]
    """Takes records and their places, and adds the places of those that are left to a list."""

_TAKEN_AT_ONCE: Final = 32_768


@dataclass(frozen=True, slots=True)
class NewestTask(ABC):
    """Takes the newest records of the keys of some hashes.

    Attributes:
        plan: The view.
        topics: Its topics.
        divided: Its records.
        first: The part that the first task takes.
        code: Digest of the code that makes the rows of events; see `EventForm.code`.
        files: Where rows are put aside, or what is done is noted.
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
    share: float
    says: ClassVar[str]

    @abstractmethod
    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Does the tasks named by number.

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

    def made(self, number: int, taker: Callable[[str], Take[T]], left: list[int]) -> Iterator[T]:
        """Takes the newest records of the keys of one hash.

        Args:
            number: The task.
            taker: Of a topic, what takes its records.
            left: Takes the numbers of the records of keys that are left to the replay.
        """
        throttle, held = Throttle(self.share), self.held.get(self.plan.name)
        for records in self.divided.portions(self.first + number, held, left):
            coded = records.column("key").dictionary_encode()
            codes, failed = integers(coded.indices), list[int]()
            if self.plan.append_only:
                newest, plain = first_copies(records), without_row_ids(records)
            else:
                newest, plain = newest_of(codes, versions_of(records)), records
            of_topic = integers(records.column(TOPIC))[newest]
            for place, topic in enumerate(self.topics):
                own = newest[of_topic == place]
                take = taker(topic)
                for start in range(0, len(own), _TAKEN_AT_ONCE):
                    places = own[start : start + _TAKEN_AT_ONCE]
                    for found in take(plain.take(pa.array(places)), places, failed):
                        yield found
                        throttle.step()
            if failed:
                fails = np.zeros(len(coded.dictionary), np.bool_)
                fails[codes[failed]] = True
                left += integers(records.column(ROW))[fails[codes]].tolist()


@dataclass(frozen=True, slots=True)
class FillNewest(NewestTask):
    """Puts rows and deletes aside for the commit."""

    says: ClassVar = FILLED_DDL

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Does the tasks named by number; see `NewestTask`."""
        with self.files.at_work(), pooled_memory():
            self.check_code()
            yield from self.files.pieces(batches, FILLED, self._bucket)

    def _bucket(self, number: int) -> dict[str, Any]:
        left, counts = list[int](), [0, 0]
        schemas = table_schema(self.plan), deletes_schema(self.plan)
        with ExitStack() as stack:
            made = [stack.enter_context(self.files.writing(schema)) for schema in schemas]
            for part in self.made(number, self._decoder, left):
                for of, table in enumerate(part):
                    made[of][1].write_table(table)
                    counts[of] += table.num_rows
        names = [name for name, _ in made]
        values = [names[0], counts[0], names[1], counts[1], left]
        return dict(zip(FILLED.names, values, strict=True))

    def _decoder(self, topic: str) -> Take[tuple[pa.Table, pa.Table]]:
        return PlainRowDecoder(self.plan, topic, self.held).parts


@dataclass(frozen=True, slots=True)
class DeliverNewest(NewestTask):
    """Delivers rows and deletes to search or the cache; see `store_tasks`.

    Attributes:
        addresses: Where the store is.
    """

    addresses: StoreAddresses
    says: ClassVar = DELIVERED_DDL

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Does the tasks named by number; see `NewestTask`."""
        with self.files.at_work(), delivery(self.plan, self.files, self.addresses) as store:
            self.check_code()
            yield from self.files.pieces(batches, DELIVERED, partial(self._bucket, store))

    def _bucket(self, store: TaskDelivery, number: int) -> dict[str, Any]:
        left = list[int]()
        applied = sum(self.made(number, partial(self._taker, store), left), Applied())
        return {"upserted": applied.upserted, "deleted": applied.deleted, "left": left}

    def _taker(self, store: TaskDelivery, topic: str) -> Take[Applied]:
        return partial(store.taken, PlainChanges(self.plan, topic, self.held))


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
