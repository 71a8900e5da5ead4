"""Changes: the changes of a source, for an application that is one member of a consumer group.

Guarantees, also after a crash:

- *At least once.* Each change is delivered until it is acknowledged. Offsets are committed up to
  the lowest unacknowledged record of a partition, so nothing below a commit is lost; changes that
  were acknowledged beyond it are delivered again after a crash.
- *Order of a key.* A change is delivered once the previous change of its key was acknowledged or
  parked. There is no order between keys. Old changes may be delivered again: see `Change`.
- *Poison.* A change that keeps failing, or cannot be decoded, parks its key: later changes of the
  key wait behind it, and other keys continue. Parked changes survive restarts and keep their order.
- *No silent gap.* If records were deleted before the group read them, it stops with an error.
"""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from cdc.broker.reading.tail import epoch_of
from cdc.change_event import ChangeEvent
from cdc.consumer import control
from cdc.consumer.change import Change, instant
from cdc.consumer.dispatcher import Dispatcher
from cdc.consumer.errors import TableUndescribedError, TooManyParkedError
from cdc.consumer.feed import Feed
from cdc.consumer.parked_topic import ParkedTopic
from cdc.consumer.parking import parked_note
from cdc.consumer.partition_queue import FetchStep, HandleStep, ParkStep
from cdc.consumer.retry import ChangeFailure
from cdc.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from cdc.consumer.change import Acknowledger
    from cdc.consumer.control import PartitionLag
    from cdc.consumer.dispatcher import DispatchedWork
    from cdc.consumer.parked_topic import ParkedKey
    from cdc.consumer.partition_queue import QueuedRecord
    from cdc.consumer.rows import RowDecoder
    from cdc.consumer.spec import ConsumerSpec
    from cdc.table import TableName

_JOIN_S = 0.25

_log = structlog.get_logger(__name__)


