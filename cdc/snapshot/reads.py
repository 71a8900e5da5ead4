"""Snapshots of a source, in `headwater.snapshots`: waiting, running, and completed ones.

A snapshot keeps its position, whichever process continues it. It restarts with a new position only
if the table was altered or replaced meanwhile, or has no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.types.json import Jsonb

from cdc.lsn import Lsn
from cdc.position import ChangePosition
from cdc.postgres import escaped_topics
from cdc.snapshot.progress import SnapshotProgress
from cdc.table import TableName
from foundation.advisory_lock import AdvisoryLock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from psycopg import Connection

    from cdc.snapshot.progress import KeyRange
    from cdc.topic_names import TopicNames

Key = tuple[str, ...]
"""Values of a key's columns, in the key's order, as texts that Postgres parses."""

OPEN: Final = ("waiting", "reading")
"""States of a snapshot that has not ended."""

GIVEN_UP: Final = ("failed", "cancelled")
"""States of a snapshot that ended before all rows were sent."""

_COLUMNS: Final = (
    "id, source, epoch, table_schema, table_name, predicate, keys, state, read_lsn::text,"
    " rows_expected, rows_read, progress, end_offsets, failure, asked_at, begun_at, ended_at,"
    " resumed_at, rows_resumed"
)
_ASK_INITIAL: Final = """
INSERT INTO headwater.snapshots (source, epoch, table_schema, table_name)
SELECT %(source)s, %(epoch)s, %(schema)s, %(name)s
 WHERE NOT EXISTS (SELECT FROM headwater.snapshots
                    WHERE source = %(source)s AND epoch = %(epoch)s
                      AND table_schema = %(schema)s AND table_name = %(name)s
                      AND predicate IS NULL AND keys IS NULL
                      AND state NOT IN ('failed', 'cancelled'))
RETURNING id
"""
# A waiting snapshot satisfies the request; a running one has an earlier position.
_ASK: Final = """
INSERT INTO headwater.snapshots
       (source, epoch, table_schema, table_name, predicate, keys, rows_expected)
SELECT %(source)s, %(epoch)s, %(schema)s, %(name)s, %(predicate)s, %(keys)s::jsonb, %(expected)s
 WHERE NOT EXISTS (SELECT FROM headwater.snapshots
                    WHERE source = %(source)s AND epoch = %(epoch)s
                      AND table_schema = %(schema)s AND table_name = %(name)s
                      AND predicate IS NOT DISTINCT FROM %(predicate)s
                      AND keys IS NOT DISTINCT FROM %(keys)s::jsonb
                      AND state = 'waiting')
RETURNING id
"""
_ASKED: Final = """
SELECT max(id) FROM headwater.snapshots
 WHERE source = %(source)s AND epoch = %(epoch)s
   AND table_schema = %(schema)s AND table_name = %(name)s
   AND predicate IS NOT DISTINCT FROM %(predicate)s
   AND keys IS NOT DISTINCT FROM %(keys)s::jsonb
"""
_UNREAD: Final = """
WITH latest AS (SELECT max(epoch) AS epoch FROM headwater.snapshots WHERE source = %(source)s)
SELECT table_schema, table_name
  FROM headwater.snapshots CROSS JOIN latest
 WHERE source = %(source)s AND predicate IS NULL AND keys IS NULL
 GROUP BY table_schema, table_name
HAVING NOT bool_or(state = 'done' AND snapshots.epoch = latest.epoch)
"""
_WHOLE: Final = """
SELECT DISTINCT ON (table_schema, table_name)
       table_schema, table_name, id, epoch, read_lsn::text, end_offsets
  FROM headwater.snapshots
 WHERE source = %s AND predicate IS NULL AND keys IS NULL AND state = 'done'
 ORDER BY table_schema, table_name, epoch DESC, read_lsn DESC
"""
# The condition on read_lsn: another process may have begun the snapshot and sent rows meanwhile.
_BEGIN: Final = """
UPDATE headwater.snapshots
   SET state = 'reading', read_lsn = %(lsn)s::pg_lsn, rows_read = 0, progress = %(progress)s,
       rows_expected = coalesce(%(expected)s, rows_expected), failure = NULL,
       begun_at = clock_timestamp(), resumed_at = clock_timestamp(), rows_resumed = 0
 WHERE id = %(id)s AND state IN ('waiting', 'reading')
   AND read_lsn IS NOT DISTINCT FROM %(before)s::pg_lsn
