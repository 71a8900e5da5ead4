"""Transactions that have written and are still open: a slot keeps the log since the oldest began.

Reading a table waits for those that write to it. A forgotten transaction, prepared or idle, blocks
both, so the error names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from psycopg import Connection

# Of somebody else's session the server tells the process only, unless the role may know more.
_SESSIONS: Final = """
SELECT a.pid, coalesce(a.application_name, ''), a.xact_start, NULL
  FROM pg_stat_activity AS a WHERE a.pid = ANY(%(pids)s)
UNION ALL
SELECT NULL, 'prepared transaction', prepared, gid
  FROM pg_prepared_xacts WHERE transaction::text = ANY(%(xids)s)
 ORDER BY 3 NULLS LAST, 1
"""
# Whoever has written holds a lock on its own number; everybody may see that, of all databases,
# while when a transaction of others began is a secret. Numbers are drawn at the first write.
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
        transactions: Process by number; a prepared one has none.
    """
    pids = sorted({pid for pid in transactions.values() if pid})
    rows = connection.execute(_SESSIONS, {"pids": pids, "xids": list(transactions)}).fetchall()
    return [OpenTransaction(*row) for row in rows]


def oldest(connection: Connection[Any]) -> OpenTransaction | None:
    """Returns that of all databases of the server which wrote first; None if there is none."""
    found = described(connection, dict(connection.execute(_WROTE).fetchall()))
    return found[0] if found else None
