"""The position of a snapshot of a table without a key, which must be exact.

Rows without a key are identified by their position, so a row that is both read and streamed would
exist twice. The snapshot must therefore contain exactly the changes before its position. This holds
if no transaction was writing to the table when the snapshot was taken. It can be checked without
blocking writers: take the database snapshot first, then the position. A transaction that is
invisible to the snapshot and wrote before the position either still holds its lock or has ended
within the few microseconds since; both can be detected. If writers leave no such moment, a lock
blocks them briefly and is released at once. Without the privilege to lock, the snapshot waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import errors

from cdc.postgres import transaction
from cdc.snapshot import read_point
from cdc.snapshot.errors import WritersInTheWayError
from foundation.waiting import looks

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from cdc.lsn import Lsn
    from cdc.snapshot.table_facts import TableFacts

LOOKS_S: Final = 3.0
"""How long to look for a moment without writers before blocking them for one."""

_PAUSE_S: Final = 0.005
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SEEN: Final = "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
_NOW: Final = "SELECT pg_current_snapshot()::text"
_HOLD: Final = "SET LOCAL lock_timeout = '2s'; LOCK TABLE {} IN SHARE MODE"


def begin(
    reader: Connection[Any],
    other: Connection[Any],
    facts: TableFacts,
    stopped: Callable[[], bool],
) -> Lsn:
    """Begins a transaction that sees exactly the changes before a position; returns the position.

    Args:
        reader: The session that reads; in autocommit before, in a transaction afterwards.
        other: Another session, in autocommit.
        facts: The table.
        stopped: Returns whether to give up.

    Raises:
        WritersInTheWayError: There is always a writer, and the table cannot be locked in time.
    """
    for _ in looks(LOOKS_S, _PAUSE_S):
        if stopped():
            break
        position = _at_rest(reader, other, facts)
        if position is not None:
            return position
        reader.execute("ROLLBACK")
    return _held(reader, other, facts)


def ended_between(earlier: str, later: str) -> bool:
    """Returns whether a transaction invisible to one snapshot had ended by a later snapshot.

    Args:
        earlier: `xmin:xmax:running,…`, as Postgres writes a snapshot.
        later: A snapshot taken afterwards, in the same form.
    """
    _, unborn, running = _parts(earlier)
    _, unborn_later, running_later = _parts(later)
    unseen = running | set(range(unborn, unborn_later))
    return bool(unseen - running_later)


def _at_rest(reader: Connection[Any], other: Connection[Any], facts: TableFacts) -> Lsn | None:
    reader.execute(_BEGIN)
    seen, position = _row(reader, _SEEN)
    if read_point.writers(other, facts.oid):
        return None
    (now,) = _row(other, _NOW)
    return None if ended_between(seen, now) else read_point.before(position)


def _held(reader: Connection[Any], other: Connection[Any], facts: TableFacts) -> Lsn:
    name = facts.relation.as_string(other).removeprefix("ONLY ")
    try:
        with other.transaction():
            other.execute(_HOLD.format(name).encode())
            reader.execute(_BEGIN)
            _, position = _row(reader, _SEEN)
    except (errors.LockNotAvailable, errors.InsufficientPrivilege) as error:
        writers = transaction.described(other, read_point.writers(other, facts.oid))
        seen = [error.diag.message_primary or type(error).__name__, *map(str, writers)]
        raise WritersInTheWayError(
            f"table {facts.schema.table} has no key, and always has an active writer",
            detail="; ".join(seen),
            hint="give it a primary key, stop its writers for a moment, or let the role lock it "
            f"(GRANT MAINTAIN ON {facts.schema.table})",
        ) from None
    return read_point.before(position)


def _parts(snapshot: str) -> tuple[int, int, set[int]]:
    low, high, running = snapshot.split(":")
    return int(low), int(high), {int(xid) for xid in running.split(",") if xid}


def _row(connection: Connection[Any], query: str) -> Any:
    return connection.execute(query.encode()).fetchone()
