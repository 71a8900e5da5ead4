"""Dispatcher: passes records from the thread that reads Kafka to the threads that handle them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.consumer.partition_queue import HandleStep, PartitionQueue, QueuedRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cdc.broker.topics.extent import PartitionId
    from cdc.consumer.partition_queue import FetchStep, Key, ParkedRecord, ParkStep, Step
    from cdc.consumer.retry import ChangeFailure
    from cdc.consumer.spec import ConsumerSpec

_LOOK_S: Final = 0.25
"""Interval at which a waiting thread checks for a stop, and lets signal handlers run."""

_TRUNCATE: Final = b'"op":"t"'
_NO_KEY: Final = (None, b"null")
_SPAN: Final = 10


@dataclass(frozen=True, slots=True)
class DispatchedWork:
    """A task for a worker thread.

    Attributes:
        partition: The partition.
        queue: Its queue at that time: a partition that returns later gets another.
        step: The task.
    """

    partition: PartitionId
    queue: PartitionQueue
    step: Step


class Dispatcher:
    """The queues of the partitions assigned to this member of the group.

    Threads: all methods may be called from any thread. The reading thread uses `open`, `add`,
    `overfull` and the port `cdc.broker.group.member.PartitionOwner`.

    Args:
        spec: The consumer, with its limits.
    """

    def __init__(self, spec: ConsumerSpec) -> None:
        self._spec = spec
        self._changed = threading.Condition()
        self._queues: dict[PartitionId, PartitionQueue] = {}
        self._released: set[PartitionId] = set()
        self._fresh: set[PartitionId] = set()
        self._round_robin: list[PartitionId] = []
        self._failure: BaseException | None = None
        self._stopping = False
        self._closed = False
        self._paused = False

    # -- called by the reading thread

    def open(
        self, partition: PartitionId, offset: int, shelf: Mapping[Key, Iterable[ParkedRecord]]
    ) -> None:
        """Opens an assigned partition."""
        with self._changed:
            self._queues[partition] = PartitionQueue(offset, shelf)
            self._round_robin = sorted(self._queues)

    def add(self, partition: PartitionId, records: Sequence[Any]) -> None:
        """Queues read records, in order; records of other partitions are dropped."""
        with self._changed:
            queue = self._queues.get(partition)
            if queue is None or partition in self._released:
                return
            for record in records:
                if record.value is None:
                    queue.ledger.pass_over(record.offset)
                else:
                    queue.add(
                        QueuedRecord(record.offset, _key(record), record, _concerns_all(record))
                    )
            self._changed.notify_all()

    def overfull(self) -> set[PartitionId]:
        """Returns the partitions whose queues are full."""
        records, size = self._spec.records_held_max, self._spec.bytes_held_max
        with self._changed:
            return {
                partition
                for partition, queue in self._queues.items()
                if queue.ledger.unacknowledged >= records
                or queue.held_bytes >= size
                or queue.ledger.span >= records * _SPAN
            }

    def take_fresh(self) -> set[PartitionId]:
        """Returns the newly assigned partitions that were not opened yet, each once."""
        with self._changed:
            fresh, self._fresh = self._fresh, set()
            return fresh

    def pause(self, *, paused: bool) -> set[PartitionId]:
        """Sets whether delivery is paused; returns the partitions without a change in progress."""
        with self._changed:
            if paused is not self._paused:
                self._paused = paused
                self._changed.notify_all()
            return {partition for partition, queue in self._queues.items() if not queue.busy}

    # -- the port of the group member

    def assigned(self, partitions: set[PartitionId]) -> None:
        """Records newly assigned partitions."""
        with self._changed:
            self._fresh |= partitions
            self._released -= partitions

    def release(self, partitions: set[PartitionId]) -> None:
        """Stops delivery from these partitions."""
        with self._changed:
            self._released |= partitions
            self._changed.notify_all()

    def wait_idle(self, partitions: set[PartitionId], timeout_s: float) -> bool:
        """Waits until no change of these partitions is in progress."""

        def idle() -> bool:
            return self._closed or not any(
                self._queues[p].busy for p in partitions if p in self._queues
            )

        with self._changed:
            return self._changed.wait_for(idle, timeout_s)

    def committable(
        self, partitions: Iterable[PartitionId] | None = None
    ) -> dict[PartitionId, int]:
        """Returns the offsets that may be committed."""
        with self._changed:
            wanted = self._queues if partitions is None else partitions
            return {p: self._queues[p].ledger.committable for p in wanted if p in self._queues}

    def forget(self, partitions: set[PartitionId]) -> None:
        """Drops partitions that moved to other members, which get the unacknowledged changes."""
        with self._changed:
            for partition in partitions:
                self._queues.pop(partition, None)
            self._fresh -= partitions
            self._released -= partitions
            self._round_robin = sorted(self._queues)
            self._changed.notify_all()

    # -- called by handling threads

    def take(self, timeout_s: float | None) -> DispatchedWork | None:
        """Returns the next task; None when stopped, or if none comes in time.

        Raises:
            CdcError: Reading has failed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._stopping:
                    return None
                now = time.monotonic()
                taken = None if self._paused else self._next(now)
                if taken is not None:
                    return taken
                waits = [_LOOK_S]
                if not self._paused:
                    dues = (queue.wake_at for queue in self._queues.values())
                    waits += [due - now for due in dues if due]
                if deadline is not None:
                    if now >= deadline:
                        return None
                    waits.append(deadline - now)
                self._changed.wait(max(0.0, min(waits)))

    def acked(self, taken: DispatchedWork, item: QueuedRecord) -> bool:
        """Records that a change was handled; False if its partition has moved."""
        with self._changed:
            if not self._mine(taken):
                return False
            done = taken.queue.acked(item)
            self._changed.notify_all()
            return done

    def failed(self, taken: DispatchedWork, item: QueuedRecord, wait_s: float) -> bool:
        """Schedules the retry of a change."""
        with self._changed:
            if not self._mine(taken):
                return False
            done = taken.queue.failed(item, time.monotonic() + wait_s)
            self._changed.notify_all()
            return done

    def put_back(self, taken: DispatchedWork, item: QueuedRecord) -> bool:
        """Returns an unhandled change to its queue, without counting a failed attempt."""
        with self._changed:
            done = self._mine(taken) and taken.queue.put_back(item, time.monotonic())
            self._changed.notify_all()
            return done

    def park(
        self, taken: DispatchedWork, item: QueuedRecord, failure: ChangeFailure
    ) -> ParkStep | None:
        """Parks a change's key; returns the storing step, None if its partition has moved."""
        with self._changed:
            return taken.queue.park(item, failure) if self._mine(taken) else None

    def stored(self, taken: DispatchedWork, step: ParkStep, at: int) -> None:
        """Records that a record was written to the parked topic at an offset."""
        with self._changed:
            taken.queue.stored(step, at)
            self._changed.notify_all()

    def taken_off(self, taken: DispatchedWork, step: FetchStep, record: Any) -> QueuedRecord | None:
        """Records that a parked record was read; returns the item to deliver."""
        with self._changed:
            return taken.queue.taken_off(step, record) if self._mine(taken) else None

    def retry(self, partition: PartitionId, key: Key) -> bool:
        """Delivers a parked key's records again; returns False if its partition is not here."""
        with self._changed:
            queue = self._queues.get(partition)
            if queue is None:
                return False
            queue.retry(key)
            self._changed.notify_all()
            return True

    def drop(self, partition: PartitionId, key: Key, offset: int, *, everything: bool) -> bool:
        """Discards the records of a parked key; returns False if that is impossible here or now."""
        with self._changed:
            queue = self._queues.get(partition)
            done = queue is not None and queue.drop(key, offset, everything=everything)
            self._changed.notify_all()
            return done

    def outcomes(self) -> list[tuple[PartitionId, list[int], list[Key]]]:
        """Returns the records no longer parked and the completed requests, each once."""
        with self._changed:
            return [
                (partition, gone, settled)
                for partition, queue in self._queues.items()
                for gone, settled in [queue.outcome()]
                if gone or settled
            ]

    def partitions(self) -> set[PartitionId]:
        """Returns its partitions."""
        with self._changed:
            return set(self._queues)

    def parked_keys(self) -> int:
        """Returns how many keys of its partitions are parked."""
        with self._changed:
            return sum(len(queue.shelf) for queue in self._queues.values())

    # -- shutdown

    @property
    def paused(self) -> bool:
        """Returns whether the group is paused, so that nothing is delivered."""
        return self._paused

    @property
    def stopping(self) -> bool:
        """Returns whether delivery has stopped."""
        return self._stopping

    @property
    def closed(self) -> bool:
        """Returns whether outcomes of changes in progress no longer count."""
        return self._closed

    def stop(self) -> None:
        """Stops delivery. May be called from a signal handler."""
        self._stopping = True
        if self._changed.acquire(blocking=False):  # otherwise waiting threads check later
            self._changed.notify_all()
            self._changed.release()

    def close(self) -> None:
        """Stops, and ignores outcomes of changes in progress."""
        with self._changed:
            self._stopping = self._closed = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Makes each call of `take` raise an error."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _next(self, now: float) -> DispatchedWork | None:
        """Serves the partitions round-robin, so that a busy one does not delay the others."""
        for number, partition in enumerate(self._round_robin):
            if partition in self._released:
                continue
            queue = self._queues[partition]
            step = queue.next(now)
            if step is not None:
                if isinstance(step, HandleStep):
                    self._round_robin = (
                        self._round_robin[number + 1 :] + self._round_robin[: number + 1]
                    )
                return DispatchedWork(partition, queue, step)
        return None

    def _mine(self, taken: DispatchedWork) -> bool:
        return self._queues.get(taken.partition) is taken.queue


def _key(record: Any) -> Key:
    return None if record.key in _NO_KEY else record.key


def _concerns_all(record: Any) -> bool:
    return record.key in _NO_KEY and _TRUNCATE in record.value
