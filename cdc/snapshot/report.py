"""The progress of a source's snapshots: rows, percent, rate, and remaining time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.postgres import own_schema, session
from cdc.snapshot import reads

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.snapshot.reads import Read
    from cdc.table import TableName

UNREAD: Final = "unread"
_ALMOST: Final = 99.9  # the expected number is an estimate: only a completed snapshot has 100 %


@dataclass(frozen=True, slots=True)
class ReadReport:
    """The progress of one snapshot.

    Attributes:
        id: Its number; None if no snapshot of the table was requested.
        table: The table.
        what: `table`, `keys` or `where`.
        state: `unread`, `waiting`, `reading`, `done`, `failed` or `cancelled`.
        rows_read: Number of rows in the topic.
        rows_expected: The server's estimate of the rows, exact at the end; None if unknown.
        percent: Share of the expected rows; None if unknown.
        rows_per_s: Rate since its start or continuation; None while no reader is active.
        remaining_s: Time until the end at this rate; None if unknown.
        failure: Why it failed, or what it waits for.
        read_lsn: Position of the snapshot; None before it began.
        asked_at: Time of the request.
        ended_at: Time of its end.
    """

    id: int | None
    table: str
    what: str = "table"
    state: str = UNREAD
    rows_read: int = 0
    rows_expected: int | None = None
    percent: float | None = None
    rows_per_s: float | None = None
    remaining_s: float | None = None
    failure: str | None = None
    read_lsn: str | None = None
    asked_at: datetime | None = None
    ended_at: datetime | None = None


def report(spec: CaptureSpec) -> list[ReadReport]:
    """Returns the progress of a source's snapshots.

    For each table these are its newest whole-table snapshot, all open ones, and later ones that
    failed.
    """
    with session.connect(spec.dsn) as connection:
        return of_tables(connection, spec)


def of_tables(connection: Connection[Any], spec: CaptureSpec) -> list[ReadReport]:
    """Returns the result of `report` through an existing session."""
    if not own_schema.exists(connection):
        return [ReadReport(None, str(table)) for table in spec.tables]
    epoch = reads.epoch_of(connection, spec.name, spec.epoch)
    (now,) = connection.execute("SELECT clock_timestamp()").fetchall()[0]
    found = [
        read for read in reads.of_source(connection, spec.name, epoch) if read.table in spec.tables
    ]
    return [
        line
        for table in spec.tables
        for line in _of_table(table, [read for read in found if read.table == table], now)
    ]


def of_read(read: Read, now: datetime) -> ReadReport:
    """Describes a snapshot.

    Args:
        read: The snapshot.
        now: Time of the server.
    """
    began = read.resumed_at if read.state == "reading" else read.begun_at
    rows = read.rows_read - (read.rows_resumed if read.state == "reading" else 0)
    until = read.ended_at or now
    rate = None
    if began is not None and until > began and read.state in ("reading", "done"):
        rate = rows / (until - began).total_seconds()
    expected = read.rows_expected
    left = None
    if read.state == "reading" and rate and expected is not None:
        left = max(0.0, (expected - read.rows_read) / rate)
    return ReadReport(
        read.id,
        str(read.table),
        "keys" if read.keys is not None else "where" if read.predicate is not None else "table",
        read.state,
        read.rows_read,
        expected,
        _percent(read),
        rate,
        left,
        read.failure,
        str(read.read_lsn) if read.read_lsn else None,
        read.asked_at,
        read.ended_at,
    )


def _of_table(table: TableName, found: list[Read], now: datetime) -> Iterable[ReadReport]:
    whole = [read for read in found if read.whole]
    newest = whole[-1] if whole else None
    if newest is None:
        yield ReadReport(None, str(table))
    for read in found:
        later = newest is None or read.id > newest.id
        if read is newest or read.state in reads.OPEN or (later and read.state == "failed"):
            yield of_read(read, now)


def _percent(read: Read) -> float | None:
    if read.done:
        return 100.0
    if not read.rows_expected:
        return None
    return round(min(_ALMOST, 100 * read.rows_read / read.rows_expected), 1)
