"""Captures: which incarnation of a source is captured, from which slot of which server.

One row for each source, in the source itself, written with the slot. A copy of the source, a
restored source and a slot created by another process are all detected by comparison with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.rows import dict_row
from psycopg.types.json import Json

from cdc.broker.topics.incarnation import Incarnation
from cdc.lsn import Lsn
from cdc.postgres.pressure import WalSample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import Connection

_FIND: Final = """
SELECT source, epoch, slot, slot_made_at::text, system_id, timeline, cleared_lsn::text,
       captured_lsn::text, topics, beat_number, beat_lsn::text, beat_offset, lost, lost_detail,
       repairing
  FROM headwater.captures WHERE source = %s AND slot_made_at > '0/0'
"""
# A slot cannot be created and recorded in one transaction: the intention is recorded first, as a
# row with slot position 0/0.
_INTEND: Final = """
INSERT INTO headwater.captures (source, epoch, slot, slot_made_at, system_id, timeline)
VALUES (%s, 0, %s, '0/0', 0, 0) ON CONFLICT (source) DO NOTHING
"""
_INTENDED: Final = """
SELECT EXISTS (SELECT FROM headwater.captures
                WHERE source = %s AND slot = %s AND slot_made_at = '0/0')
"""
_WITHDRAW: Final = "DELETE FROM headwater.captures WHERE source = %s AND slot_made_at = '0/0'"
_RECORD: Final = """
INSERT INTO headwater.captures (source, epoch, slot, slot_made_at, system_id, timeline)
VALUES (%(source)s, %(epoch)s, %(slot)s, %(slot_made_at)s::pg_lsn, %(system_id)s, %(timeline)s)
ON CONFLICT (source) DO UPDATE
SET epoch = excluded.epoch, slot = excluded.slot, slot_made_at = excluded.slot_made_at,
    system_id = excluded.system_id, timeline = excluded.timeline, made_at = clock_timestamp(),
    cleared_lsn = NULL, captured_lsn = NULL, topics = NULL, beat_number = NULL, beat_lsn = NULL,
    beat_offset = NULL, lost = NULL, lost_detail = NULL, lost_at = NULL
"""
_BEGIN_REPAIR: Final = """
INSERT INTO headwater.captures AS c
       (source, epoch, slot, slot_made_at, system_id, timeline, repairing)
VALUES (%(source)s, %(epoch)s, %(slot)s, %(slot_made_at)s::pg_lsn, %(system_id)s, %(timeline)s,
        %(repairing)s)
ON CONFLICT (source) DO UPDATE
SET cleared_lsn = NULL, repairing = greatest(c.repairing, excluded.repairing)
"""
_KNOWN: Final = "SELECT to_regprocedure('headwater.may_stream(text)') IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Capture:
    """The recorded state of a capture.

    Attributes:
        source: Name of the source.
        epoch: Incarnation of the source.
        slot: Name of its slot.
        slot_made_at: Position from which the slot has every change.
        system_id: Id of the server's cluster.
        timeline: Its timeline at the last check.
        cleared_lsn: Position of the slot when it was found intact; a connector may begin to stream
            only there. None while it streams.
        captured_lsn: Kafka has at least everything up to here; None before it has any.
        topics: The source's topics at the last check.
        beat_number: Number of the newest heartbeat compared.
        beat_lsn: Its position.
        beat_offset: Offset after it.
        lost: Error code for missing changes; None if none are missing.
        lost_detail: The observed state at that time.
        repairing: Epoch of a repair in progress; None if there is none.
    """

    source: str
    epoch: int
    slot: str
    slot_made_at: Lsn
    system_id: int
    timeline: int
    cleared_lsn: Lsn | None = None
    captured_lsn: Lsn | None = None
    topics: Mapping[str, Incarnation] | None = None
    beat_number: int | None = None
    beat_lsn: Lsn | None = None
    beat_offset: int | None = None
    lost: str | None = None
    lost_detail: str | None = None
    repairing: int | None = None


def find(connection: Connection[Any], source: str) -> Capture | None:
    """Returns the recorded capture of a source; None if there is none."""
    known = connection.execute(_KNOWN).fetchone()
    if known is None or not known[0]:
        return None
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_FIND, (source,)).fetchone()
    return None if row is None else _capture(row)


def epoch_of(connection: Connection[Any], source: str) -> int:
    """Returns the captured incarnation; 0 if there is none."""
    found = find(connection, source)
    return 0 if found is None else found.epoch


def record(connection: Connection[Any], capture: Capture) -> None:
    """Records a new slot; the previous record belongs to a lost incarnation."""
    connection.execute(_RECORD, _place(capture))


def intend(connection: Connection[Any], source: str, slot: str) -> None:
    """Records the intention to create the slot of a first capture; no slot has its name yet."""
    connection.execute(_INTEND, (source, slot))


def intended(connection: Connection[Any], source: str, slot: str) -> bool:
    """Returns whether a slot was about to be created without a record of its creation."""
    known = connection.execute(_KNOWN).fetchone()
    if known is None or not known[0]:
        return False
    row = connection.execute(_INTENDED, (source, slot)).fetchone()
    return bool(row and row[0])


def withdraw(connection: Connection[Any], source: str) -> None:
    """Deletes the intention to create a slot, because a foreign slot has its name."""
    connection.execute(_WITHDRAW, (source,))


def clear(connection: Connection[Any], source: str, lsn: Lsn | None) -> None:
    """Permits a connector to start streaming from the slot's position; None revokes it."""
    connection.execute(
        "UPDATE headwater.captures SET cleared_lsn = %s::pg_lsn WHERE source = %s",
        (None if lsn is None else str(lsn), source),
    )


