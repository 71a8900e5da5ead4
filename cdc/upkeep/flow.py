"""Whether changes flow, by measurement and not by the connector's report.

Every heartbeat writes a row that travels the whole way: through the log, the sender, the connector,
into its topic. So an idle source moves too, and what does not move for long is stalled, whatever
Connect says of its task. While one big transaction is under way its heartbeats wait behind it;
records that arrive, or a sender that reads on, tell that from a stall.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdc.broker.reading.arrival import Arrival
    from cdc.connect.rest import ConnectorState
    from cdc.postgres.delivery import DeliverySample

GRACE_S: Final = 20.0
"""What a pause of a collector, a rebalance or a restarted worker takes without being a stall."""

BEATS_MISSED: Final = 3
READING_MAX_S: Final = 600.0
"""A sender that reads on while nothing arrives is at work this long: one huge transaction."""

_HALTED: Final = frozenset({"PAUSED", "STOPPED"})
_AT_WORK: Final = (None, "ReorderBufferRead", "ReorderBufferWrite", "ReorderLogicalMappingRead")


class FlowState(StrEnum):
    """How a capture stands; found by looking, stored nowhere."""

    RUNNING = "RUNNING"  # the newest heartbeat has arrived
    BEHIND = "BEHIND"  # it has not, and what is before it keeps arriving
    STALLED = "STALLED"  # said to run, and nothing moves
    PAUSED = "PAUSED"  # told to stop
    FAILED = "FAILED"  # the connector, its task or its slot is out of order
    MISSING = "MISSING"  # nothing is captured


@dataclass(frozen=True, slots=True)
class Sight:
    """Both ends of a capture at one moment.

    Attributes:
        worker: What Connect says; None where it knows no such connector, or does not answer.
        answers: Whether Connect answers.
        delivery: The sending side; None where nothing was ever captured.
        arrival: The receiving side; None if it was not looked at, or no broker answers.
    """

    worker: ConnectorState | None
    answers: bool
    delivery: DeliverySample | None
    arrival: Arrival | None = None

    @property
    def halted(self) -> bool:
        """Whether the connector was paused on request."""
        return self.worker is not None and self.worker.connector.state in _HALTED

    @property
    def beat_at(self) -> datetime | None:
        """When the newest heartbeat that has arrived was committed."""
        if self.arrival is None or self.arrival.beat is None:
            return None
        microseconds = self.arrival.beat.committed_at_us
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)

    def moved_since(self, before: Sight) -> bool:
        """Tells whether anything has arrived or was confirmed since an earlier sight."""
        if self.arrival and before.arrival and self.arrival.records != before.arrival.records:
            return True
        now, then = self.delivery, before.delivery
        if now is None or then is None:
            return now is not then
        return now.confirmed_flush_lsn != then.confirmed_flush_lsn

    def reads_since(self, before: Sight, limit_s: float) -> bool:
        """Tells whether the sender reads on for a connector that is alive.

        Args:
            before: An earlier sight.
            limit_s: Longest silence of the connector's heartbeat.
        """
        now, then = self.delivery, before.delivery
        if now is None or then is None:
            return False
        return self.answers and self.beats(limit_s) and _reads_on(now, then)

    def beats(self, limit_s: float) -> bool:
        """Whether the connector's task still writes its heartbeat, though it may not arrive."""
        seen = self.delivery
        if seen is None or seen.beat_at is None:
            return False
        return (seen.at - seen.beat_at).total_seconds() <= limit_s

    def facts(self) -> str:
        """Returns what was seen, in one line: positions, ages, who answers."""
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
    """A judgement.

    Attributes:
        state: The state.
        since: When the newest heartbeat that has arrived was committed; None if none has.
        seen: What it was judged by, one line.
    """

    state: FlowState
    since: datetime | None
    seen: str

    @property
    def healthy(self) -> bool:
        """Whether changes flow."""
        return self.state in {FlowState.RUNNING, FlowState.BEHIND}


def stall_limit_s(heartbeat_interval_ms: int) -> float:
    """Returns after how long without any movement a capture is stalled."""
    return GRACE_S + BEATS_MISSED * heartbeat_interval_ms / 1000


def judge(first: Sight, last: Sight, limit_s: float) -> Flow:
    """Judges by two sights, the second some seconds after the first, or the same.

    Args:
        first: The earlier sight.
        last: The later one.
        limit_s: See `stall_limit_s`.
    """
    return Flow(_state(first, last, limit_s), last.beat_at, last.facts())


def settled(sight: Sight, limit_s: float) -> bool:
    """Tells whether one sight is enough, because no second one could change the judgement."""
    return _said(sight) is not None or age_s(sight) <= limit_s


def age_s(sight: Sight) -> float:
    """Returns how old the newest heartbeat that has arrived is, seconds; infinite without one."""
    if sight.delivery is None or sight.beat_at is None:
        return float("inf")
    return (sight.delivery.at - sight.beat_at).total_seconds()


def _state(first: Sight, last: Sight, limit_s: float) -> FlowState:
    said = _said(last)
    if said is not None:
        return said
    if age_s(last) <= limit_s:
        return FlowState.RUNNING
    if last.moved_since(first):
        return FlowState.BEHIND
    if last.beat_at is None and last.answers and last.beats(limit_s):
        return FlowState.BEHIND  # captured since just now: the first heartbeat is on its way
    reads = last is not first and last.reads_since(first, limit_s)
    return FlowState.BEHIND if reads and age_s(last) <= READING_MAX_S else FlowState.STALLED


def _said(sight: Sight) -> FlowState | None:
    """What is out of question already; None if it has to be looked at what moves."""
    if sight.answers and sight.worker is None:
        return FlowState.MISSING
    if sight.halted:
        return FlowState.PAUSED
    if sight.worker is not None and sight.worker.failed:
        return FlowState.FAILED
    if sight.delivery is None or sight.delivery.confirmed_flush_lsn is None:
        return FlowState.FAILED  # a connector without a slot
    return None


def _reads_on(now: DeliverySample, then: DeliverySample) -> bool:
    if now.sender_pid is None:
        return False
    if (now.sent_lsn, now.decoded_bytes) != (then.sent_lsn, then.decoded_bytes):
        return True
    # who may not see it cannot tell: a restart amid a huge transaction would begin it anew
    return now.wait_event in _AT_WORK or not now.visible


def _worker(sight: Sight) -> str:
    if not sight.answers:
        return "Connect does not answer"
    if sight.worker is None:
        return "Connect knows no such connector"
    return "Connect says " + "/".join(part.state for part in sight.worker.parts)


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
