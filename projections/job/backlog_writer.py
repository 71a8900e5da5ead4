"""BacklogWriter: writes a large batch of tables as it is read, in few large writes.

Such a batch is part of a backlog, and its end is a place like any other: the tables stand at no
boundary there, and the next small batch brings them to one. No record has to wait meanwhile, so a
batch may have many more records than fit into memory. What readers see stays the last published
version.

Where it can, it reads the records of a topic by columns (`PlainTopic`). After a run of records with
another one, such as a truncate or a change that omits unchanged values, the records of the topic go
through the usual delivery for a while. What was read before is written first, so that the records
of a topic stay in order. Other tasks may have read the batch before (`BacklogReader`): it takes
their runs as its own.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from projections.job.plain_topic import PendingRows, PlainRun, topic_readers
from projections.publishing.boundary import position_of, with_applied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from projections.changes.applier import TaskApplier
    from projections.changes.record import Record
    from projections.changes.task_outcome import BlockedKeys
    from projections.job.plain_topic import PlainTopic
    from projections.planning.view_plan import ViewPlan
    from projections.publishing.published_versions import Published
    from projections.stores.delta.sink import WarehouseSink

PENDING_BYTES_MAX: Final = 64 << 20
"""Decoded rows that are held at once, of all views; a merge takes about three times as much."""

DELIVERED_BYTES_MAX: Final = 64 << 20
"""Values of records that the usual delivery holds at once; it takes about six times as much."""

DELIVERED_RECORDS: Final = 100_000
"""Records of a topic that go through the usual delivery after one that needs it."""

BacklogRun = tuple[str, "Sequence[Record | tuple[Any, ...]] | PlainRun"]
"""Records of one topic in their order, or what a task has read of such records."""


class BacklogWriter:
    """Writes one large batch.

    Args:
        plans: The views.
        held: Quarantined keys, by view.
        delivery: The usual delivery of the task.
        published: Where the progress beyond the last boundary is stored.
        sink: Opens the tables.
    """

    def __init__(
        self,
        plans: Sequence[ViewPlan],
        held: Mapping[str, BlockedKeys],
        delivery: TaskApplier,
        published: Published,
        sink: Callable[[], WarehouseSink],
    ) -> None:
        self._delivery = delivery
        self._published = published
        self._sink = sink
        self._readers = topic_readers(plans, held)
        self._pending = {plan.name: PendingRows(plan) for plan in plans}
        self._left: Counter[str] = Counter()  # records of a topic that the delivery still takes
        self._delivered_bytes = 0
        carried = published.beyond()
        self._waiting = carried.waiting
        self._ahead = self._stored = carried.ahead

    def write(self, runs: Iterable[BacklogRun]) -> bool:
        """Writes the waiting records of earlier batches, and then those of this one.

        Until `settle` is called, the waiting records are stored as well, for a batch that is killed
        is written again.

        Args:
            runs: The records, in their order.

        Returns:
            Whether all are written. If not, a run that was read before may have records that have
            to wait behind a quarantined one: the batch has to be written again, from its records.
        """
        for topic, records in chain(self._waiting, runs):
            reader = self._readers.get(topic)
            if isinstance(records, PlainRun):
                if reader is None or not self._resumed(reader, topic):
                    return False
                self._take(reader, records)
                continue
            plain = None
            if reader is not None and self._undisturbed(reader, topic):
                plain = reader.read(records)
            if reader is not None and plain is not None:
                self._take(reader, plain)
            else:
                self._deliver(topic, records)
        self._write_pending()
        self._finish()
        return True

    def settle(self) -> None:
        """Stores that nothing waits any longer; the quarantine must have been written before."""
        self._published.keep_beyond(self._ahead)

    def _resumed(self, reader: PlainTopic, topic: str) -> bool:
        """Writes what the delivery holds of a topic; returns whether its next run can be taken."""
        if topic in self._left:
            self._left[topic] = 0
        return self._undisturbed(reader, topic)

    def _undisturbed(self, reader: PlainTopic, topic: str) -> bool:
        """Returns whether records of a topic can be read by columns now."""
        if topic in self._left and self._left[topic] <= 0:
            self._finish()
        if topic in self._left:
            return False
        # once something of a view is quarantined, later records of its key wait
        disturbed = {each.view for each in self._delivery.waiting} | self._delivery.truncated.keys()
        return disturbed.isdisjoint(plan.name for plan in reader.plans)

    def _take(self, reader: PlainTopic, run: PlainRun) -> None:
        self._ahead = with_applied(
            self._ahead, run.epoch, run.after_commit, run.read_lsn, applied=True
        )
        for plan, part in zip(reader.plans, run.parts, strict=True):
            self._pending[plan.name].add(*part)
            count = self._delivery.counts[plan.name]
            count.records += run.records
            count.filtered += run.tombstones
            count.applied += run.records - run.tombstones
        if sum(pending.size_bytes for pending in self._pending.values()) >= PENDING_BYTES_MAX:
            self._write_pending()

    def _deliver(self, topic: str, records: Sequence[Record | tuple[Any, ...]]) -> None:
        applied = topic in self._readers
        for position in filter(None, map(position_of, records)):
            commit, read_lsn = position.after_commit, position.read_lsn
            self._ahead = with_applied(
                self._ahead, position.epoch, commit, read_lsn, applied=applied
            )
        if not applied:
            return
        self._write_pending(topic)
        self._note()
        if topic not in self._left:
            self._left[topic] = DELIVERED_RECORDS
        self._left[topic] -= len(records)
        self._delivered_bytes += sum(len(record[1] or b"") for record in records)
        self._delivery.take(topic, records)
        if self._delivered_bytes >= DELIVERED_BYTES_MAX:
            self._finish()

    def _write_pending(self, topic: str | None = None) -> None:
        """Writes the rows of the views that read a topic; of all views without one."""
        for pending in self._pending.values():
            plan = pending.plan
            if not pending.size_bytes or (topic is not None and topic not in plan.topics):
                continue
            self._note()
            newest = pending.taken()
            count = self._delivery.counts[plan.name]
            count.changes += self._sink().apply_rows(plan, newest.rows, newest.deletes)
            count.add_lags(newest.committed_at_us)

    def _finish(self) -> None:
        """Writes what the delivery holds; its topics can be read by columns again."""
        self._delivery.finish()
        self._delivered_bytes = 0
        for topic in [topic for topic, left in self._left.items() if left <= 0]:
            del self._left[topic]

    def _note(self) -> None:
        """Stores the progress that the tables are about to have, before they have it.

        Another attempt at this batch may know of a boundary in the middle of it.
        """
        if self._stored != self._ahead:
            self._published.keep_beyond(self._ahead, self._waiting)
            self._stored = self._ahead
