"""The replication slot, which retains the source's log until it has been read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from psycopg import Error, errors

from cdc.lsn import Lsn
from cdc.postgres.errors import SlotError, SlotExistsError
from foundation.waiting import looks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import Connection

# Selected as JSON, because newer versions of Postgres have columns that older ones lack.
_STATUS: Final = """
SELECT to_jsonb(s), coalesce(r.application_name, ''),
       coalesce(pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn()
                ELSE pg_current_wal_lsn() END, s.restart_lsn), 0)::bigint,
       (SELECT total_txns FROM pg_stat_replication_slots WHERE slot_name = s.slot_name)
  FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
 WHERE s.slot_name = %s
"""
_MAKE: Final = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
_MAKE_HANDED_ON: Final = _MAKE.replace("'pgoutput'", "'pgoutput', failover => true")
_POLL_S: Final = 0.1
_FAILOVER_VERSION: Final = 170_000
_STREAMING: Final = "Debezium Streaming"


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The state of a replication slot.

    Attributes:
        name: Its name.
        active: Whether a connector reads from it.
        active_pid: The server process of that session.
        database: The database it decodes; None for a physical slot.
        plugin: Its output plugin; None for a physical slot.
        restart_lsn: Start of the retained log.
        confirmed_flush_lsn: Position through which its reader has everything.
        wal_status: `reserved`, `extended`, `unreserved` or `lost`.
        retained_bytes: Size of the retained log.
        holder: Application name of its reader; empty if it has none.
        safe_wal_bytes: Bytes of log until the server invalidates the slot; None without a limit.
        invalidation: Why the server invalidated it (Postgres 17 and later); None if it did not.
        inactive_since: When its last reader disconnected (Postgres 17 and later).
        failover: Whether standbys receive it too (Postgres 17 and later).
        synced: Whether it was copied from a primary (Postgres 17 and later).
        decoded_transactions: Number since its creation, or since the statistics were reset.
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
    holder: str = ""
    safe_wal_bytes: int | None = None
    invalidation: str | None = None
    inactive_since: datetime | None = None
    failover: bool = False
    synced: bool = False
    decoded_transactions: int = 0

    @property
    def streams(self) -> bool:
        """Returns whether a connector reads from it."""
        return self.active and self.holder == _STREAMING

    def decodes(self, database: str) -> bool:
        """Returns whether it decodes this database, with our connectors' plugin."""
        return self.database == database and self.plugin == "pgoutput"

    @property
    def lost(self) -> bool:
        """Returns whether the server has removed log that the slot should have retained."""
        return self.wal_status == "lost" or self.invalidation is not None


def status(connection: Connection[Any], name: str) -> SlotStatus | None:
    """Describes a slot; returns None if it does not exist."""
    row = connection.execute(_STATUS, (name,)).fetchone()
    if row is None:
        return None
    found, holder, retained, decoded = row
    since = found.get("inactive_since")
    safe = found.get("safe_wal_size")
    invalidation = found.get("invalidation_reason") or ("conflict" if _conflicts(found) else None)
    return SlotStatus(
        name=name,
        active=found["active"],
        active_pid=found["active_pid"],
        database=found["database"],
        plugin=found["plugin"],
        restart_lsn=_lsn(found["restart_lsn"]),
        confirmed_flush_lsn=_lsn(found["confirmed_flush_lsn"]),
        wal_status=found["wal_status"],
        retained_bytes=int(retained),
        holder=holder,
        safe_wal_bytes=None if safe is None else int(safe),
        invalidation=invalidation,
        inactive_since=datetime.fromisoformat(since) if since else None,
        failover=bool(found.get("failover")),
        synced=bool(found.get("synced")),
        decoded_transactions=int(decoded or 0),
    )


def make(connection: Connection[Any], name: str, deadline_s: float = 60.0) -> Lsn:
    """Creates a slot; returns the position from which it has every change.

    Servers with Postgres 17 or later copy it to their standbys.

    Args:
        connection: To the source, in autocommit.
        name: The slot's name.
        deadline_s: Longest wait for transactions that are already open, seconds.

    Raises:
        SlotExistsError: A slot of that name exists.
        SlotError: The transactions did not end in time, or no slot is free.
    """
    handed_on = connection.info.server_version >= _FAILOVER_VERSION
    before = connection.execute("SHOW statement_timeout").fetchone()
    limit = "SELECT set_config('statement_timeout', %s, false)"
    try:
        connection.execute(limit, (_ms(deadline_s),))
        made = connection.execute(_MAKE_HANDED_ON if handed_on else _MAKE, (name,)).fetchone()
    except errors.DuplicateObject:
        raise SlotExistsError(
            f"slot {name} already exists", hint=f"drop the slot: {dropping(name)}"
        ) from None
    except Error as error:
        raise SlotError(
            f"slot {name} cannot be created",
            detail=error.diag.message_primary,
            hint="open transactions block it (see pg_stat_activity), or "
            "max_replication_slots is reached",
        ) from None
    finally:
        connection.execute(limit, before)
    return Lsn.parse(str(made[0] if made else ""))


def drop(connection: Connection[Any], name: str, deadline_s: float = 15.0) -> bool:
    """Drops a slot once its reader has disconnected; returns whether it existed.

    Raises:
        SlotError: A connector still reads from it, or it belongs to another database or plugin
            (the server itself would drop it nevertheless).
    """
    found = status(connection, name)
    if found is not None and not found.decodes(connection.info.dbname):
        raise SlotError(
            f"slot {name} belongs to another database or plugin",
            detail=f"database {found.database}, plugin {found.plugin}",
            hint="give this source another name, or let the slot's owner drop it: "
            + dropping(name),
        )
    held: errors.ObjectInUse | None = None
    for _ in looks(deadline_s, _POLL_S):
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except errors.UndefinedObject:
            return False
        except errors.ObjectInUse as error:
            held = error
        else:
            return True
    raise SlotError(
        f"slot {name} is in use",
        detail=held.diag.message_primary if held else None,
        hint="stop the connector that reads from the slot",
    ) from held


def dropping(name: str) -> str:
    """Returns the statement that drops a slot by hand."""
    return f"SELECT pg_drop_replication_slot('{name}');"


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text else None


def _conflicts(found: Mapping[str, Any]) -> bool:
    return bool(found.get("conflicting"))  # Postgres 16 reports no more


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))