RETURNING id
"""
_ADVANCE: Final = """
UPDATE headwater.snapshots
   SET rows_read = rows_read + %(rows)s, failure = NULL,
       progress = jsonb_set(progress, ARRAY['ranges', %(number)s::text], %(range)s)
 WHERE id = %(id)s AND state = 'reading' AND read_lsn = %(lsn)s::pg_lsn
RETURNING id
"""
_FINISH: Final = """
UPDATE headwater.snapshots
   SET state = 'done', end_offsets = %(ends)s, rows_expected = rows_read, failure = NULL,
       ended_at = clock_timestamp()
 WHERE id = %(id)s AND state = 'reading' AND read_lsn = %(lsn)s::pg_lsn
RETURNING id
"""
_FAIL: Final = """
UPDATE headwater.snapshots
   SET failure = %(failure)s,
       state = CASE WHEN %(final)s THEN 'failed' ELSE state END,
       ended_at = CASE WHEN %(final)s THEN clock_timestamp() END
 WHERE id = %(id)s AND state IN ('waiting', 'reading')
"""
_SPANS: Final = """
SELECT table_schema, table_name, epoch, read_lsn::text,
       coalesce(begun_at, asked_at), coalesce(ended_at, begun_at, asked_at)
  FROM headwater.snapshots
 WHERE source = %s AND predicate IS NULL AND keys IS NULL AND state = 'done'
 ORDER BY epoch, read_lsn
"""
_LOCK: Final = AdvisoryLock(f"{0x4857}, %s")
"""The second number is that of the snapshot; 0 while one is being requested."""


@dataclass(frozen=True, slots=True)
class Read:
    """A snapshot of a table, whole or partial.

    Attributes:
        id: Its number.
        source: Name of the source.
        epoch: Incarnation of the source.
        table: The table.
        topic: Its topic.
        predicate: SQL condition of a partial snapshot.
        keys: Keys to read; None for other snapshots.
        state: `waiting`, `reading`, `done`, `failed` or `cancelled`.
        read_lsn: Position of the snapshot; None before it began.
        rows_expected: The server's estimate of the rows, exact at the end; None if unknown.
        rows_read: Number of rows sent so far.
        progress: Where to continue; None before it began.
        end_offsets: Next offset of each partition of the topic once all rows are there.
        failure: Why it failed, or what it waits for.
        asked_at: Time of the request.
        begun_at: Time of its position.
        ended_at: Time of completion, failure or cancellation.
        resumed_at: When its present reader started or continued it.
        rows_resumed: Number of rows sent by then.
    """

    id: int
    source: str
    epoch: int
    table: TableName
    topic: str
    predicate: str | None
    keys: tuple[Key, ...] | None
    state: str
    read_lsn: Lsn | None
    rows_expected: int | None
    rows_read: int
    progress: SnapshotProgress | None
    end_offsets: Mapping[int, int] | None
    failure: str | None
    asked_at: datetime
    begun_at: datetime | None
    ended_at: datetime | None
    resumed_at: datetime | None
    rows_resumed: int

    @property
    def done(self) -> bool:
        """Returns whether every row is in the topic."""
        return self.state == "done"

    @property
    def whole(self) -> bool:
        """Returns whether it covers the whole table."""
        return self.predicate is None and self.keys is None


@dataclass(frozen=True, slots=True)
class WholeRead:
    """The newest completed snapshot of a whole table.

    Once a view has applied everything below `end_offsets`, each of its rows from this table with a
    version older than `(epoch, read_lsn)` no longer existed at that position, and is removed.

    Attributes:
        id: Number of the snapshot.
        epoch: Incarnation of the source.
        read_lsn: Position of the rows.
        end_offsets: Next offset of each partition of the topic once all rows are there.
    """

    id: int
    epoch: int
    read_lsn: Lsn
    end_offsets: Mapping[int, int]


def epoch_of(connection: Connection[Any], source: str, declared: int) -> int:
    """Returns the captured incarnation of a source, which a repair may have raised."""
    row = connection.execute(
        "SELECT greatest(epoch, %s) FROM headwater.captures WHERE source = %s", (declared, source)
    ).fetchone()
    return int(row[0]) if row else declared


def of_source(connection: Connection[Any], source: str, epoch: int) -> list[Read]:
    """Returns all snapshots of a source's incarnation, the oldest first."""
    query = f"SELECT {_COLUMNS} FROM headwater.snapshots WHERE source = %s AND epoch = %s"  # noqa: S608
    rows = connection.execute(f"{query} ORDER BY id".encode(), (source, epoch)).fetchall()
    names = escaped_topics.names(connection, source)
    return [_read(row, names) for row in rows]


