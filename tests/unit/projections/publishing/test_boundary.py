"""A batch is divided so that the tables stand at a commit, whatever the batch ends amid."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.changes.record import Record
from projections.publishing.boundary import (
    CompleteThrough,
    RecordPosition,
    UnpublishedProgress,
    divide,
    position_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from projections.publishing.boundary import Run

BEAT = "shop.headwater.heartbeat"
TOPICS = ("shop.a", "shop.b")


class Sent(NamedTuple):
    """A record as it was sent, and the commit of its transaction."""

    topic: str
    record: Record
    commit: int


def record(offset: int, after: int | None, lsn: int, op: str = "u", epoch: int = 1) -> Record:
    said = [None if after is None else str(after), str(lsn)]
    value = {
        "before": None,
        "after": {"id": 1, "note": '"op":"r","sequence":"[null,1]"'},
        "source": {"sequence": orjson.dumps(said).decode(), "lsn": lsn},
        "op": op,
        "transaction": {"id": f"7:{lsn}", "total_order": 1},
    }
    return Record(b'{"id":1}', orjson.dumps(value), str(epoch), 0, offset)


def a_log(chance: Random) -> list[Sent]:
    """A log of transactions in commit order, with a heartbeat now and then, some sent again."""
    sent: list[Sent] = []
    ends = dict.fromkeys((*TOPICS, BEAT), 0)
    lsn, commit = 100, None
    for number in range(chance.randint(1, 12)):
        beat = number % 3 == 2
        rows = 1 if beat else chance.randint(1, 4)
        begun = lsn
        lsn += 10 * rows + 10
        for row in range(rows):
            topic = BEAT if beat else chance.choice(TOPICS)
            sent.append(Sent(topic, record(ends[topic], commit, begun + 10 * row), lsn))
            ends[topic] += 1
        commit = lsn
    if chance.random() < 0.5:  # the connector goes back, to the begin of a transaction
        back = chance.choice(sent).commit
        for one in [one for one in sent if one.commit >= back]:
            again = one.record._replace(offset=ends[one.topic])
            ends[one.topic] += 1
            sent.append(Sent(one.topic, again, one.commit))
    return sent


def in_batches(log: list[Sent], chance: Random) -> Iterator[tuple[list[Sent], int | None]]:
    """Cuts a log into batches, each with how far it is known to be complete; no topic waits."""
    left = {topic: [one for one in log if one.topic == topic] for topic in (*TOPICS, BEAT)}
    last = 0
    while any(left.values()):
        batch: list[Sent] = []
        for topic, records in left.items():
            taken = chance.choice([0, len(records), chance.randint(0, len(records))])
            batch += records[:taken]
            left[topic] = records[taken:]
        missing = min((one.commit for rest in left.values() for one in rest), default=10**9)
        done = sorted({one.commit for one in log if one.commit < missing})
        known = chance.choice([None, *done, *done[-1:]])
        # the position may lie anywhere between commits, also far from the last one
        reached = None if known is None else min(known + chance.randint(0, 30), missing - 1)
        # it never goes back
        yield batch, None if reached is None or reached < last else reached
        last = max(last, reached or 0)


def runs(sent: Sequence[Sent]) -> list[tuple[str, list[Record]]]:
    return [(t, [one.record for one in sent if one.topic == t]) for t in (*TOPICS, BEAT)]


@given(st.integers(0, 10**9).map(Random))
def test_at_a_boundary_the_tables_have_every_transaction_before_it_and_none_after(
    chance: Random,
) -> None:
    log = a_log(chance)
    rows = {(one.topic, one.record.value): one.commit for one in log if one.topic in TOPICS}
    ahead, applied = UnpublishedProgress(), set[tuple[str, bytes | None]]()
    waiting: list[Run] = []
    for batch, reached in in_batches(log, chance):
        reach = None if reached is None else CompleteThrough(1, reached)
        given = sum(len(records) for _, records in waiting)
        division = divide([*waiting, *runs(batch)], frozenset(TOPICS), reach, ahead)
        applied |= {(t, each[1]) for t, records in division.within for each in records}
        if division.boundary is not None:
            assert reach is not None
            assert division.boundary <= reach.lsn
            assert {row for row, commit in rows.items() if commit <= division.boundary} == applied
        taken = [each for _, records in (*division.within, *division.beyond) for each in records]
        assert len(taken) == given + sum(one.topic in TOPICS for one in batch)
        if chance.random() < 0.5:  # what lies beyond waits
            waiting, ahead = division.beyond, division.settled
        else:
            waiting, ahead = [], division.ahead
            applied |= {(t, each[1]) for t, records in division.beyond for each in records}
    # with one more heartbeat behind all of it, the tables are where the log ends
    end = max(one.commit for one in log)
    beat = record(10**6, end, end + 20)
    final = divide(
        [*waiting, (BEAT, [beat])], frozenset(TOPICS), CompleteThrough(1, end + 5), ahead
    )
    applied |= {(t, each[1]) for t, records in final.within for each in records}
    assert (end + 5, rows.keys()) == (final.boundary, applied)


@given(st.integers(0, 10**9).map(Random))
def test_a_batch_that_is_taken_again_publishes_nothing_it_does_not_stand_at(
    chance: Random,
) -> None:
    """Killed between the parts or after them, the batch comes again."""
    ahead, applied = UnpublishedProgress(), set[int]()
    for batch, reached in in_batches(a_log(chance), chance):
        reach = None if reached is None else CompleteThrough(1, reached)
        by_place = {(one.topic, one.record.offset): one.commit for one in batch}
        for _ in range(chance.randint(0, 2)):
            killed = divide(runs(batch), frozenset(TOPICS), reach, ahead)
            applied |= {by_place[t, each[4]] for t, rs in killed.within for each in rs}
            if chance.random() < 0.5:
                ahead = killed.ahead
                applied |= {by_place[t, each[4]] for t, rs in killed.beyond for each in rs}
        division = divide(runs(batch), frozenset(TOPICS), reach, ahead)
        applied |= {by_place[t, each[4]] for t, records in division.within for each in records}
        if division.boundary is not None:
            assert all(commit <= division.boundary for commit in applied)
        applied |= {by_place[t, each[4]] for t, records in division.beyond for each in records}
        ahead = division.ahead


def test_tables_whose_rows_wait_come_to_a_boundary_with_every_batch_however_far_it_lags() -> None:
    ahead = UnpublishedProgress()
    waiting: list[Run] = []
    found = []
    for number in range(2, 30):  # a transaction every 100 bytes, known three later
        batch = [("shop.a", [record(number, 100 * (number - 1), 100 * number - 50)])]
        division = divide(
            [*waiting, *batch], frozenset(TOPICS), CompleteThrough(1, 100 * number - 300), ahead
        )
        waiting, ahead = division.beyond, division.settled
        found.append(division.boundary)

    assert [100 * number - 300 for number in range(5, 30)] == found[3:]


def test_a_row_that_was_read_later_lies_beyond_until_the_log_has_come_there() -> None:
    read = record(0, None, 500, op="r")
    beat = record(0, 300, 310)
    first = divide(
        [("shop.a", [read]), (BEAT, [beat])],
        frozenset(TOPICS),
        CompleteThrough(1, 400),
        UnpublishedProgress(),
    )
    assert (400, [read]) == (first.boundary, list(first.beyond[0][1]))

    second = divide([(BEAT, [beat])], frozenset(TOPICS), CompleteThrough(1, 450), first.ahead)
    third = divide([(BEAT, [beat])], frozenset(TOPICS), CompleteThrough(1, 500), second.ahead)

    assert (None, 500) == (second.boundary, third.boundary)


def test_another_epoch_begins_anew_and_what_is_left_of_the_old_one_counts_no_more() -> None:
    old, new = record(0, 900, 910), record(1, 100, 120, epoch=2)
    ahead = UnpublishedProgress(1, after_commit=900, commit=900)

    division = divide([("shop.a", [old, new])], frozenset(TOPICS), CompleteThrough(2, 110), ahead)
    early = divide([("shop.a", [old, new])], frozenset(TOPICS), CompleteThrough(1, 910), ahead)

    assert ([old], [new]) == (division.within[0][1], division.beyond[0][1])
    assert (100, UnpublishedProgress(2, 100, 0, 100)) == (division.boundary, division.ahead)
    assert early.boundary is None


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        b"",
        b"{}",
        b'{"sequence":"[',
        b'{"source":{"sequence":"[\\"x\\",\\"y\\"]"},"op":"u"}',
        b'{"source":{"sequence":"[null,null]"},"op":"r"}',
    ],
)
def test_what_does_not_tell_its_place_is_applied_as_it_comes(damaged: bytes | None) -> None:
    assert position_of(Record(None, damaged, "1", 0, 0)) is None
    assert position_of(record(0, 5, 6)._replace(epoch=None)) is None
    assert position_of(record(0, 5, 6)._replace(epoch="one")) is None
    assert RecordPosition(1, 5, 0) == position_of(record(0, 5, 6))
    assert RecordPosition(1, 0, 0) == position_of(record(0, None, 6))
