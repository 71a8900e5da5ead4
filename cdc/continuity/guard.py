"""The guard: permits streaming from an intact slot, and stops a connector that has lost changes.

Connect starts a connector's tasks by itself, regardless of what happened to the slot. Each task
therefore first queries the source (`headwater.may_stream`), which permits streaming only after the
guard has compared slot, offsets and topics while no connector read. While a task streams, its slot
is in use and cannot be changed; heartbeats then show whether changes are lost on the way.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from cdc.broker.reading import heartbeats
from cdc.broker.topics import incarnation
from cdc.capture import HEARTBEAT_TABLE
from cdc.connect import supervision
from cdc.connect.errors import ConnectorNotRunningError
from cdc.continuity import errors
from cdc.continuity.evidence import Loss, gather, judge, noted, shorter
from cdc.continuity.heartbeat_sequence import follow
from cdc.continuity.start import admit, mark
from cdc.postgres import captures, slot
from foundation.waiting import looks

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.connect.rest import ConnectRest
    from cdc.postgres.captures import Capture
    from cdc.postgres.slot import SlotStatus

_HALTED: Final = frozenset({"STOPPED", "PAUSED"})
_POLL_S: Final = 0.1
_log = structlog.get_logger(__name__)


class Guard:
    """Watches one capture; the caller calls `look` repeatedly.

    Args:
        spec: What is captured.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        spec: CaptureSpec,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._kafka_due_at = 0.0
        self._said: str | None = None

    def look(self, connection: Connection[Any], rest: ConnectRest) -> Loss | None:
        """Checks once: lets a connector stream, or stops it permanently.

        Args:
            connection: To the source, with the setup role, in autocommit.
            rest: The worker.

        Returns:
            Why changes are missing; None if none are, or nothing is captured.

        Raises:
            ConnectUnavailableError: Connect does not answer.
            BrokerUnreachableError: No broker answers.
        """
        known = captures.find(connection, self._spec.name)
        if known is None or known.repairing is not None:
            return None  # nothing is captured, or another command is running
        if known.lost is not None:
            return self._lost(rest, noted(known))
        found = slot.status(connection, self._spec.slot)
        if found is not None and found.streams:
            loss = self._streaming(connection, known, found)
        else:
            loss = self._at_rest(connection, rest)
        if loss is not None:
            mark(connection, self._spec, loss)
            return self._lost(rest, loss)
        self._said = None
        return None

    def _lost(self, rest: ConnectRest, loss: Loss) -> Loss:
        if self._said != loss.code:
            _log.error("changes are missing", code=loss.code, reason=loss.message, seen=loss.detail)
            self._said = loss.code
        state = rest.state(self._spec.connector)
        if state is not None and state.connector.state not in _HALTED:
            rest.stop(self._spec.connector)
        return loss

    def _at_rest(self, connection: Connection[Any], rest: ConnectRest) -> Loss | None:
        state = rest.state(self._spec.connector)
        if state is None or state.connector.state in _HALTED:
            return None  # the command that starts it verifies it first
        seen = gather(connection, rest, self._spec)
        loss = judge(seen)
        if loss is None and (seen.slot is None or not seen.slot.active):
            admit(connection, rest, self._spec, seen)
        return loss

    def _streaming(
        self, connection: Connection[Any], known: Capture, found: SlotStatus
    ) -> Loss | None:
        if known.cleared_lsn is not None:
            captures.clear(connection, known.source, None)  # the permission was for one start
        if self._clock() < self._kafka_due_at:
            return None
        self._kafka_due_at = self._clock() + self._spec.guard_interval_s
        loss = self._topics(connection, known) or self._beats(connection, known)
        confirmed = found.confirmed_flush_lsn
        if loss is None and confirmed is not None and confirmed > known.slot_made_at:
            captures.note_captured(connection, known.source, confirmed)
        captures.note_wal(connection, known.source)
        return loss

    def _topics(self, connection: Connection[Any], known: Capture) -> Loss | None:
        spec = self._spec
        before = known.topics or {}
        now = incarnation.look(
            spec.kafka_bootstrap, {*before, *spec.table_topics.values(), spec.transaction_topic}
        )
        for name, topic in before.items():
            if name not in now or now[name].id != topic.id or shorter(now[name], topic):
                return Loss(
                    errors.TopicsRecreatedError,
                    "Kafka has lost changes that it had",
                    f"topic {name} is gone, recreated, or shorter than it was",
                )
        captures.note_topics(connection, known.source, now)
        return None

    def _beats(self, connection: Connection[Any], known: Capture) -> Loss | None:
        topic = self._spec.table_topics[HEARTBEAT_TABLE]
        arrived, whole = heartbeats.read(self._spec.kafka_bootstrap, topic, known.beat_offset or 0)
        found = [beat for beat in arrived if beat.epoch == known.epoch]
        # no check ran for longer than the topic's retention: continue with the remaining ones
        before = (known.beat_number, known.beat_lsn) if whole else (None, None)
        newest, missing = follow(*before, found)
        if missing is not None:
            return Loss(errors.BeatMissingError, "changes went missing on their way", missing)
        if newest is not None:
            captures.note_beat(
                connection,
                known.source,
                number=newest.number,
                lsn=newest.lsn,
                offset=found[-1].offset + 1,
            )
        return None


def await_streaming(
    connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec, deadline_s: float
) -> None:
    """Waits until a connector streams, and starts it as soon as its slot is complete.

    Raises:
        ContinuityError: Changes are missing.
        ConnectorFailedError: It failed in a way that a restart cannot repair.
        ConnectorNotRunningError: It does not stream in time.
    """
    guard = Guard(spec)
    deadline = time.monotonic() + deadline_s
    found = None
    for _ in looks(deadline_s, _POLL_S):
        loss = guard.look(connection, rest)
        if loss is not None:
            raise loss.error()
        found = slot.status(connection, spec.slot)
        if found is not None and found.streams:
            loss = guard.look(connection, rest)  # earlier heartbeats are checked, too
            if loss is not None:
                raise loss.error()
            return
        if (left_s := deadline - time.monotonic()) > 0:
            supervision.wait_running(rest, spec.connector, left_s)
    raise ConnectorNotRunningError(
        f"connector {spec.connector} does not stream within {deadline_s:.0f} s",
        detail=None if found is None else f"slot held by {found.holder or 'no process'}",
        hint="headwater logs connect",
    )