def open_reads(connection: Connection[Any], source: str, epoch: int) -> list[Read]:
    """Returns the snapshots that have not ended, the oldest first."""
    query = f"SELECT {_COLUMNS} FROM headwater.snapshots WHERE source = %s AND epoch = %s"  # noqa: S608
    query += " AND state = ANY (%s) ORDER BY id"
    rows = connection.execute(query.encode(), (source, epoch, list(OPEN))).fetchall()
    if not rows:
        return []
    names = escaped_topics.names(connection, source)
    return [_read(row, names) for row in rows]


def find(connection: Connection[Any], source: str, number: int) -> Read | None:
    """Returns a snapshot; None if there is none with that number."""
    query = f"SELECT {_COLUMNS} FROM headwater.snapshots WHERE source = %s AND id = %s"  # noqa: S608
    row = connection.execute(query.encode(), (source, number)).fetchone()
    return _read(row, escaped_topics.names(connection, source)) if row else None


def ask_initial(
    connection: Connection[Any], source: str, epoch: int, tables: Iterable[TableName]
) -> list[TableName]:
    """Requests a whole-table snapshot of every table that has none, done or running.

    Returns:
        Those tables.
    """
    asked = []
    for table in tables:
        place = {"source": source, "epoch": epoch, "schema": table.schema, "name": table.name}
        if connection.execute(_ASK_INITIAL, place).fetchone() is not None:
            asked.append(table)
    return asked


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request: the whole table, some keys, or the rows of a condition.

    Attributes:
        table: The table.
        keys: Keys; None for other requests.
        predicate: SQL condition; None for other requests.
    """

    table: TableName
    keys: tuple[Key, ...] | None = None
    predicate: str | None = None


def ask(
    connection: Connection[Any],
    source: str,
    epoch: int,
    request: SnapshotRequest,
    rows_expected: int | None = None,
) -> tuple[int, bool]:
    """Records a request, which `cdc.snapshot.request` has checked.

    Returns:
        The number of the snapshot, and whether it is new: the same one may already be waiting.
    """
    wanted = {
        "source": source,
        "epoch": epoch,
        "schema": request.table.schema,
        "name": request.table.name,
        "predicate": request.predicate,
        "keys": None if request.keys is None else Jsonb(sorted(set(request.keys))),
        "expected": rows_expected,
    }
    with connection.transaction():
        # of two concurrent requests, the second must see the first one
        connection.execute(_LOCK.in_transaction, (0,))
        row = connection.execute(_ASK, wanted).fetchone()
        found = row or connection.execute(_ASKED, wanted).fetchone()
    return (int(found[0]) if found else 0), row is not None


def cancel(connection: Connection[Any], source: str, number: int) -> bool:
    """Cancels a snapshot; the rows that it has sent remain. Returns whether it was open."""
    row = connection.execute(
        "UPDATE headwater.snapshots SET state = 'cancelled', ended_at = clock_timestamp()"
        " WHERE source = %s AND id = %s AND state = ANY(%s) RETURNING id",
        (source, number, list(OPEN)),
    ).fetchone()
    return row is not None


def unread_topics(connection: Connection[Any], source: str) -> frozenset[str]:
    """Returns the topics of tables without a completed whole-table snapshot in the latest epoch."""
    rows = connection.execute(_UNREAD, {"source": source}).fetchall()
    names = escaped_topics.names(connection, source)
    return frozenset(names.of(TableName(schema, name)) for schema, name in rows)


def whole_reads(connection: Connection[Any], source: str) -> dict[str, WholeRead]:
    """Returns the newest finished whole-table snapshot of each table, by topic."""
    found = {}
    names = escaped_topics.names(connection, source)
    for schema, name, number, epoch, lsn, ends in connection.execute(_WHOLE, (source,)).fetchall():
        offsets = {int(partition): end for partition, end in (ends or {}).items()}
        topic = names.of(TableName(schema, name))
        found[topic] = WholeRead(number, epoch, Lsn.parse(lsn), offsets)
    return found


def whole_spans(
    connection: Connection[Any], source: str, topics: Collection[str]
) -> list[tuple[ChangePosition, datetime, datetime]]:
    """Returns begin and end of every finished whole-table snapshot of some tables."""
    names = escaped_topics.names(connection, source)
    return [
        (ChangePosition.of_read(epoch, Lsn.parse(lsn)), begun, ended)
        for schema, name, epoch, lsn, begun, ended in connection.execute(
            _SPANS, (source,)
        ).fetchall()
        if names.of(TableName(schema, name)) in topics
    ]


def take(connection: Connection[Any], read: Read) -> bool:
    """Reserves a snapshot for this session; returns False if another session has it.

    The server releases the reservation when the session ends, however it ends.
    """
    row = connection.execute(_LOCK.in_session_if_free, (_lock_number(read),)).fetchone()
    if not (row and row[0]):
        return False
    connection.execute(
        "UPDATE headwater.snapshots SET resumed_at = clock_timestamp(), rows_resumed = rows_read"
        " WHERE id = %s",
        (read.id,),
    )
    return True


def let_go(connection: Connection[Any], read: Read) -> None:
    """Releases a snapshot for other sessions."""
    connection.execute(_LOCK.free, (_lock_number(read),))


def begin(
    connection: Connection[Any],
    read: Read,
    read_lsn: Lsn,
    progress: SnapshotProgress,
    rows_expected: int | None,
) -> bool:
    """Records a snapshot's position; returns False if it was cancelled or restarted meanwhile."""
    values = {
        "id": read.id,
        "lsn": str(read_lsn),
        "before": str(read.read_lsn) if read.read_lsn else None,
        "progress": Jsonb(progress.to_json()),
        "expected": rows_expected,
    }
    return connection.execute(_BEGIN, values).fetchone() is not None


