from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cdc.broker.reading.arrival import ArrivalSample
from cdc.change_event import ChangeEvent
from cdc.connect.rest import ConnectorState, TaskState
from cdc.envelope import Operation
from cdc.lsn import Lsn
from cdc.position import ChangePosition
from cdc.postgres.delivery import DeliverySample
from cdc.table import TableName
from cdc.upkeep.errors import CaptureStalledError
from cdc.upkeep.flow import CaptureSample, FlowState, judge, settled, stall_limit_s
from cdc.upkeep.stall import RESTARTS_MAX, StallWatch

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LIMIT_S = stall_limit_s(1_000)
RUNS = ConnectorState(TaskState(None, "RUNNING"), (TaskState(0, "RUNNING"),))
PAUSED = ConnectorState(TaskState(None, "PAUSED"), (TaskState(0, "PAUSED"),))
FAILED = ConnectorState(TaskState(None, "RUNNING"), (TaskState(0, "FAILED", "reset"),))


def beat(age_s: float) -> ChangeEvent:
    return ChangeEvent(
        TableName("headwater", "heartbeat"),
        Operation.UPDATE,
        {"id": 1},
        None,
        {"id": 1},
        ChangePosition(1, Lsn(1), Lsn(2), 1),
        1,
        int((NOW - timedelta(seconds=age_s)).timestamp() * 1_000_000),
        snapshot=False,
    )


def sample(  # noqa: PLR0913  # each is what one test is about
    *,
    age_s: float = 0.5,
    written_s: float = 0.5,
    confirmed: int = 100,
    records: int = 10,
    sent: int = 100,
    worker: ConnectorState | None = RUNS,
    answers: bool = True,
) -> CaptureSample:
    delivery = DeliverySample(
        NOW, NOW - timedelta(seconds=written_s), Lsn(confirmed), 7, Lsn(sent), 0, "WalSenderMain"
    )
    return CaptureSample(worker, answers, delivery, ArrivalSample(records, beat(age_s)))


def state(first: CaptureSample, last: CaptureSample) -> FlowState:
    return judge(first, last, LIMIT_S).state


OLD = sample(age_s=60)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (sample(), FlowState.RUNNING),
        (OLD, FlowState.STALLED),
        (sample(age_s=60, records=11), FlowState.BEHIND),
        (sample(age_s=60, confirmed=101), FlowState.BEHIND),
        (sample(age_s=60, sent=101), FlowState.BEHIND),
        (sample(age_s=700, sent=101), FlowState.STALLED),
        (sample(age_s=60, written_s=60, sent=101), FlowState.STALLED),
        (sample(age_s=60, sent=101, answers=False, worker=None), FlowState.STALLED),
        (sample(age_s=60, worker=PAUSED), FlowState.PAUSED),
        (sample(age_s=60, worker=FAILED), FlowState.FAILED),
        (sample(age_s=60, worker=None), FlowState.MISSING),
    ],
    ids=[
        "the newest heartbeat has arrived",
        "nothing moves",
        "records arrive",
        "the reader confirms",
        "the sender reads one huge transaction",
        "it reads for longer than any transaction",
        "it reads for a task that hangs",
        "it reads for a frozen worker",
        "paused",
        "failed",
        "no connector",
    ],
)
def test_a_capture_is_judged_by_what_moves(last: CaptureSample, expected: FlowState) -> None:
    assert expected is state(OLD, last)


def test_a_sender_that_may_not_be_seen_is_given_the_time_of_a_huge_transaction() -> None:
    def unseen(age_s: float) -> CaptureSample:
        seen = sample(age_s=age_s)
        assert seen.delivery is not None
        return replace(seen, delivery=replace(seen.delivery, visible=False, sent_lsn=None))

    assert FlowState.BEHIND is state(unseen(60), unseen(60))
    assert FlowState.STALLED is state(unseen(700), unseen(700))


def test_one_look_is_enough_unless_the_newest_heartbeat_is_old() -> None:
    assert settled(sample(), LIMIT_S)
    assert settled(sample(age_s=60, worker=PAUSED), LIMIT_S)
    assert not settled(OLD, LIMIT_S)


def test_a_slow_heartbeat_is_given_the_time_of_three() -> None:
    assert 20 + 3 * 3600 == stall_limit_s(3_600_000)


def test_a_judgement_says_since_when_and_what_was_seen() -> None:
    found = judge(OLD, sample(age_s=60, answers=False, worker=None), LIMIT_S)

    assert NOW - timedelta(seconds=60) == found.since
    assert "Connect does not answer" in found.seen
    assert "confirmed through 0/64" in found.seen


class Capture:
    """A capture that shows what it is told to, a clock, and a counter of restarts."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.sample = sample()
        self.restarted_at: list[float] = []
        self.asked_kafka = 0
        self.watch = StallWatch(
            "c", self._look, self._restart, limit_s=LIMIT_S, clock=lambda: self.now_s
        )

    def _look(self, arrivals: bool) -> CaptureSample:
        self.asked_kafka += arrivals
        return self.sample if arrivals else replace(self.sample, arrival=None)

    def _restart(self) -> None:
        self.restarted_at.append(round(self.now_s - 1_000))

    def run(self, seconds: int, *, moves: bool = False) -> None:
        for _ in range(seconds):
            self.now_s += 1
            if moves:
                delivery = self.sample.delivery
                assert delivery is not None
                assert delivery.confirmed_flush_lsn is not None
                there = Lsn(delivery.confirmed_flush_lsn.value + 1)
                moved = replace(delivery, confirmed_flush_lsn=there)
                self.sample = replace(self.sample, delivery=moved)
            self.watch.look()


def test_what_moves_is_neither_restarted_nor_asked_for_in_kafka() -> None:
    capture = Capture()

    capture.run(3_600, moves=True)

    assert ([], 0, 0.0) == (capture.restarted_at, capture.asked_kafka, capture.watch.stalled_s)


def test_a_stall_is_restarted_with_growing_pauses_and_then_given_up() -> None:
    capture = Capture()

    with pytest.raises(CaptureStalledError) as given_up:
        capture.run(3_600)

    gaps = [
        later - one
        for one, later in zip(capture.restarted_at, capture.restarted_at[1:], strict=False)
    ]
    assert RESTARTS_MAX == len(capture.restarted_at)
    assert LIMIT_S <= capture.restarted_at[0] <= LIMIT_S + 2
    assert [20, 40, 80, 160] == gaps
    assert "confirmed through" in (given_up.value.detail or "")


def test_a_stall_that_ends_starts_the_count_anew() -> None:
    capture = Capture()
    capture.run(60)

    capture.run(10, moves=True)

    assert len(capture.restarted_at) > 0
    assert (0, 0.0) == (capture.watch.restarts, capture.watch.stalled_s)


@pytest.mark.parametrize("worker", [PAUSED, FAILED, None], ids=["paused", "failed", "gone"])
def test_what_is_paused_or_has_failed_is_no_stall(worker: ConnectorState | None) -> None:
    capture = Capture()
    capture.sample = sample(worker=worker)

    capture.run(3_600)

    assert [] == capture.restarted_at


def test_a_sender_that_reads_on_is_given_ten_minutes() -> None:
    capture = Capture()
    for number in range(700):
        capture.sample = sample(sent=number)
        capture.run(1)

    assert 600 <= capture.restarted_at[0] <= 600 + LIMIT_S + 1
