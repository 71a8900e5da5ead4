"""A worker: the connections of one reader thread, and the work that it does with them."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from psycopg import Error

from cdc.broker.producing import last_record
from cdc.broker.producing.producer import Producer, producer
from cdc.broker.topics import offsets
from cdc.change_event import EPOCH_HEADER
from cdc.postgres import session, treatment
from cdc.snapshot import chunk, quiet_moment, ranges, reads
from cdc.snapshot.chunk import Chunk, ChunkTarget
from cdc.snapshot.errors import SnapshotError, TableChangedError
from cdc.snapshot.progress import KeyRange, SnapshotProgress
from cdc.snapshot.record import ReadEnvelope
from cdc.snapshot.table_facts import look

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.snapshot.reads import Read
    from cdc.snapshot.table_facts import TableFacts


@dataclass(frozen=True, slots=True)
class SnapshotStart:
    """The plan of a snapshot at its start.

    Attributes:
        facts: The table.
        ranges: Its key ranges.
        rows_expected: Its approximate number of rows; None if unknown.
    """

    facts: TableFacts
    ranges: tuple[KeyRange, ...]
    rows_expected: int | None


class Worker:
    """Reads and sends rows in one thread; connects on first use, and again after a failure."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        self._headers = [(EPOCH_HEADER, str(spec.epoch).encode())]
        self._stack = ExitStack()
        self._connection: Connection[Any] | None = None
        self._sender: Producer | None = None
        self._open: set[str] = set()

    def close(self) -> None:
        """Closes the database session and the connection to Kafka."""
        self._connection = self._sender = None
        self._open.clear()
        stack, self._stack = self._stack, ExitStack()
        stack.close()

    def cancel(self) -> None:
        """Cancels the running statement; may be called from any thread."""
        connection, sender = self._connection, self._sender
        if sender is not None:
            sender.give_up()
        if connection is not None and not connection.closed:
            with suppress(Error):
                connection.cancel_safe(timeout=2.0)

    def start(self, read: Read) -> SnapshotStart:
        """Plans a snapshot whose position has been reached.

        Raises:
            SnapshotError: The table cannot be read.
        """
        connection = self._session()
        facts = look(connection, read.table, self._spec.publication, self._spec.columns)
        if read.keys is not None:
            return SnapshotStart(facts, (KeyRange(),), len(read.keys))
        expected = ranges.rows_expected(connection, facts, read.predicate)
        # rows that satisfy a condition may be anywhere in the table
        whole = expected if read.whole else 0
        return SnapshotStart(facts, ranges.split(connection, facts, whole or 0), expected)

    def chunk(self, read: Read, part: KeyRange, last: Chunk | None) -> Chunk:
        """Sends the next chunk of a range; returns once Kafka has acknowledged it.

        Args:
            read: The snapshot, which has begun.
            part: The range with its progress.
            last: Result of the previous chunk.

        Raises:
            TableChangedError: The table was altered or replaced since the snapshot began.
            SnapshotError: The table cannot be read.
            BrokerError: Kafka does not accept the rows.
        """
        connection = self._session()
        facts, target = self._same(connection, read), self._target(read)
        if read.keys is not None:
            found = chunk.read_keys(connection, facts, read.keys, part, target)
        else:
            limit = chunk.rows_of_next(last)
            found = chunk.read_range(connection, facts, part, target, limit)
        # a TRUNCATE that commits later removes rows sent before it; rows sent after it would stay
        self._same(connection, read)
        return found

    def keyless(self, read: Read, stopped: Callable[[], bool]) -> tuple[Read, Chunk] | None:
        """Reads a whole table without a key in one database snapshot.

        Args:
            read: The snapshot.
            stopped: Returns whether to give up.

        Returns:
            The updated snapshot, and the result; None if it was cancelled or another process
            has restarted it.

        Raises:
            SnapshotError: The table cannot be read, or always has a writer.
            BrokerError: Kafka does not accept the rows.
        """
        connection = self._session()
        facts = look(connection, read.table, self._spec.publication, self._spec.columns)
        expected = ranges.rows_expected(connection, facts, None)
        part = KeyRange()
        with session.connect(self._spec.dsn) as other:
            position = quiet_moment.begin(connection, other, facts, stopped)
            try:
                progress = SnapshotProgress(facts.identity, facts.shape, (part,))
                if not reads.begin(other, read, position, progress, expected):
                    return None
                begun = replace(read, read_lsn=position, progress=progress)
                found = chunk.read_keyless(
                    connection,
                    facts,
                    part,
                    self._target(begun),
                    lambda rows: reads.count(other, read.id, position, rows),
                )
            finally:
                if not connection.closed:
                    connection.execute("ROLLBACK")
        return begun, found

    def end_offsets(self, read: Read) -> dict[int, int]:
        """Returns the next offset of each partition of a snapshot's topic.

        If the topic is compacted, the last record of each key is made its newest one first.
        """
        topic = self._spec.table_topics[read.table]
        if self._spec.retention_of(read.table).latest:
            last_record.settle(self._spec.kafka_bootstrap, topic, read.begun_at)
        ends = offsets.end_offsets(self._spec.kafka_bootstrap, [topic])
        return {partition: end for (_, partition), end in ends.items()}

    def _same(self, connection: Connection[Any], read: Read) -> TableFacts:
        """Describes the table with its columns of the snapshot's start, without later ones."""
        facts = look(connection, read.table, self._spec.publication, self._spec.columns)
        begun = read.progress
        if begun is None or facts.identity != begun.identity:
            raise TableChangedError(f"table {read.table} was truncated or recreated")
        kept = facts.of_shape(begun.shape)
        if kept is None:
            raise TableChangedError(f"columns of table {read.table} were altered")
        return kept

    def _target(self, read: Read) -> ChunkTarget:
        assert read.read_lsn is not None  # noqa: S101  # it has begun
        topic = self._spec.table_topics[read.table]
        envelope = ReadEnvelope(self._spec.name, read.table, read.read_lsn)
        return ChunkTarget(self._opened(topic), topic, envelope, read.predicate)

    def _session(self) -> Connection[Any]:
        if self._connection is None or self._connection.closed:
            self.close()
            connection = session.connect(self._spec.reader_dsn, options=session.UNFILTERED)
            self._stack.callback(connection.close)
            try:
                connection.execute(chunk.SESSION.encode())
                treatment.prepare(connection, self._spec.salt)
            except Error as error:
                raise SnapshotError(
                    "a session for the snapshot cannot be set up", detail=error.diag.message_primary
                ) from None
            self._connection = connection
        return self._connection

    def _opened(self, topic: str) -> Producer:
        if self._sender is None:
            self._sender = self._stack.enter_context(producer(self._spec.kafka_bootstrap))
            self._sender.expect(self._spec.table_topics.values())
        if topic not in self._open:
            self._sender.open(topic, self._headers)
            self._open.add(topic)
        return self._sender