def advance(connection: Connection[Any], read: Read, place: int, part: KeyRange, rows: int) -> bool:
    """Records the progress of a range whose rows Kafka has acknowledged.

    Returns:
        False if the snapshot was cancelled, or restarted by another process.
    """
    values = {
        "id": read.id,
        "lsn": str(read.read_lsn),
        "number": place,
        "range": Jsonb(part.to_json()),
        "rows": rows,
    }
    return connection.execute(_ADVANCE, values).fetchone() is not None


def count(connection: Connection[Any], number: int, read_lsn: Lsn, rows: int) -> None:
    """Records how many rows of a table without a key have been sent so far."""
    connection.execute(
        "UPDATE headwater.snapshots SET rows_read = %s"
        " WHERE id = %s AND state = 'reading' AND read_lsn = %s::pg_lsn",
        (rows, number, str(read_lsn)),
    )


def finish(
    connection: Connection[Any], number: int, read_lsn: Lsn, end_offsets: Mapping[int, int]
) -> bool:
    """Records that every row of a snapshot is in its topic; returns whether it was running."""
    ends = Jsonb({str(partition): end for partition, end in end_offsets.items()})
    values = {"id": number, "lsn": str(read_lsn), "ends": ends}
    return connection.execute(_FINISH, values).fetchone() is not None


def fail(connection: Connection[Any], number: int, failure: str | None, *, final: bool) -> None:
    """Records why a snapshot cannot continue.

    Args:
        connection: To the source database.
        number: Number of the snapshot.
        failure: The cause, with its code; None to clear it.
        final: Whether it has failed permanently.
    """
    connection.execute(_FAIL, {"id": number, "failure": failure, "final": final})


def forget(
    connection: Connection[Any], source: str, tables: Iterable[TableName] | None = None
) -> None:
    """Deletes the records of all snapshots of a source, or of some of its tables."""
    if tables is None:
        connection.execute("DELETE FROM headwater.snapshots WHERE source = %s", (source,))
        return
    for table in tables:
        connection.execute(
            "DELETE FROM headwater.snapshots"
            " WHERE source = %s AND table_schema = %s AND table_name = %s",
            (source, table.schema, table.name),
        )


def _lock_number(read: Read) -> int:
    return read.id % (1 << 31)


def _read(row: Sequence[Any], names: TopicNames) -> Read:
    number, source, epoch, schema, name, predicate, keys, state, lsn, *rest = row
    expected, rows, progress, ends, *times = rest
    table = TableName(schema, name)
    return Read(
        number,
        source,
        epoch,
        table,
        names.of(table),
        predicate,
        None if keys is None else tuple(tuple(key) for key in keys),
        state,
        Lsn.parse(lsn) if lsn else None,
        expected,
        rows,
        SnapshotProgress.from_json(progress) if progress else None,
        {int(partition): end for partition, end in ends.items()} if ends is not None else None,
        *times,
    )
