"""The reader: sends the rows of tables that are to be read, one chunk after another."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import structlog
from psycopg import Error, sql

from cdc.broker import offsets
from cdc.broker.producer import Producer, producer
from cdc.change_event import EPOCH_HEADER
from cdc.errors import CdcError
from cdc.postgres import catalog, session
from cdc.snapshot import expression, reads
from cdc.snapshot.errors import SnapshotError
from cdc.snapshot.read_point import read_point
from cdc.snapshot.record import ReadEnvelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.snapshot.reads import Read
    from cdc.table import TableSchema

CHUNK_ROWS: Final = 50_000
"""Rows between two notes of progress: what is sent again after a crash, at most."""

WRITERS_DEADLINE_S: Final = 60.0
IDLE_S: Final = 1.0
"""Between two looks for reads that are asked for."""

_log = structlog.get_logger(__name__)


def run(spec: CaptureSpec, stop: threading.Event | None = None) -> int:
    """Does every read of a source that is asked for and not done; returns how many were done.

    Whoever is killed in between is followed by somebody who goes on after its last chunk. Two at
    once do no harm: rows arrive twice, which every view takes.

    Args:
        spec: The source.
        stop: Ends it after the chunk under way.

    Raises:
        SnapshotError: A table cannot be read.
        BrokerError: Kafka does not take the rows.
    """
    stop = stop or threading.Event()
    done = 0
    with (
        session.connect(spec.dsn) as state,
        session.connect(spec.reader_dsn, options=session.UNFILTERED) as connection,
        producer(spec.kafka_bootstrap) as sender,
    ):
        connection.execute(expression.SESSION)
        for read in reads.of_source(state, spec.name, spec.epoch):
            if read.done or stop.is_set():
                continue
            done += _Reading(spec, state, connection, sender, read).run(stop)
    return done


def keep_reading(spec: CaptureSpec, stop: threading.Event | None = None) -> None:
    """Does every read that is asked for, now and later, until told to stop.

    What fails is tried again: a database or broker that is away for a while delays it only.
    """
    stop = stop or threading.Event()
    while not stop.is_set():
        try:
            run(spec, stop)
        except CdcError as error:
            _log.warning("tables are not read", code=error.code, what=error.message)
        stop.wait(IDLE_S)


class _Reading:
    def __init__(
        self,
        spec: CaptureSpec,
        state: Connection[Any],
        connection: Connection[Any],
        sender: Producer,
        read: Read,
    ) -> None:
        self._spec = spec
        self._state = state
        self._connection = connection
        self._sender = sender
        self._read = read
        self._topic = spec.table_topics[read.table]
        self._headers = [(EPOCH_HEADER, str(spec.epoch).encode())]
        self._number = 0

    def run(self, stop: threading.Event) -> bool:
        schema = catalog.describe(self._connection, [self._read.table]).get(self._read.table)
        if schema is None:
            raise SnapshotError(f"there is no table {self._read.table} to read")
        read_lsn = self._read.read_lsn
        after = (self._read.progress or {}).get("after")
        if read_lsn is None or not schema.key:  # without a key there is no place to go on from
            read_lsn, after = (
                read_point(self._connection, self._read.table, WRITERS_DEADLINE_S),
                None,
            )
            reads.begin(self._state, self._read, read_lsn)
        envelope = ReadEnvelope(self._spec.name, self._read.table, read_lsn)
        more = True
        while more and not stop.is_set():
            rows, after = self._send_chunk(schema, envelope, after)
            self._sender.flush()
            reads.advance(self._state, self._read, rows, {"after": after})
            more = rows == CHUNK_ROWS and bool(schema.key)
        if more:
            return False
        ends = offsets.end_offsets(self._spec.kafka_bootstrap, [self._topic])
        reads.finish(self._state, self._read, {part: end for (_, part), end in ends.items()})
        _log.info("table read", table=str(self._read.table), position=str(read_lsn))
        return True

    def _send_chunk(
        self, schema: TableSchema, envelope: ReadEnvelope, after: Sequence[str] | None
    ) -> tuple[int, list[str] | None]:
        """Sends the rows after a key; returns how many, and the last one's key."""
        query = _chunk(schema, self._read, after)
        rows, last = 0, list[bytes]()
        try:
            with self._connection.cursor().copy(query) as copy:
                copy.set_types(["bytea"] * (2 + len(schema.key)))
                for row_json, key_json, *place in copy.rows():
                    rows, last = rows + 1, place
                    self._number += 1
                    value = envelope.of_row(row_json, 0 if schema.key else self._number)
                    self._sender.send(self._topic, key_json, value, self._headers)
        except Error as error:
            raise SnapshotError(
                f"table {self._read.table} cannot be read",
                detail=error.diag.message_primary or error.sqlstate or type(error).__name__,
            ) from None
        return rows, [part.decode() for part in last] or None


def _chunk(schema: TableSchema, read: Read, after: Sequence[str] | None) -> sql.Composed:
    key = [sql.Identifier(name) for name in schema.key]
    columns: list[sql.Composable] = [
        expression.row_json(schema),
        expression.key_json(schema) if key else sql.SQL("NULL::text"),
        *(sql.SQL("format('%s', {})").format(name) for name in key),
    ]
    conditions: list[sql.Composable] = []
    if read.predicate is not None:
        conditions.append(sql.SQL("({})").format(sql.SQL(read.predicate)))
    if after:
        conditions.append(
            sql.SQL("({}) > ({})").format(
                sql.SQL(", ").join(key), sql.SQL(", ").join(map(sql.Literal, after))
            )
        )
    where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
    ordered = (
        sql.SQL(" ORDER BY {} LIMIT {}").format(sql.SQL(", ").join(key), sql.Literal(CHUNK_ROWS))
        if key
        else sql.SQL("")
    )
    return sql.SQL("COPY (SELECT {} FROM {}{}{}) TO STDOUT (FORMAT binary)").format(
        sql.SQL(", ").join(columns),
        sql.Identifier(schema.table.schema, schema.table.name),
        where,
        ordered,
    )
