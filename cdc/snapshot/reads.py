"""Reads: what of a source is to be read, under way, or done; in `headwater.snapshots`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.types.json import Json

from cdc.lsn import Lsn
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from psycopg import Connection

_COLUMNS: Final = (
    "id, source, epoch, table_schema, table_name, predicate, state, read_lsn::text, rows_expected,"
    " rows_read, progress, end_offsets"
)
_OF_SOURCE: Final = f"SELECT {_COLUMNS} FROM headwater.snapshots WHERE source = %s AND epoch = %s"  # noqa: S608
_ASK_INITIAL: Final = """
INSERT INTO headwater.snapshots (source, epoch, table_schema, table_name, rows_expected)
SELECT %(source)s, %(epoch)s, %(schema)s, %(name)s,
       (SELECT greatest(sum(reltuples), 0)::bigint FROM pg_class
         WHERE oid IN (SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(name)s::text))
                       UNION ALL SELECT relid FROM pg_partition_tree(
                         to_regclass(format('%%I.%%I', %(schema)s::text, %(name)s::text)))))
 WHERE NOT EXISTS (SELECT FROM headwater.snapshots
                    WHERE source = %(source)s AND epoch = %(epoch)s
                      AND table_schema = %(schema)s AND table_name = %(name)s
                      AND predicate IS NULL)
RETURNING id
"""
_UNREAD: Final = """
WITH latest AS (SELECT max(epoch) AS epoch FROM headwater.snapshots WHERE source = %(source)s)
SELECT table_schema, table_name
  FROM headwater.snapshots CROSS JOIN latest
 WHERE source = %(source)s AND predicate IS NULL
 GROUP BY table_schema, table_name
HAVING NOT bool_or(state = 'done' AND snapshots.epoch = latest.epoch)
"""


@dataclass(frozen=True, slots=True)
class Read:
    """One read of a table, whole or in part.

    Attributes:
        id: Its number.
        source: Name of the source.
        epoch: Incarnation of the source.
        table: The table.
        predicate: SQL condition of a read in part; None reads the whole table.
        state: `waiting`, `reading`, `done` or `failed`.
        read_lsn: Position that its rows stand for; None before it began.
        rows_expected: As many as the server believes there are; None if it does not know.
        rows_read: Sent so far.
        progress: What a reader needs to go on after a crash.
        end_offsets: Next offset of each partition of the topic once all rows are there.
    """

    id: int
    source: str
    epoch: int
    table: TableName
    predicate: str | None
    state: str
    read_lsn: Lsn | None
    rows_expected: int | None
    rows_read: int
    progress: Mapping[str, Any] | None
    end_offsets: Mapping[int, int] | None

    @property
    def done(self) -> bool:
        """Whether every row is in the topic."""
        return self.state == "done"


def of_source(connection: Connection[Any], source: str, epoch: int) -> list[Read]:
    """Returns all reads of a source's incarnation, the oldest first."""
    rows = connection.execute(f"{_OF_SOURCE} ORDER BY id".encode(), (source, epoch)).fetchall()
    return [_read(*row) for row in rows]


def ask_initial(
    connection: Connection[Any], source: str, epoch: int, tables: Iterable[TableName]
) -> list[TableName]:
    """Asks for a whole read of every table that never had one; returns those tables."""
    asked = []
    for table in tables:
        place = {"source": source, "epoch": epoch, "schema": table.schema, "name": table.name}
        if connection.execute(_ASK_INITIAL, place).fetchone() is not None:
            asked.append(table)
    return asked


def unread_topics(connection: Connection[Any], source: str) -> frozenset[str]:
    """Returns the topics of those tables of a source that were never read as a whole."""
    rows = connection.execute(_UNREAD, {"source": source}).fetchall()
    return frozenset(TableName(schema, name).topic(source) for schema, name in rows)


def begin(connection: Connection[Any], read: Read, read_lsn: Lsn) -> None:
    """Notes the position that a read stands for."""
    connection.execute(
        "UPDATE headwater.snapshots SET state = 'reading', read_lsn = %s::pg_lsn, rows_read = 0,"
        " progress = NULL, failure = NULL, begun_at = clock_timestamp() WHERE id = %s",
        (str(read_lsn), read.id),
    )


def advance(
    connection: Connection[Any], read: Read, rows: int, progress: Mapping[str, Any]
) -> None:
    """Notes rows that Kafka has acknowledged, and where to go on after them."""
    connection.execute(
        "UPDATE headwater.snapshots SET rows_read = rows_read + %s, progress = %s WHERE id = %s",
        (rows, Json(dict(progress)), read.id),
    )


def finish(connection: Connection[Any], read: Read, end_offsets: Mapping[int, int]) -> None:
    """Notes that every row of a read is in its topic."""
    connection.execute(
        "UPDATE headwater.snapshots SET state = 'done', end_offsets = %s,"
        " ended_at = clock_timestamp() WHERE id = %s",
        (Json({str(number): end for number, end in end_offsets.items()}), read.id),
    )


def forget(
    connection: Connection[Any], source: str, tables: Iterable[TableName] | None = None
) -> None:
    """Removes every read of a source, or of some of its tables."""
    if tables is None:
        connection.execute("DELETE FROM headwater.snapshots WHERE source = %s", (source,))
        return
    for table in tables:
        connection.execute(
            "DELETE FROM headwater.snapshots"
            " WHERE source = %s AND table_schema = %s AND table_name = %s",
            (source, table.schema, table.name),
        )


def _read(number: int, source: str, epoch: int, schema: str, name: str, *rest: Any) -> Read:
    predicate, state, lsn, expected, rows, progress, ends = rest
    return Read(
        number,
        source,
        epoch,
        TableName(schema, name),
        predicate,
        state,
        Lsn.parse(lsn) if lsn else None,
        expected,
        rows,
        progress,
        {int(number): end for number, end in ends.items()} if ends is not None else None,
    )
