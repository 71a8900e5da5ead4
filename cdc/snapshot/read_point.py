"""The position that a read of a table stands for.

Take the log's insert position. Then wait until every transaction that holds a lock to write to the
table has ended. Whatever a snapshot taken after that does not see was written by a transaction that
took its lock later, so its rows lie after the position in the log. A row that is read with this
position therefore loses to every change that the read has not seen, and wins against every older
one: a read can never bring an old value back.

DBLog brackets each chunk with two marks in the log instead (Andreakis, Papapanagiotou: DBLog: A
Watermark Based Change-Data-Capture Framework, 2020), which needs writes to the source.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cdc.lsn import Lsn
from cdc.snapshot.errors import WritersInTheWayError

if TYPE_CHECKING:
    from psycopg import Connection

    from cdc.table import TableName

_POSITION: Final = "SELECT pg_current_wal_insert_lsn()::text"
# prepared transactions have no pid; partitions are written to under locks of their own
_WRITERS: Final = """
SELECT DISTINCT l.virtualtransaction, l.pid
  FROM pg_locks AS l
 WHERE l.locktype = 'relation' AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.relation IN (SELECT %(root)s::oid UNION ALL
                      SELECT relid FROM pg_partition_tree(%(root)s::oid))
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                  'AccessExclusiveLock')
   AND l.pid IS DISTINCT FROM pg_backend_pid()
"""
_POLL_S: Final = 0.02


def read_point(connection: Connection[Any], table: TableName, deadline_s: float) -> Lsn:
    """Returns the position for which a snapshot taken from now on stands.

    Args:
        connection: In autocommit: each look has to see the present.
        table: The table, or the root of a partitioned one.
        deadline_s: Longest wait for transactions that write to it, seconds.

    Raises:
        WritersInTheWayError: One of them did not end in time.
    """
    position = Lsn.parse(_one(connection, _POSITION, {}))
    root = _one(
        connection,
        "SELECT to_regclass(format('%%I.%%I', %(s)s::text, %(t)s::text))::oid",
        {"s": table.schema, "t": table.name},
    )
    deadline = time.monotonic() + deadline_s
    waited_for = _writers(connection, root)
    while waited_for and (waited_for := waited_for & _writers(connection, root)):
        if time.monotonic() > deadline:
            pids = sorted(str(pid or "prepared") for _, pid in waited_for)
            raise WritersInTheWayError(
                f"transactions that write to {table} stay open",
                detail=f"after {deadline_s:.0f} s: server processes {', '.join(pids)}",
                hint="end them (pg_stat_activity, pg_prepared_xacts); the read is tried again",
            )
        time.sleep(_POLL_S)
    return position


def _writers(connection: Connection[Any], root: int) -> set[tuple[str, int | None]]:
    return set(connection.execute(_WRITERS, {"root": root}).fetchall())


def _one(connection: Connection[Any], query: str, arguments: dict[str, Any]) -> Any:
    row = connection.execute(query, arguments).fetchone()
    return row[0] if row else None
