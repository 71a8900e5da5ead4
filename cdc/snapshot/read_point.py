"""The position that a read of a table stands for.

Take the log's insert position. Then wait until every transaction has ended that had written by
then and holds a lock to write to the table. Whatever a snapshot taken after that does not see was
written by a transaction that wrote to the table later, so its rows lie behind the position in the
log. A row that is read with this position therefore loses to every change that the read has not
seen, and wins against every older one: a read can never bring an old value back, however late it
comes and however often it is repeated.

The next record of the log begins exactly at the insert position. So the position of a read is one
byte before it: records begin at multiples of eight, and no change ever has the position of a read.

A transaction keeps its number when it is prepared for a second phase, but not its session; so it
is waited for by number. One that has no number has written nothing yet, however long it is open.

DBLog brackets each chunk with two marks in the log instead (Andreakis, Papapanagiotou: DBLog: A
Watermark Based Change-Data-Capture Framework, 2020), which needs writes to the source.
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
# The locks are looked at once: two looks could miss a lock that changes hands in between.
# Partitions are written to under locks of their own. DML always takes the first of these modes;
# the others are those of TRUNCATE and its like.
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
    """A position that is being waited for.

    Args:
        connection: In autocommit: each look has to see the present.
        root: The table's oid, or that of the root of a partitioned one.
    """

    def __init__(self, connection: Connection[Any], root: int) -> None:
        self._connection = connection
        self._root = root
        self.position = before(_text(connection, _POSITION))
        self._waited_for = writers(connection, root)

    def reached(self) -> bool:
        """Tells whether a snapshot taken from now on stands for the position."""
        if self._waited_for:
            now = writers(self._connection, self._root)
            self._waited_for = {xid: now[xid] for xid in self._waited_for if xid in now}
        return not self._waited_for

    def in_the_way(self) -> list[OpenTransaction]:
        """Returns who is still waited for, the longest first."""
        return transaction.described(self._connection, self._waited_for)


def before(insert_position: str) -> Lsn:
    """Returns the position of a read that begins at an insert position."""
    return Lsn(Lsn.parse(insert_position).value - 1)


def writers(connection: Connection[Any], root: int) -> dict[str, int | None]:
    """Returns every transaction that may have written to a table, by number, with its process.

    A prepared transaction has none.
    """
    return dict(connection.execute(_WRITERS, {"root": root}).fetchall())


def oid(connection: Connection[Any], table: TableName) -> int | None:
    """Returns a table's oid; None if there is no such table."""
    row = connection.execute(
        "SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))::oid", (table.schema, table.name)
    ).fetchone()
    return row[0] if row else None


def _text(connection: Connection[Any], query: str) -> str:
    row = connection.execute(query.encode()).fetchone()
    return str(row[0] if row else "")
