"""PartitionQueue: the pending, delivered and parked records of one partition.

Pure: it accepts read records and their outcomes, and returns the next actions.

Order is kept for each key. A change is delivered once the previous one of its key is acknowledged,
so handlers in several threads keep the order. While a change waits for its next attempt, later
changes of its key wait behind it; other keys continue. Once a key is parked, its later changes are
parked behind the first, and parked changes are delivered in the order of their offsets.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from cdc.consumer.ledger import AckLedger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.consumer.retry import ChangeFailure

Key: TypeAlias = bytes | None
"""Key of a record as bytes; equal keys have equal bytes. None for a table without a key."""


@dataclass(slots=True, eq=False)
class QueuedRecord:
    """A record on its way to the handler.

    Attributes:
        offset: Its offset.
        key: Its key's bytes.
        record: As Kafka delivered it.
        barrier: Whether it affects all keys (TRUNCATE): it waits for all earlier records, and all
            later ones wait for it.
        attempts: Number of failed attempts.
        shelved: Whether it was parked: its offset is already committed.
    """

    offset: int
    key: Key
    record: Any
    barrier: bool = False
    attempts: int = 0
    shelved: bool = False


@dataclass(slots=True, order=True)
class ParkedRecord:
    """A parked record.

    Attributes:
        offset: Its offset in the change topic, by which a key's entries are delivered.
        at: Its offset in the parked topic; None while it is being written.
        failure: Why it is parked; None if it waits behind one that failed.
        parked_at_ms: When it was parked, milliseconds since 1970.
    """

    offset: int
    at: int | None = field(default=None, compare=False)
    failure: ChangeFailure | None = field(default=None, compare=False)
    parked_at_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class HandleStep:
    """Next step: deliver this item to the handler."""

    item: QueuedRecord


@dataclass(frozen=True, slots=True)
class FetchStep:
    """Next step: read this parked record, then call `taken_off`."""

    key: Key
    entry: ParkedRecord


@dataclass(frozen=True, slots=True)
class ParkStep:
    """Next step: write this item to the parked topic, then call `stored`."""

    item: QueuedRecord
    entry: ParkedRecord


Step: TypeAlias = HandleStep | FetchStep | ParkStep


@dataclass(slots=True)
class _KeyQueue:
    """The changes of a key; the first is in progress, or waits for its next attempt.

    Without a `front`, a parked record is being read (`parking` False) or written (True). While the
    first change of a key is being written, later ones wait. After a crash, the parked changes of a
    key therefore begin with the failed one, unless all changes before them are done.
    """

    front: QueuedRecord | None
    behind: deque[QueuedRecord] = field(default_factory=deque)
    parking: bool = False
    ready: bool = False  # for delivery


class PartitionQueue:
    """One partition of a topic while it is assigned to this member of the group.

    Threads: not thread-safe; the caller holds a lock.

    Args:
        offset: The first offset that will be read.
        shelf: The records that are already parked, by key.
    """

    def __init__(
        self, offset: int, shelf: Mapping[Key, Iterable[ParkedRecord]] | None = None
    ) -> None:
        self.ledger = AckLedger(offset)
        self.shelf = {key: sorted(entries) for key, entries in (shelf or {}).items() if entries}
        self.held_bytes = 0
        self._incoming: deque[QueuedRecord] = deque()
        self._key_queues: dict[Key, _KeyQueue] = {}
        self._ready: deque[Key] = deque()
        self._due: list[tuple[float, int, Key, QueuedRecord]] = []
        self._number = count()
        self._to_shelve: deque[QueuedRecord] = deque()
        self._redelivering: set[Key] = set()
        self._barrier: QueuedRecord | None = None
        self._gone: list[int] = []
        self._settled: list[Key] = []
        for key, entries in self.shelf.items():
            if entries[0].failure is None:
                self.retry(key)  # a redelivery that a crash has interrupted

    @property
    def busy(self) -> bool:
        """Returns whether one of its changes is being handled."""
        waiting = {key for _, _, key, item in self._due if self._is_front(key, item)}
        return any(
            not key_queue.ready for key, key_queue in self._key_queues.items() if key not in waiting
        )

    @property
    def wake_at(self) -> float | None:
        """Returns when the next retry is due; None if no retry is scheduled."""
        return self._due[0][0] if self._due else None

    def add(self, item: QueuedRecord) -> None:
        """Queues a read record."""
        self.ledger.take(item.offset)
        self.held_bytes += _size(item)
        self._incoming.append(item)

    def next(self, now: float) -> Step | None:
        """Returns the next task; None while everything waits.

        Args:
            now: The time on the clock that `failed` uses for the retry.
        """
        while self._to_shelve:
            step = self._place(self._to_shelve.popleft())
            if step is not None:
                return step
        while self._due and self._due[0][0] <= now:
            _, _, key, item = heapq.heappop(self._due)
            if self._is_front(key, item):
                return HandleStep(item)
        while self._ready and self._barrier is None:
            key = self._ready.popleft()
            step = self._next_step(key)
            if step is not None:
                return step
        return self._take_in()

    def acked(self, item: QueuedRecord) -> bool:
        """Records that a change was handled; False if it was not in progress."""
        if not self._is_front(item.key, item):
            return False
        if item.shelved:
            self._off_the_shelf(item.key, [item.offset])
        else:
            self._acknowledge(item)
        self._advance_key(item)
        return True

    def failed(self, item: QueuedRecord, due: float) -> bool:
        """Schedules the retry of a change; False if it was not in progress."""
        if not self._is_front(item.key, item):
            return False
        item.attempts += 1
        heapq.heappush(self._due, (due, next(self._number), item.key, item))
        return True

    def put_back(self, item: QueuedRecord, now: float) -> bool:
        """Makes an untried change deliverable again; False if it was not in progress."""
        if not self._is_front(item.key, item):
            return False
        heapq.heappush(self._due, (now, next(self._number), item.key, item))
        return True

    def park(self, item: QueuedRecord, failure: ChangeFailure) -> ParkStep | None:
        """Parks the key of a change in progress.

        Returns:
            The step that writes it; None if the change was not in progress.
        """
        entry = self._entry(item.key, item.offset) if item.shelved else None
        if item.shelved and entry is None:  # given up meanwhile
            self.acked(item)
            return None
        if not self._is_front(item.key, item):
            return None
        self._lift_barrier(item)
        key_queue = self._key_queues[item.key]
        key_queue.front, key_queue.parking = None, True
        if entry is not None:
            self._settle(item.key)
            entry.at, entry.failure = None, failure
            return ParkStep(item, entry)
        step = self._shelve(item)
        step.entry.failure = failure
        return step

    def stored(self, step: ParkStep, at: int) -> None:
        """Records that a parked record was written at an offset of the parked topic."""
        key = step.item.key
        step.entry.at = at
        if not step.item.shelved:
            self._acknowledge(step.item)
        key_queue = self._key_queues.get(key)
        if key_queue is not None and key_queue.parking and step.entry.failure is not None:
            self._to_shelve.extend(self._key_queues.pop(key).behind)
        if key in self._redelivering and key not in self._key_queues:
            self._ready.append(key)

    def taken_off(self, step: FetchStep, record: Any) -> QueuedRecord | None:
        """Records that a parked record was read; returns the item to deliver, if any.

        Args:
            step: The step that read it.
            record: The record; None if it no longer exists.
        """
        key_queue = self._key_queues.get(step.key)
        if key_queue is None or key_queue.front is not None or key_queue.parking:
            return None
        if record is None:
            self._off_the_shelf(step.key, [step.entry.offset])
        if self._entry(step.key, step.entry.offset) is None:
            del self._key_queues[step.key]
            self._continue_shelf(step.key)
            return None
        key_queue.front = QueuedRecord(step.entry.offset, step.key, record, shelved=True)
        return key_queue.front

    def retry(self, key: Key) -> None:
        """Starts redelivery of a parked key's records, in order."""
        if key in self.shelf:
            self._redelivering.add(key)
            if key not in self._key_queues:
                self._ready.append(key)
        else:
            self._settle(key)

    def drop(self, key: Key, offset: int, *, everything: bool) -> bool:
        """Discards the record that a key is parked for; later ones are delivered.

        Args:
            key: The parked key.
            offset: The record's offset; nothing happens if another record is the first now.
            everything: Also discards the records behind it.

        Returns:
            Whether it is done; a record that is being written cannot be discarded.
        """
        entries = self.shelf.get(key)
        if not entries or entries[0].offset != offset:
            self._settled.append(key)  # a redelivery of the others goes on
            return True
        if entries[0].at is None:
            return False
        given_up = entries if everything else entries[:1]
        self._off_the_shelf(key, [entry.offset for entry in given_up if entry.at is not None])
        if key in self.shelf:
            self.retry(key)
        elif key not in self._key_queues:
            self._settle(key)
        return True

    def outcome(self) -> tuple[list[int], list[Key]]:
        """Returns offsets no longer parked and keys whose redelivery has ended, each once."""
        outcome = self._gone, self._settled
        self._gone, self._settled = [], []
        return outcome

    def _take_in(self) -> Step | None:
        while self._incoming and self._barrier is None:
            item = self._incoming[0]
            if item.barrier and self._key_queues:
                return None
            self._incoming.popleft()
            step = self._place(item)
            if step is not None:
                return step
        return None

    def _next_step(self, key: Key) -> Step | None:
        key_queue = self._key_queues.get(key)
        if key_queue is not None:
            if not key_queue.ready or key_queue.front is None:
                return None
            key_queue.ready = False
            return HandleStep(key_queue.front)
        entries = self.shelf.get(key)
        if key not in self._redelivering or not entries or entries[0].at is None:
            return None
        self._key_queues[key] = _KeyQueue(None)
        return FetchStep(key, entries[0])

    def _place(self, item: QueuedRecord) -> Step | None:
        """Delivers a record, or queues it behind earlier ones of its key.

        All records of a key before its first parked one are done. If such a record is read again,
        after a crash or a reset of the group, it is not parked: it would wait for a retry that no
        operator can request, since it did not fail.
        """
        shelf, key_queue = self.shelf.get(item.key), self._key_queues.get(item.key)
        if self._entry(item.key, item.offset) is not None:
            self._acknowledge(item)  # parked before a restart
        elif key_queue is not None and key_queue.parking:
            key_queue.behind.append(item)
        elif shelf and shelf[0].offset < item.offset:
            return self._shelve(item)
        elif key_queue is None:
            self._key_queues[item.key] = _KeyQueue(item)
            self._barrier = item if item.barrier else None
            return HandleStep(item)
        elif shelf and (key_queue.front is None or key_queue.front.shelved):
            self._acknowledge(item)  # done before; a later one of its key is in progress
        else:
            key_queue.behind.append(item)
        return None

    def _shelve(self, item: QueuedRecord) -> ParkStep:
        entry = ParkedRecord(item.offset)
        insort(self.shelf.setdefault(item.key, []), entry)
        return ParkStep(item, entry)

    def _advance_key(self, item: QueuedRecord) -> None:
        """Continues with the next item of a key, or removes its empty queue."""
        self._lift_barrier(item)
        key_queue = self._key_queues[item.key]
        if key_queue.behind:
            key_queue.front, key_queue.ready = key_queue.behind.popleft(), True
            self._ready.append(item.key)
        else:
            del self._key_queues[item.key]
        if item.key in self._redelivering:
            self._continue_shelf(item.key)

    def _lift_barrier(self, item: QueuedRecord) -> None:
        if self._barrier is item:
            self._barrier = None

    def _acknowledge(self, item: QueuedRecord) -> None:
        if self.ledger.ack(item.offset):
            self.held_bytes -= _size(item)

    def _off_the_shelf(self, key: Key, offsets: list[int]) -> None:
        leaving = set(offsets)
        kept = [entry for entry in self.shelf.get(key, []) if entry.offset not in leaving]
        self._gone += offsets
        if kept:
            self.shelf[key] = kept
        else:
            self.shelf.pop(key, None)

    def _continue_shelf(self, key: Key) -> None:
        if key in self.shelf:
            self._ready.append(key)
        else:
            self._settle(key)

    def _settle(self, key: Key) -> None:
        self._redelivering.discard(key)
        self._settled.append(key)

    def _entry(self, key: Key, offset: int) -> ParkedRecord | None:
        found = (entry for entry in self.shelf.get(key, ()) if entry.offset == offset)
        return next(found, None)

    def _is_front(self, key: Key, item: QueuedRecord) -> bool:
        key_queue = self._key_queues.get(key)
        return key_queue is not None and key_queue.front is item


def _size(item: QueuedRecord) -> int:
    value = getattr(item.record, "value", None)
    return len(value) if isinstance(value, bytes) else 0
