"""How much log a slot retains, how fast the log grows, and when that becomes dangerous."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from psycopg import errors

from cdc.lsn import Lsn
from cdc.postgres import slot, transaction

if TYPE_CHECKING:
    from datetime import datetime

    from psycopg import Connection

    from cdc.postgres.slot import SlotStatus
    from cdc.postgres.transaction import OpenTransaction

WINDOW_S: Final = 2.0
"""Seconds between the two samples of one call."""

WARN_S: Final = 24 * 3600.0
"""A forecast within this time is a warning: a day gives an operator time to react."""

DANGER_S: Final = 3600.0

_SAMPLE: Final = """
SELECT clock_timestamp(),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
             ELSE pg_current_wal_lsn() END)::text
"""
_LIMITS: Final = """
SELECT name, nullif(setting, '-1')::bigint, unit FROM pg_settings
 WHERE name IN ('max_slot_wal_keep_size', 'idle_replication_slot_timeout')
"""
_WAL_BYTES: Final = "SELECT sum(size)::bigint FROM pg_ls_waldir()"
_UNITS: Final = {"MB": 1024 * 1024, "kB": 1024, "B": 1, "s": 1, "min": 60, "ms": 0.001}


class Level(StrEnum):
    """The urgency."""

    OK = "ok"
    WARN = "warn"  # needs attention within a day
    DANGER = "danger"  # within an hour


@dataclass(frozen=True, slots=True)
class WalSample:
    """The end of the log at one moment.

    Attributes:
        at: The server's clock.
        end_lsn: The end of the log.
    """

    at: datetime
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Pressure:
    """The log that a slot retains, and a forecast.

    Attributes:
        slot: The slot.
        first: The end of the log at the first sample.
        last: The end of the log at the last sample.
        moves: Whether the slot's reader advanced in between.
        keep_bytes: Log that the server retains for a slot at most; None without a limit.
        idle_s: How long a slot may be without a reader; None without a limit.
        disk_bytes: Free bytes on the log's disk; None if unknown.
        writer: The open transaction that wrote first: the slot retains the log since then,
            regardless of its reader; None if there is none.
    """

    slot: SlotStatus
    first: WalSample
    last: WalSample
    moves: bool
    keep_bytes: int | None = None
    idle_s: float | None = None
    disk_bytes: int | None = None
    writer: OpenTransaction | None = None

    @property
    def bytes_per_s(self) -> float:
        """Returns how fast the log grows, for all databases of the server."""
        seconds = (self.last.at - self.first.at).total_seconds()
        grown = self.last.end_lsn.value - self.first.end_lsn.value
        return max(0.0, grown / seconds) if seconds > 0 else 0.0

    @property
    def disk_full_in_s(self) -> float | None:
        """Seconds until the disk is full if the slot's reader is idle; None if unknown or never."""
        return self._until(self.disk_bytes)

    @property
    def given_up_in_s(self) -> float | None:
        """Seconds until the server invalidates the slot if its reader is idle; None if never."""
        known = [self._until(self.slot.safe_wal_bytes), self._idle_in_s()]
        return min((found for found in known if found is not None), default=None)

    @property
    def level(self) -> Level:
        """Returns the urgency; a forecast only counts while the reader is idle."""
        if self.slot.lost or self.slot.wal_status == "unreserved":
            return Level.DANGER
        if self.moves:
            return Level.OK if self.slot.wal_status != "extended" else Level.WARN
        ends = [e for e in (self.disk_full_in_s, self.given_up_in_s) if e is not None]
        end_s = min(ends, default=float("inf"))
        if end_s < DANGER_S:
            return Level.DANGER
        return Level.WARN if end_s < WARN_S or not self.slot.active else Level.OK

    def _until(self, left_bytes: int | None) -> float | None:
        if left_bytes is None or self.bytes_per_s <= 0:
            return None
        return max(0.0, left_bytes / self.bytes_per_s)

    def _idle_in_s(self) -> float | None:
        since = self.slot.inactive_since
        if not self.idle_s or since is None or self.slot.active:
            return None
        return max(0.0, self.idle_s - (self.last.at - since).total_seconds())


def look(
    connection: Connection[Any],
    name: str,
    *,
    beat_s: float = 1.0,
    disk_bytes: int | None = None,
    before: WalSample | None = None,
) -> Pressure | None:
    """Takes two samples, the second one after some time on the server's clock.

    Args:
        connection: To the server.
        name: The slot.
        beat_s: Longest time between two advances of an active reader, seconds.
        disk_bytes: Free bytes on the log's disk.
        before: An earlier sample, for a rate over a longer time.

    Returns:
        The result; None if the slot does not exist.
    """
    then = slot.status(connection, name)
    if then is None:
        return None
    first = sample(connection)
    # the server's own answer ends the wait, so its clock and not ours is what counts
    connection.execute("SELECT pg_sleep(%s)", (WINDOW_S,))
    last = sample(connection)
    now = slot.status(connection, name)
    if now is None:
        return None
    keep_bytes, idle_s = _limits(connection)
    moved = now.confirmed_flush_lsn != then.confirmed_flush_lsn
    at_end = now.confirmed_flush_lsn is not None and now.confirmed_flush_lsn >= last.end_lsn
    return Pressure(
        now,
        before if before is not None and before.at < last.at else first,
        last,
        moved or (now.active and (at_end or beat_s >= WINDOW_S)),
        keep_bytes,
        idle_s,
        disk_bytes,
        transaction.oldest(connection),
    )


def sample(connection: Connection[Any]) -> WalSample:
    """Returns the present end of the log."""
    row = connection.execute(_SAMPLE).fetchone()
    if row is None:
        raise AssertionError("a query without a condition has a row")
    return WalSample(row[0], Lsn.parse(row[1]))


def wal_bytes(connection: Connection[Any]) -> int | None:
    """Returns how large all files of the log are; None if the role may not see them."""
    try:
        row = connection.execute(_WAL_BYTES).fetchone()
    except errors.InsufficientPrivilege:
        return None
    return int(row[0]) if row and row[0] is not None else None


def data_directory(connection: Connection[Any]) -> str | None:
    """Returns the server's data folder, on its machine; None if the role may not see it."""
    try:
        row = connection.execute("SELECT current_setting('data_directory')").fetchone()
    except errors.InsufficientPrivilege:
        return None
    return str(row[0]) if row else None


def _limits(connection: Connection[Any]) -> tuple[int | None, float | None]:
    found = {
        name: None if value is None else value * _UNITS.get(unit, 1)
        for name, value, unit in connection.execute(_LIMITS).fetchall()
    }
    keep, idle = found.get("max_slot_wal_keep_size"), found.get("idle_replication_slot_timeout")
    return None if keep is None else int(keep), float(idle) if idle else None
