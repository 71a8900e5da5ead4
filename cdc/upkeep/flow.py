"""Whether changes flow, by measurement and not by the connector's report.

Every heartbeat writes a row that takes the whole path: through the log, the sender and the
connector into its topic. An idle source therefore moves too, and a capture that does not move for
long is stalled, even if Connect reports its task as running. Heartbeats wait behind a big
transaction; arriving records, or a sender that continues to read, distinguish that from a stall.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdc.broker.reading.arrival import ArrivalSample
    from cdc.connect.rest import ConnectorState
    from cdc.postgres.delivery import DeliverySample

GRACE_S: Final = 20.0
"""Longest pause by a garbage collection, a rebalance or a worker's restart that is not a stall."""

BEATS_MISSED: Final = 3
READING_MAX_S: Final = 600.0
"""A sender that reads on while nothing arrives is at work this long: one huge transaction."""

_HALTED: Final = frozenset({"PAUSED", "STOPPED"})
_AT_WORK: Final = (None, "ReorderBufferRead", "ReorderBufferWrite", "ReorderLogicalMappingRead")


class FlowState(StrEnum):
    """The state of a capture; determined on request, stored nowhere."""

    RUNNING = "RUNNING"  # the newest heartbeat has arrived
    BEHIND = "BEHIND"  # it has not arrived, but changes before it keep arriving
    STALLED = "STALLED"  # reported as running, but nothing moves
    PAUSED = "PAUSED"  # paused on request
    FAILED = "FAILED"  # the connector, its task or its slot is out of order
    MISSING = "MISSING"  # nothing is captured


@dataclass(frozen=True, slots=True)
class CaptureSample:
    """The state of both ends of a capture at one moment.

    Attributes:
        worker: Connect's report; None if it does not know the connector, or does not answer.
        answers: Whether Connect answers.
        delivery: The sending side; None if nothing was ever captured.
        arrival: The receiving side; None if it was not read, or no broker answers.
    """

    worker: ConnectorState | None
    answers: bool
    delivery: DeliverySample | None
    arrival: ArrivalSample | None = None

    @property
    def halted(self) -> bool:
        """Returns whether the connector was paused on request."""
        return self.worker is not None and self.worker.connector.state in _HALTED

    @property
    def beat_at(self) -> datetime | None:
        """When the newest heartbeat that has arrived was committed."""
        if self.arrival is None or self.arrival.beat is None:
            return None
        microseconds = self.arrival.beat.committed_at_us
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)

    def moved_since(self, before: CaptureSample) -> bool:
        """Returns whether anything has arrived or was confirmed since an earlier sample."""
        if self.arrival and before.arrival and self.arrival.records != before.arrival.records:
            return True
        now, then = self.delivery, before.delivery
        if now is None or then is None:
            return now is not then
        return now.confirmed_flush_lsn != then.confirmed_flush_lsn

    def reads_since(self, before: CaptureSample, limit_s: float) -> bool:
        """Returns whether the sender continues to read for a connector that is alive.

        Args:
            before: An earlier sample.
            limit_s: Longest silence of the connector's heartbeat.
        """
        now, then = self.delivery, before.delivery
        if now is None or then is None:
            return False
        return self.answers and self.beats(limit_s) and _reads_on(now, then)

    def beats(self, limit_s: float) -> bool:
        """Returns whether the connector's task still writes its heartbeat."""
        seen = self.delivery
        if seen is None or seen.beat_at is None:
            return False
        return (seen.at - seen.beat_at).total_seconds() <= limit_s

    def facts(self) -> str:
        """Summarizes the sample in one line: positions, ages, who answers."""
        parts = []
        if self.delivery is not None:
            sender = self.delivery.sender_pid
            parts.append(f"confirmed through {self.delivery.confirmed_flush_lsn}")
            parts.append(f"sender {sender}" if sender else "no connector reads from the slot")
            if self.delivery.beat_at is not None:
                parts.append(f"heartbeat written {_time(self.delivery.beat_at)}")
        if self.arrival is not None:
            arrived = _time(self.beat_at) if self.beat_at else "never"
            parts.append(f"heartbeat arrived {arrived}")
        parts.append(_worker(self))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Flow:
    """The state of a capture with its reasons.

    Attributes:
        state: The state.
        since: Commit time of the newest heartbeat that has arrived; None if none has.
        seen: The observations, one line.
    """

    state: FlowState
    since: datetime | None
    seen: str

    @property
    def healthy(self) -> bool:
        """Returns whether changes flow."""
        return self.state in {FlowState.RUNNING, FlowState.BEHIND}


def stall_limit_s(heartbeat_interval_ms: int) -> float:
    """Returns after how long without any movement a capture is stalled."""
    return GRACE_S + BEATS_MISSED * heartbeat_interval_ms / 1000


def judge(first: CaptureSample, last: CaptureSample, limit_s: float) -> Flow:
    """Judges by two samples, the second some seconds after the first, or the same.

    Args:
        first: The earlier sample.
        last: The later one.
        limit_s: See `stall_limit_s`.
    """
    return Flow(_state(first, last, limit_s), last.beat_at, last.facts())


def settled(sample: CaptureSample, limit_s: float) -> bool:
    """Returns whether one sample suffices, because a second one could not change the result."""
    return _determined(sample) is not None or age_s(sample) <= limit_s


def age_s(sample: CaptureSample) -> float:
    """Returns how old the newest heartbeat that has arrived is, seconds; infinite without one."""
    if sample.delivery is None or sample.beat_at is None:
        return float("inf")
    return (sample.delivery.at - sample.beat_at).total_seconds()


def _state(first: CaptureSample, last: CaptureSample, limit_s: float) -> FlowState:
    state = _determined(last)
    if state is not None:
        return state
    if age_s(last) <= limit_s:
        return FlowState.RUNNING
    if last.moved_since(first):
        return FlowState.BEHIND
    if last.beat_at is None and last.answers and last.beats(limit_s):
        return FlowState.BEHIND  # the first heartbeat has not arrived yet
    reads = last is not first and last.reads_since(first, limit_s)
    return FlowState.BEHIND if reads and age_s(last) <= READING_MAX_S else FlowState.STALLED


def _determined(sample: CaptureSample) -> FlowState | None:
    """Returns the state if the sample determines it; None if movement must be observed."""
    if sample.answers and sample.worker is None:
        return FlowState.MISSING
    if sample.halted:
        return FlowState.PAUSED
    if sample.worker is not None and sample.worker.failed:
        return FlowState.FAILED
    if sample.delivery is None or sample.delivery.confirmed_flush_lsn is None:
        return FlowState.FAILED  # a connector without a slot
    return None


def _reads_on(now: DeliverySample, then: DeliverySample) -> bool:
    if now.sender_pid is None:
        return False
    if (now.sent_lsn, now.decoded_bytes) != (then.sent_lsn, then.decoded_bytes):
        return True
    # without that permission it is unknown: a restart within a huge transaction would repeat it
    return now.wait_event in _AT_WORK or not now.visible


def _worker(sample: CaptureSample) -> str:
    if not sample.answers:
        return "Connect does not answer"
    if sample.worker is None:
        return "Connect knows no such connector"
    return "Connect says " + "/".join(part.state for part in sample.worker.parts)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
