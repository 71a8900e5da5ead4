"""What a consumer acknowledges, in which order keys are handed out, and what parking does to it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cdc.consumer.ledger import AckLedger
from cdc.consumer.partition_queue import (
    FetchStep,
    HandleStep,
    ParkedRecord,
    ParkStep,
    PartitionQueue,
    QueuedRecord,
)
from cdc.consumer.retry import ChangeFailure
from tests.fix_seeds import examples

KEYS = (b"a", b"b", b"c", None)
POISON = ChangeFailure("builtins.ValueError", None, 1, permanent=True)


@given(
    offsets=st.lists(st.integers(0, 60), unique=True, max_size=30).map(sorted),
    seed=st.integers(0, 10**6),
)
def test_the_offset_to_commit_is_that_of_the_lowest_record_without_an_acknowledgement(
    offsets, seed
):
    ledger = AckLedger(0)
    for offset in offsets:
        ledger.take(offset)
    waiting = set(offsets)
    end = offsets[-1] + 1 if offsets else 0

    chance = random.Random(seed)  # noqa: S311  # repeatable
    for offset in chance.sample(offsets, len(offsets)):
        assert min(waiting, default=end) == ledger.committable
        assert ledger.ack(offset)
        assert not ledger.ack(offset)
        waiting.discard(offset)

    assert (end, 0, 0) == (ledger.committable, ledger.span, ledger.unacknowledged)


def test_what_was_never_taken_cannot_be_acknowledged_and_what_is_passed_over_need_not_be():
    ledger = AckLedger(7)
    ledger.pass_over(7)
    ledger.take(9)
    ledger.pass_over(12)

    assert not ledger.ack(8)
    assert 9 == ledger.committable
    assert ledger.ack(9)
    assert 13 == ledger.committable


@dataclass
class Record:
    offset: int
    key: bytes | None
    truncate: bool
    value: bytes = b"{}"


class Partition(RuleBasedStateMachine):
    """Any interleaving of reads, outcomes, writes, requests of operators, and crashes."""

    def __init__(self):
        super().__init__()
        self.log: list[Record] = []
        self.handled: list[int] = []  # first time only
        self.dropped: set[int] = set()
        self.written: dict[int, ParkedRecord] = {}  # the parked topic: what survives a crash
        self.committed = 0
        self.position = 0
        self.clock = 0.0
        self.in_hand: list[QueuedRecord] = []
        self.writing: list[ParkStep] = []
        self.writes = 0
        self.queue = PartitionQueue(0)

    @rule(key=st.sampled_from(KEYS), truncate=st.booleans())
    def a_change_is_captured(self, key, truncate):
        self.log.append(Record(len(self.log), key, truncate and key is None))

    @precondition(lambda self: self.position < len(self.log))
    @rule()
    def it_is_read(self):
        record = self.log[self.position]
        self.position += 1
        self.queue.add(QueuedRecord(record.offset, record.key, record, record.truncate))

    @rule()
    def somebody_looks_what_to_do(self):
        step = self.queue.next(self.clock)
        if isinstance(step, HandleStep):
            self.hand(step.item)
        elif isinstance(step, ParkStep):
            self.writing.append(step)
        elif isinstance(step, FetchStep):
            item = self.queue.taken_off(step, self.log[step.entry.offset])
            if item is not None:
                self.hand(item)

    def hand(self, item):
        assert all(other.key != item.key for other in self.in_hand)
        assert not any(other.barrier for other in self.in_hand)
        assert not (item.barrier and self.in_hand)
        earlier = [
            record.offset
            for record in self.log[: item.offset]
            if record.key == item.key and record.offset not in self.handled
        ]
        assert set(earlier) <= self.dropped, "a change overtook one of its key"
        self.in_hand.append(item)

    @precondition(lambda self: self.in_hand)
    @rule(number=st.integers(0, 3))
    def it_is_handled(self, number):
        item = self.in_hand.pop(number % len(self.in_hand))
        assert self.queue.acked(item)
        if item.offset not in self.handled:
            self.handled.append(item.offset)
        self.forget()

    @precondition(lambda self: self.in_hand)
    @rule(number=st.integers(0, 3), wait=st.floats(0, 3))
    def it_fails(self, number, wait):
        item = self.in_hand.pop(number % len(self.in_hand))
        assert self.queue.failed(item, self.clock + wait)

    @precondition(lambda self: self.in_hand)
    @rule(number=st.integers(0, 3))
    def it_is_put_back(self, number):
        item = self.in_hand.pop(number % len(self.in_hand))
        attempts = item.attempts
        assert self.queue.put_back(item, self.clock)
        assert attempts == item.attempts
        assert not self.in_hand or self.queue.busy

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds):
        self.clock += seconds

    @precondition(lambda self: self.in_hand)
    @rule(number=st.integers(0, 3))
    def it_is_parked(self, number):
        item = self.in_hand.pop(number % len(self.in_hand))
        step = self.queue.park(item, POISON)
        if step is not None:
            self.writing.append(step)
        self.forget()

    @precondition(lambda self: self.writing)
    @rule(number=st.integers(0, 3))
    def the_broker_has_written(self, number):
        step = self.writing.pop(number % len(self.writing))
        self.writes += 1
        self.written[step.item.offset] = ParkedRecord(
            step.item.offset, self.writes, step.entry.failure
        )
        self.queue.stored(step, self.writes)

    @rule(key=st.sampled_from(KEYS))
    def an_operator_retries(self, key):
        self.queue.retry(key)

    @rule(key=st.sampled_from(KEYS), everything=st.booleans())
    def an_operator_drops(self, key, everything):
        shelf = self.queue.shelf.get(key)
        if not shelf or any(item.shelved and item.key == key for item in self.in_hand):
            return
        before = {entry.offset for entry in shelf}
        if self.queue.drop(key, shelf[0].offset, everything=everything):
            left = {entry.offset for entry in self.queue.shelf.get(key, ())}
            self.dropped |= before - left
        self.forget()

    @rule(key=st.sampled_from(KEYS))
    def an_operator_drops_what_is_gone(self, key):
        assert self.queue.drop(key, -1, everything=False)
        self.forget()

    @rule()
    def it_is_committed(self):
        self.committed = self.queue.ledger.committable

    @rule()
    def the_process_is_killed(self):
        shelf: dict[bytes | None, list[ParkedRecord]] = {}
        for offset, entry in self.written.items():
            shelf.setdefault(self.log[offset].key, []).append(replace(entry))
        self.in_hand, self.writing = [], []
        self.position = self.committed
        self.queue = PartitionQueue(self.committed, shelf)

    def forget(self):
        gone, _ = self.queue.outcome()
        for offset in gone:
            self.written.pop(offset, None)

    @invariant()
    def a_key_that_waits_for_an_operator_is_listed(self):
        stuck = [
            key
            for key, entries in self.queue.shelf.items()
            if entries[0].failure is None and key not in self.queue._redelivering
        ]
        assert not stuck

    @invariant()
    def nothing_below_the_commit_is_lost(self):
        had = {*self.handled, *self.dropped, *self.written}
        assert set(range(self.queue.ledger.committable)) <= had

    def teardown(self):
        """A handler that works now, and an operator who retries: everything arrives, in order."""
        for _ in range(60 + 40 * len(self.log)):
            if self.position < len(self.log):
                self.it_is_read()
            for key, entries in list(self.queue.shelf.items()):
                if entries[0].failure is not None:  # an operator sees no others
                    self.an_operator_retries(key)
            self.clock += 10
            self.somebody_looks_what_to_do()
            while self.in_hand:
                self.it_is_handled(0)
            while self.writing:
                self.the_broker_has_written(0)
        everything = set(range(len(self.log)))

        assert everything == {*self.handled, *self.dropped}
        assert ({}, len(self.log), 0) == (
            self.queue.shelf,
            self.queue.ledger.committable,
            self.queue.held_bytes,
        )
        assert not self.queue.busy


TestPartition = Partition.TestCase
TestPartition.settings = settings(
    max_examples=examples(2000), stateful_step_count=50, deadline=None, report_multiple_bugs=False
)
