"""Delivery: applies records of change topics to the views of one store.

A record that cannot be read or applied is quarantined with its cause, and so is every later record
of its key; all others are applied. The caller receives quarantined records and stores them before
the batch counts as done. A record that is older than the store's row counts as applied, even if it
could not have been applied.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from projections.changes.event_reducer import EarliestTimesReducer
from projections.changes.history_reducer import EveryChangeReducer
from projections.changes.reducer import TopicReducer
from projections.changes.task_outcome import (
    BlockedKeys,
    TaskOutcome,
)
from projections.changes.view_delivery import ViewDelivery
from projections.planning.view_plan import facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from projections.changes.record import Record
    from projections.changes.reduced import Reduced
    from projections.changes.sink import Sink
    from projections.planning.view_plan import ViewPlan


@dataclass(slots=True)
class _Reader:
    topic: str
    plans: list[ViewPlan]
    made: TopicReducer | None = None

    @property
    def reducer(self) -> TopicReducer:
        """The reducer, created at the first record because most topics are idle."""
        if self.made is None:
            self.made = reducer(self.plans, self.topic)
        return self.made


class TaskApplier(TaskOutcome):
    """Applies records to views; one for each task of a batch.

    Args:
        plans: The views of the store.
        sink: Opens the store when it is needed.
        held: Quarantined records, by view.
        changes_per_write: Number of changes of a topic that are written at once.
        overlapped: Whether further records are read while changes are being written.
    """

    def __init__(
        self,
        plans: Iterable[ViewPlan],
        sink: Callable[[], Sink],
        held: Mapping[str, BlockedKeys] | None = None,
        *,
        changes_per_write: int = 100_000,
        overlapped: bool = False,
    ) -> None:
        plans = list(plans)
        self._readers = _readers(plans)
        super().__init__(plans, sink, held or {})
        self._limit = changes_per_write
        # a single thread: writes stay in order, and a sink has one caller at a time
        self._pool = ThreadPoolExecutor(1, "delivery") if overlapped else None
        self._under_way: Future[None] | None = None

    def take(self, topic: str, records: Iterable[Record | tuple[Any, ...]]) -> None:
        """Applies records of one topic in their order; skips topics that no view reads.

        Raises:
            CdcError: A record cannot be read, and the fault is not limited to one key.
            SinkError: The store refuses everything or cannot be reached.
            ViewHaltedError: The view `halted` has to be paused.
        """
        for reader in self._readers.get(topic, ()):
            reader.reducer.add(records)
            if len(reader.reducer) >= self._limit:
                self._flush(reader)

    def pass_over(self, topic: str, record: Record) -> None:
        """Records the position of an unreadable record that a later change superseded."""
        for reader in self._readers.get(topic, ()):
            reader.reducer.pass_over(record)

    def finish(self) -> None:
        """Writes the remaining changes; afterwards `counts` and `waiting` are complete.

        Raises:
            SinkError: The store refuses everything or cannot be reached.
            ViewHaltedError: The view `halted` has to be paused.
        """
        for reader in chain.from_iterable(self._readers.values()):
            if reader.made is not None and reader.made.records:
                self._flush(reader)
        self._settle()

    def close(self) -> None:
        """Waits for a write in progress, regardless of its result."""
        if self._pool is not None:
            self._pool.shutdown()

    def _flush(self, reader: _Reader) -> None:
        reduced = reader.reducer.reduced()
        if self._pool is None:
            self._write(reader, reduced)
            return
        self._settle()
        self._under_way = self._pool.submit(self._write, reader, reduced)

    def _settle(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _write(self, reader: _Reader, reduced: Reduced) -> None:
        for plan in reader.plans:
            ViewDelivery(self, plan, reader.topic, reduced).run()


def reducer(plans: Sequence[ViewPlan], topic: str) -> TopicReducer:
    """Returns a reducer of a topic for views that read it in the same way."""
    plan = plans[0]
    kind = TopicReducer if plan.history is None else EveryChangeReducer
    if plan.events is not None and any(each.times for each in plans):
        kind = EarliestTimesReducer
    return kind(
        plan.topics[topic],
        facts_of(plans, topic),
        shapes=plan.shapes.get(topic),
        left_out=plan.unread,
        left_to_read=plan.left_to_read,
        begun=any(each.inserted_at for each in plans),
    )


def _readers(plans: Iterable[ViewPlan]) -> dict[str, list[_Reader]]:
    """Returns the readers of each topic: mirrors of its table, and views of its events."""
    groups: dict[str, list[list[ViewPlan]]] = defaultdict(list)
    for plan in plans:
        for topic in plan.topics:
            alike = (group for group in groups[topic] if _alike(group[0], plan, topic))
            group = next(alike, None)
            if group is None:
                groups[topic].append([plan])
            else:
                group.append(plan)
    return {
        topic: [_Reader(topic, group) for group in of_topic] for topic, of_topic in groups.items()
    }


def _alike(one: ViewPlan, other: ViewPlan, topic: str) -> bool:
    """Returns whether two views read the records of a topic in the same way."""
    return (
        (one.events is None) == (other.events is None)
        and (one.history is None) == (other.history is None)
        and one.left_to_read == other.left_to_read
        and one.topics[topic] == other.topics[topic]
        and one.unread == other.unread
        and one.shapes.get(topic) == other.shapes.get(topic)
    )
