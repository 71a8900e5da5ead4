"""The replication slot: what keeps the source's log until it has been read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import Error, errors

from cdc.lsn import Lsn
from cdc.postgres.errors import SlotError

if TYPE_CHECKING:
    from psycopg import Connection

_STATUS: Final = """
SELECT active, active_pid, database, plugin, restart_lsn::text, confirmed_flush_lsn::text,
       wal_status,
       coalesce(pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint
  FROM pg_replication_slots WHERE slot_name = %s
"""
_POLL_S: Final = 0.1
_FAILOVER_VERSION: Final = 170_000


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A replication slot as the server has it.

    Attributes:
        name: Its name.
        active: Somebody reads from it.
        active_pid: The server process that does.
        database: The database it decodes; None for a physical slot.
        plugin: Its output plugin; None for a physical slot.
        restart_lsn: Where the log that it keeps begins.
        confirmed_flush_lsn: Up to where its reader has everything.
        wal_status: `reserved`, `extended`, `unreserved` or `lost`.
        retained_bytes: Bytes of log that it keeps.
    """

    name: str
    active: bool
    active_pid: int | None
    database: str | None
    plugin: str | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    retained_bytes: int


def status(connection: Connection[Any], name: str) -> SlotStatus | None:
    """Describes a slot; None if there is none of that name."""
    row = connection.execute(_STATUS, (name,)).fetchone()
    if row is None:
        return None
    active, pid, database, plugin, restart, confirmed, wal_status, retained = row
    return SlotStatus(
        name,
        active,
        pid,
        database,
        plugin,
        Lsn.parse(restart) if restart else None,
        Lsn.parse(confirmed) if confirmed else None,
        wal_status,
        int(retained),
    )


def ensure(connection: Connection[Any], name: str, deadline_s: float = 60.0) -> list[str]:
    """Makes the slot unless it is there; returns what was changed.

    A server that can hands it on to its standbys (Postgres 17 and later).

    Args:
        connection: In autocommit.
        name: The slot's name.
        deadline_s: Longest wait for transactions that were open before, seconds.

    Raises:
        SlotError: They did not end in time, or no slot is free.
    """
    if status(connection, name) is not None:
        return []
    failover = ", failover => true" if connection.info.server_version >= _FAILOVER_VERSION else ""
    try:
        connection.execute("SELECT set_config('statement_timeout', %s, false)", (_ms(deadline_s),))
        connection.execute(
            f"SELECT pg_create_logical_replication_slot(%s, 'pgoutput'{failover})".encode(), (name,)
        )
    except Error as error:
        raise SlotError(
            f"slot {name} cannot be made",
            detail=error.diag.message_primary,
            hint="transactions that stay open are in the way (pg_stat_activity), or "
            "max_replication_slots is reached",
        ) from None
    finally:
        connection.execute("RESET statement_timeout")
    return [f"made slot {name}"]


def drop(connection: Connection[Any], name: str, deadline_s: float = 15.0) -> bool:
    """Drops a slot once its reader has let go; returns whether there was one.

    Raises:
        SlotError: Somebody still reads from it.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except errors.UndefinedObject:
            return False
        except errors.ObjectInUse as error:
            if time.monotonic() > deadline:
                raise SlotError(
                    f"slot {name} is in use",
                    detail=error.diag.message_primary,
                    hint="stop the connector that reads from it",
                ) from error
            time.sleep(_POLL_S)
        else:
            return True


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))
