"""What the server reports about delivery to a slot's reader: position, time, activity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.lsn import Lsn

if TYPE_CHECKING:
    from datetime import datetime

    from psycopg import Connection

# The last columns are NULL for another role's session, unless the role may read all statistics.
_DELIVERY: Final = """
SELECT clock_timestamp(), (SELECT beat_at FROM headwater.heartbeat WHERE id = 1),
       s.confirmed_flush_lsn::text, s.active_pid, r.sent_lsn::text,
       t.total_bytes + t.spill_bytes + t.stream_bytes, a.wait_event,
       a.backend_type IS NOT NULL
  FROM (VALUES (%(slot)s)) AS wanted (slot_name)
  LEFT JOIN pg_replication_slots s USING (slot_name)
  LEFT JOIN pg_stat_replication_slots t USING (slot_name)
  LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
  LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
"""
_HAS_HEARTBEAT: Final = "SELECT to_regclass('headwater.heartbeat') IS NOT NULL"


@dataclass(frozen=True, slots=True)
class DeliverySample:
    """One sample of the sending side.

    Attributes:
        at: The server's clock.
        beat_at: When the connector last wrote the heartbeat row; None if it never did.
        confirmed_flush_lsn: Position through which the reader has everything; None without a slot.
        sender_pid: The server process that sends; None while no reader is active.
        sent_lsn: Position that it has read; None if this may not be seen.
        decoded_bytes: Bytes decoded for the slot so far.
        wait_event: What the sender waits for; None while it is active.
        visible: Whether the session's role may see the sender's activity (`pg_monitor`).
    """

    at: datetime
    beat_at: datetime | None
    confirmed_flush_lsn: Lsn | None
    sender_pid: int | None = None
    sent_lsn: Lsn | None = None
    decoded_bytes: int | None = None
    wait_event: str | None = None
    visible: bool = True


def look(connection: Connection[Any], slot: str) -> DeliverySample | None:
    """Takes a sample; None if Headwater's schema does not exist, so that nothing is captured."""
    known = connection.execute(_HAS_HEARTBEAT).fetchone()
    if known is None or not known[0]:
        return None
    row = connection.execute(_DELIVERY, {"slot": slot}).fetchone()
    if row is None:
        return None
    at, beat_at, confirmed, pid, sent, decoded, wait_event, visible = row
    return DeliverySample(
        at,
        beat_at,
        Lsn.parse(confirmed) if confirmed else None,
        pid,
        Lsn.parse(sent) if sent else None,
        None if decoded is None else int(decoded),
        wait_event,
        bool(visible),
    )
