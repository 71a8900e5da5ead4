"""The log position of a table's snapshot.

The position is determined in two steps. First take the log's insert position. Then wait for the end
of every transaction that has a transaction number and holds a write lock on the table at that time.
A change that a database snapshot taken afterwards does not see was written by a transaction that
began to write to the table later, so its log records follow the position. A row read with this
position therefore loses to every change that the snapshot has not seen, and wins over every older
one. However late a row is sent and however often, it never restores an old value.

The next log record begins exactly at the insert position. The snapshot's position is therefore one
byte less: records begin at multiples of eight, so no change ever has the position of a snapshot.

A prepared transaction keeps its number but not its session, so transactions are waited for by
number. A transaction without a number has written nothing yet, however long it is open.

DBLog brackets each chunk with two marks in the log instead (Andreakis, Papapanagiotou: DBLog: A
Watermark Based Change-Data-Capture Framework, 2020), which requires writes to the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.lsn import Lsn
from cdc.postgres import transaction

if TYPE_CHECKING:
    from psycopg import Connection

    from cdc.postgres.transaction import OpenTransaction
    from cdc.table import TableName

_POSITION: Final = "SELECT pg_current_wal_insert_lsn()::text"
# `locks` is materialized: two scans of pg_locks could miss a lock that moves between them.
# Each partition has its own lock. DML takes the first of these modes; TRUNCATE and similar
# statements take the others.
_WRITERS: Final = """
WITH locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE granted),
     tree AS (SELECT %(root)s::oid AS relid
              UNION SELECT relid::oid FROM pg_partition_tree(%(root)s::oid))
SELECT DISTINCT x.transactionid::text, x.pid
  FROM locks AS w
  JOIN locks AS x ON x.virtualtransaction = w.virtualtransaction
                 AND x.pid IS NOT DISTINCT FROM w.pid
                 AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock'
 WHERE w.locktype = 'relation'
   AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND w.relation IN (SELECT relid FROM tree)
   AND w.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                  'AccessExclusiveLock')
"""


class ReadPoint:
    """A position, with the transactions that must end before a snapshot can be taken at it.

    Args:
        connection: In autocommit, so that each query sees the current state.
        root: The table's oid; for a partitioned table, that of its root.
    """

    def __init__(self, connection: Connection[Any], root: int) -> None:
        self._connection = connection
        self._root = root
        self.position = before(_text(connection, _POSITION))
        self._waited_for = writers(connection, root)

    def reached(self) -> bool:
        """Returns whether a snapshot taken from now on is valid for the position."""
        if self._waited_for:
            now = writers(self._connection, self._root)
            self._waited_for = {xid: now[xid] for xid in self._waited_for if xid in now}
        return not self._waited_for

    def in_the_way(self) -> list[OpenTransaction]:
        """Returns the transactions still waited for, the longest first."""
        return transaction.described(self._connection, self._waited_for)


def before(insert_position: str) -> Lsn:
    """Returns the position of a snapshot that begins at an insert position."""
    return Lsn(Lsn.parse(insert_position).value - 1)


def writers(connection: Connection[Any], root: int) -> dict[str, int | None]:
    """Returns the transactions that may have written to a table: process id by number.

    A prepared transaction has no process.
    """
    return dict(connection.execute(_WRITERS, {"root": root}).fetchall())


def oid(connection: Connection[Any], table: TableName) -> int | None:
    """Returns a table's oid; None if the table does not exist."""
    row = connection.execute(
        "SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))::oid", (table.schema, table.name)
    ).fetchone()
    return row[0] if row else None


def _text(connection: Connection[Any], query: str) -> str:
    row = connection.execute(query.encode()).fetchone()
    return str(row[0] if row else "")
