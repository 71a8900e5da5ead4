"""The identity of a server and its timeline, by which a source is distinguished from a copy."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from cdc.lsn import Lsn

if TYPE_CHECKING:
    from psycopg import Connection

_IDENTIFY: Final = """
SELECT system_identifier, timeline_id, pg_is_in_recovery(),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
             ELSE pg_current_wal_insert_lsn() END)::text
  FROM pg_control_system(), pg_control_checkpoint()
"""
# The control file has a new timeline only after a checkpoint; names of log files have it at once.
_TIMELINE: Final = (
    "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int"
)
_SWITCH: Final = re.compile(r"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Server:
    """The identity of a server at one moment.

    Attributes:
        system_id: Random id of its cluster; copies and standbys have the same.
        timeline: Increases with every promotion and point-in-time restore.
        standby: Whether it follows another server.
        end_lsn: End of its log.
    """

    system_id: int
    timeline: int
    standby: bool
    end_lsn: Lsn


def identify(connection: Connection[Any]) -> Server:
    """Reads the identity of a session's server."""
    row = connection.execute(_IDENTIFY).fetchone()
    if row is None:
        raise AssertionError("a query without a condition has a row")
    system_id, timeline, standby, end = row
    if not standby:
        found = connection.execute(_TIMELINE).fetchone()
        timeline = found[0] if found else timeline
    return Server(int(system_id), int(timeline), bool(standby), Lsn.parse(end or "0/0"))


def left_timeline(dsn: str, *, timeline: int, current: int) -> Lsn | None:
    """Returns where a server's history left an earlier timeline; None if it was never on it.

    Args:
        dsn: The server, as a role that may replicate.
        timeline: The earlier timeline.
        current: The server's present timeline.
    """
    conninfo = make_conninfo(dsn, replication="database")
    try:
        with closing(psycopg.connect(conninfo, autocommit=True)) as connection:
            row = connection.execute(f"TIMELINE_HISTORY {current:d}".encode()).fetchone()
    except psycopg.Error:
        return None  # without proof, the history counts as unknown
    content = row[1] if row else ""
    text = bytes(content).decode("utf-8", "replace") if not isinstance(content, str) else content
    switches = {int(number): Lsn.parse(place) for number, place in _SWITCH.findall(text)}
    return switches.get(timeline)