class Changes:
    """A member of a consumer group; opened by `changes`, closed by `close` or its `with` block.

    Threads: all methods may be called from any thread, `stop` also from a signal handler. Several
    threads may handle changes at once.

    While it is open, SIGTERM stops it unless the program has its own handler: the iteration ends,
    and acknowledged changes are committed. Ctrl-C interrupts the program as usual; leaving the
    `with` block commits.

    Args:
        spec: The consumer group and what it reads.
        rows: Decodes the tables' rows.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicMissingError: A table has no topic.
        TopicRefusedError: The topic for parked records cannot be created.
    """

    def __init__(self, spec: ConsumerSpec, rows: RowDecoder) -> None:
        self.spec = spec
        self._rows = rows
        self._dispatcher = Dispatcher(spec)
        self._shelf = ParkedTopic(spec.kafka_bootstrap, spec.parked_topic, self._dispatcher.fail)
        self._closed = False
        self._before_sigterm: Any = None
        try:
            self._feed = Feed(spec, self._dispatcher, self._shelf)
        except BaseException:
            self._shelf.close()
            raise
        self._heed_sigterm()
        self._feed.start()

    def __enter__(self) -> Changes:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Change]:
        """Yields changes as they arrive, until stopped; the caller acknowledges each.

        Raises:
            RecordsGoneError: Records were deleted before the group read them.
            TopicRecreatedError: A topic was deleted and recreated.
            TooManyParkedError: Too many keys are parked.
            GroupRefusedError: The brokers do not let the group read.
            RecordRefusedError: The brokers refuse a record to be parked.
        """
        while (change := self.take()) is not None:
            yield change

    def take(self, timeout_s: float | None = None) -> Change | None:
        """Returns the next change; None if stopped, or if none arrives in time.

        Raises:
            ConsumerError: See `__iter__`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            taken = self._dispatcher.take(left_s)
            if taken is None:
                return None
            change = self._perform(taken)
            if change is not None:
                return change

    def run(self, handler: Callable[[Change], object], *, workers: int = 1) -> None:
        """Calls a handler with each change until stopped.

        A change is acknowledged if the handler returns. If it raises, the change is retried after a
        wait, and finally parked, according to `retry` of the spec.

        Args:
            handler: Handles one change. It is never called for two changes of a key at once.
            workers: Number of threads that call it.

        Raises:
            ConsumerError: See `__iter__`.
        """
        if workers == 1:
            self._work(handler)
            return
        failures: list[BaseException] = []
        threads = [
            threading.Thread(target=self._work_aside, args=(handler, failures), daemon=True)
            for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(_JOIN_S)
        finally:
            self.stop()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]

    @property
    def stopping(self) -> bool:
        """Returns whether it was stopped, by `stop` or SIGTERM; `take` then returns None."""
        return self._dispatcher.stopping

    @property
    def paused(self) -> bool:
        """Returns whether an operator has paused the group; `take` waits meanwhile."""
        return self._dispatcher.paused

    def lag(self) -> list[PartitionLag]:
        """Returns the lag of the whole group, by partition."""
        spec = self.spec
        return control.lag(
            spec.kafka_bootstrap, source=spec.source, group=spec.group, tables=spec.tables
        )

    def parked(self) -> list[ParkedKey]:
        """Returns the keys that the group has parked."""
        spec = self.spec
        return control.parked(spec.kafka_bootstrap, source=spec.source, group=spec.group)

    def retry(self, parked_key: ParkedKey) -> None:
        """Requests redelivery of a parked key's changes, in order, by its partition's member."""
        spec = self.spec
        control.retry(spec.kafka_bootstrap, parked_key, source=spec.source, group=spec.group)

    def drop(self, parked_key: ParkedKey, *, everything: bool = False) -> None:
        """Discards the change for which a key is parked, or all; later ones are delivered."""
        spec = self.spec
        control.drop(
            spec.kafka_bootstrap,
            parked_key,
            source=spec.source,
            group=spec.group,
            everything=everything,
        )

    def stop(self) -> None:
        """Ends the iteration and `run` after the changes in progress; safe in a signal handler.

        It keeps its partitions until `close`, so those changes can still be acknowledged.
        """
        self._dispatcher.stop()

    def close(self) -> None:
        """Commits acknowledged changes, leaves the group and closes the connections."""
        if self._closed:
            return
        self._closed = True
        self._dispatcher.close()
        self._feed.end()
        self._shelf.close()
        if self._before_sigterm is not None:
            signal.signal(signal.SIGTERM, self._before_sigterm)

    def _work(self, handler: Callable[[Change], object]) -> None:
        for change in self:
            try:
                handler(change)
            except Exception as error:  # noqa: BLE001  # concerns only its change
                change.fail(error)
            else:
                change.ack()

    def _work_aside(
        self, handler: Callable[[Change], object], failures: list[BaseException]
    ) -> None:
        try:
            self._work(handler)
        except BaseException as error:  # noqa: BLE001  # raised again by run
            failures.append(error)
            self.stop()

    def _perform(self, taken: DispatchedWork) -> Change | None:
        step = taken.step
        if isinstance(step, ParkStep):
            self._write(taken, step)
            return None
        if isinstance(step, FetchStep):
            record = self._shelf.read(step.entry.at or 0)
            item = self._dispatcher.taken_off(taken, step, record)
            return None if item is None else self._change(taken, item)
        return self._change(taken, step.item) if isinstance(step, HandleStep) else None

    def _change(self, taken: DispatchedWork, item: QueuedRecord) -> Change | None:
        """Decodes a record; if that fails, schedules a retry or parks its key."""
        try:
            return self._decoded(item, ChangeDelivery(self, taken, item))
        except Exception as error:  # noqa: BLE001  # a foreign record may be anything
            if isinstance(error, TableUndescribedError):
                self.failed(taken, item, error)
            else:
                self.park(taken, item, ChangeFailure.of(error, 0))
            return None

    def _decoded(self, item: QueuedRecord, delivery: ChangeDelivery) -> Change:
        table = self.spec.topics.get(item.record.topic)
        change = decoded(item.record, table, self._rows, delivery)
        return replace(change, attempt=item.attempts + 1, parked=item.shelved)

    def acked(self, taken: DispatchedWork, item: QueuedRecord) -> bool:
        """Records an acknowledgement; see `Change.ack`."""
        return self._dispatcher.acked(taken, item)

    def failed(self, taken: DispatchedWork, item: QueuedRecord, error: BaseException) -> bool:
        """Records a failure; see `Change.fail`."""
        failure = ChangeFailure.of(error, item.attempts + 1, self.spec.retry.permanent)
        wait_s = failure.wait_s(self.spec.retry)
        if wait_s is None:
            return self.park(taken, item, failure)
        _log.warning(
            "change failed, retrying",
            group=self.spec.group,
            **_place(item),
            error_type=failure.error_type,
            error_code=failure.error_code,
            attempts=failure.attempts,
        )
        return self._dispatcher.failed(taken, item, wait_s)

    def put_back(self, taken: DispatchedWork, item: QueuedRecord) -> bool:
        """Returns a change to its queue; see `Change.put_back`."""
        return self._dispatcher.put_back(taken, item)

    def park(self, taken: DispatchedWork, item: QueuedRecord, failure: ChangeFailure) -> bool:
        """Parks a change's key; see `Change.park`."""
        if not item.shelved and self._dispatcher.parked_keys() >= self.spec.parked_keys_max:
            refusal = TooManyParkedError(
                f"group {self.spec.group} would park more than {self.spec.parked_keys_max} keys",
                detail=f"last: {failure.error_type}",
                hint="correct the handler; unacknowledged changes are delivered again",
            )
            self._dispatcher.fail(refusal)
            raise refusal
        step = self._dispatcher.park(taken, item, failure)
        if step is None:
            return False
        _log.warning(
            "change parked, its key waits",
            group=self.spec.group,
            **_place(item),
            error_type=failure.error_type,
            error_code=failure.error_code,
            attempts=failure.attempts,
        )
        self._write(taken, step)
        return True

    def _write(self, taken: DispatchedWork, step: ParkStep) -> None:
        step.entry.parked_at_ms = step.entry.parked_at_ms or time.time_ns() // 1_000_000
        note = parked_note(step.item.record, step.entry)
        self._shelf.write(note, lambda at: self._dispatcher.stored(taken, step, at))

    def _heed_sigterm(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return  # the program's own handler, which may call `stop`

        def heed(_number: int, _frame: FrameType | None) -> None:
            self.stop()

        self._before_sigterm = signal.signal(signal.SIGTERM, heed)


def decoded(
    record: Any, table: TableName | None, rows: RowDecoder, outcome: Acknowledger
) -> Change:
    """Decodes a record to a change.

    Args:
        record: As Kafka delivered it.
        table: The table of its topic.
        rows: Decodes its rows.
        outcome: Receives the outcome of the change.

    Raises:
        EnvelopeError: It is not a change of the table.
        ValueDecodeError: A value is beyond Python's range.
    """
    event = ChangeEvent.parse(record.key, record.value, epoch_of(record))
    if table != event.table:
        raise EnvelopeError("the record's table is not that of its topic")
    return Change(
        table=event.table,
        operation=event.operation,
        key=rows.row(event.table, event.key, event.position),
        before=rows.row(event.table, event.before, event.position),
        after=rows.row(event.table, event.after, event.position),
        position=event.position,
        transaction_id=event.transaction_id,
        committed_at=instant(event.committed_at_us),
        snapshot=event.snapshot or event.transaction_id is None,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        attempt=1,
        parked=False,
        _outcome=outcome,
    )


class ChangeDelivery:
    """The outcome of a delivered change; the first one counts."""

    def __init__(self, changes: Changes, taken: DispatchedWork, item: QueuedRecord) -> None:
        self._changes = changes
        self._taken = taken
        self._item = item
        self._open = [True]  # popping is atomic: two threads cannot both end it

    def ack(self) -> bool:
        """See `Change.ack`."""
        return self._first() and self._changes.acked(self._taken, self._item)

    def fail(self, error: BaseException) -> bool:
        """See `Change.fail`."""
        return self._first() and self._changes.failed(self._taken, self._item, error)

    def put_back(self) -> bool:
        """See `Change.put_back`."""
        return self._first() and self._changes.put_back(self._taken, self._item)

    def park(self, error: BaseException) -> bool:
        """See `Change.park`."""
        failure = ChangeFailure.of(error, self._item.attempts + 1)
        return self._first() and self._changes.park(self._taken, self._item, failure)

    def _first(self) -> bool:
        try:
            return self._open.pop()
        except IndexError:
            return False


def _place(item: QueuedRecord) -> dict[str, Any]:
    record = item.record
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}