def note_captured(connection: Connection[Any], source: str, lsn: Lsn) -> None:
    """Records the position through which Kafka has everything; it never decreases."""
    connection.execute(
        "UPDATE headwater.captures SET captured_lsn = greatest(captured_lsn, %s::pg_lsn)"
        " WHERE source = %s",
        (str(lsn), source),
    )


def note_wal(connection: Connection[Any], source: str) -> None:
    """Records the end of the log once a minute, to derive a rate over more than a moment."""
    connection.execute(
        "UPDATE headwater.captures"
        " SET wal_lsn = pg_current_wal_lsn(), wal_at = clock_timestamp()"
        " WHERE source = %s AND (wal_at < clock_timestamp() - interval '1 minute') IS NOT FALSE",
        (source,),
    )


def noted_wal(connection: Connection[Any], source: str) -> WalSample | None:
    """Returns an earlier recorded end of the log; None if it is too old, or missing."""
    row = connection.execute(
        "SELECT wal_at, wal_lsn::text FROM headwater.captures WHERE source = %s"
        " AND wal_at BETWEEN clock_timestamp() - interval '10 minutes' AND clock_timestamp()"
        " AND wal_lsn <= pg_current_wal_lsn()",
        (source,),
    ).fetchone()
    return None if row is None else WalSample(row[0], Lsn.parse(row[1]))


def note_topics(
    connection: Connection[Any], source: str, topics: Mapping[str, Incarnation]
) -> None:
    """Records the present state of the topics."""
    document = {name: {"id": t.id, "ends": list(t.ends)} for name, t in topics.items()}
    connection.execute(
        "UPDATE headwater.captures SET topics = %s WHERE source = %s", (Json(document), source)
    )


def note_beat(
    connection: Connection[Any], source: str, *, number: int, lsn: Lsn, offset: int
) -> None:
    """Records the newest heartbeat without a gap before it."""
    connection.execute(
        "UPDATE headwater.captures SET beat_number = %s, beat_lsn = %s::pg_lsn, beat_offset = %s"
        " WHERE source = %s",
        (number, str(lsn), offset, source),
    )


def note_beat_offset(connection: Connection[Any], source: str, offset: int) -> None:
    """Records the offset at which the heartbeats of this incarnation begin."""
    connection.execute(
        "UPDATE headwater.captures SET beat_offset = %s WHERE source = %s", (offset, source)
    )


def follow_timeline(connection: Connection[Any], source: str, timeline: int) -> None:
    """Records that the source continues intact on another timeline."""
    connection.execute(
        "UPDATE headwater.captures SET timeline = %s WHERE source = %s", (timeline, source)
    )


def mark_lost(connection: Connection[Any], source: str, code: str, detail: str | None) -> None:
    """Records that changes are missing; nothing streams until the repair."""
    connection.execute(
        "UPDATE headwater.captures SET cleared_lsn = NULL, lost = %s, lost_detail = %s,"
        " lost_at = clock_timestamp() WHERE source = %s AND lost IS NULL",
        (code, detail, source),
    )


def begin_repair(connection: Connection[Any], capture: Capture) -> None:
    """Records that a capture is being recreated; until that is done, nothing streams.

    Args:
        connection: To the source.
        capture: The recorded capture, with the epoch of the repair in `repairing`.
    """
    withdraw(connection, capture.source)
    connection.execute(_BEGIN_REPAIR, {**_place(capture), "repairing": capture.repairing})


def end_repair(connection: Connection[Any], source: str) -> None:
    """Records that a repair is complete."""
    connection.execute(
        "UPDATE headwater.captures SET repairing = NULL WHERE source = %s", (source,)
    )


def forget(connection: Connection[Any], source: str) -> None:
    """Deletes the recorded capture of a source, and the positions of its views."""
    connection.execute("DELETE FROM headwater.captures WHERE source = %s", (source,))
    forget_positions(connection, source)


def forget_positions(connection: Connection[Any], source: str) -> None:
    """Deletes the positions of a source's views, which belong to a former log."""
    connection.execute("DELETE FROM headwater.view_positions WHERE source = %s", (source,))


def newest_beat(connection: Connection[Any]) -> int:
    """Returns the number of the last heartbeat written."""
    row = connection.execute("SELECT number FROM headwater.heartbeat WHERE id = 1").fetchone()
    return int(row[0]) if row else 0


def _place(capture: Capture) -> dict[str, Any]:
    return {
        "source": capture.source,
        "epoch": capture.epoch,
        "slot": capture.slot,
        "slot_made_at": str(capture.slot_made_at),
        "system_id": capture.system_id,
        "timeline": capture.timeline,
    }


def _capture(row: dict[str, Any]) -> Capture:
    places = ("slot_made_at", "cleared_lsn", "captured_lsn", "beat_lsn")
    topics = row["topics"]
    return Capture(
        **row
        | {place: _lsn(row[place]) for place in places}
        | {"topics": topics and {name: _topic(topic) for name, topic in topics.items()}}
    )


def _topic(document: Mapping[str, Any]) -> Incarnation:
    return Incarnation(str(document["id"]), tuple(document["ends"]))


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text else None
