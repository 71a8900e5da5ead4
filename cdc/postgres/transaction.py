"""Open transactions that have written: a slot retains the log since the oldest of them began.

A snapshot of a table waits for the transactions that write to it. A forgotten transaction, prepared
or idle, blocks both, so the error names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from psycopg import Connection

# For sessions of other roles, the server shows only the process, unless the role may see more.
_SESSIONS: Final = """
SELECT a.pid, coalesce(a.application_name, ''), a.xact_start, NULL
  FROM pg_stat_activity AS a WHERE a.pid = ANY(%(pids)s)
UNION ALL
SELECT NULL, 'prepared transaction', prepared, gid
  FROM pg_prepared_xacts WHERE transaction::text = ANY(%(xids)s)
 ORDER BY 3 NULLS LAST, 1
"""
# A transaction that has written holds a lock on its number, which every role may see, for all
# databases; the start time of others' transactions is hidden. The first write assigns the number.
_WROTE: Final = """
SELECT transactionid::text, pid FROM pg_locks
 WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
 ORDER BY age(transactionid) DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction that has written.

    Attributes:
        pid: Server process; None for a prepared transaction.
        application: Application name of the session.
        since: When it began, or was prepared; None if this role may not see it.
        prepared: Name of a prepared transaction.
    """

    pid: int | None
    application: str
    since: datetime | None
    prepared: str | None = None

    def __str__(self) -> str:
        since = f", since {self.since:%Y-%m-%d %H:%M:%S%z}" if self.since else ""
        if self.prepared is not None:
            return f"prepared transaction {self.prepared}{since}"
        name = f" ({self.application})" if self.application else ""
        return f"process {self.pid}{name}{since}"


def described(
    connection: Connection[Any], transactions: Mapping[str, int | None]
) -> list[OpenTransaction]:
    """Describes transactions, the longest open first.

    Args:
        connection: To the server.
        transactions: Process by transaction number; None for a prepared one.
    """
    pids = sorted({pid for pid in transactions.values() if pid})
    rows = connection.execute(_SESSIONS, {"pids": pids, "xids": list(transactions)}).fetchall()
    return [OpenTransaction(*row) for row in rows]


def oldest(connection: Connection[Any]) -> OpenTransaction | None:
    """Returns the one that wrote first, in any database of the server; None if there is none."""
    found = described(connection, dict(connection.execute(_WROTE).fetchall()))
    return found[0] if found else None
