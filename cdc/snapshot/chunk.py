"""One chunk of a read: rows of a range of keys, out of the table and into its topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from cdc.snapshot import expression
from cdc.snapshot.expression import key_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg import Connection

    from cdc.broker.producing.producer import Producer
    from cdc.snapshot.progress import KeyRange
    from cdc.snapshot.record import ReadEnvelope
    from cdc.snapshot.table_facts import TableFacts
    from cdc.table import TableSchema

ROWS_MAX: Final = 50_000
"""Rows of a chunk: what is sent again after a crash, at most, for each range under way."""

BYTES_AIM: Final = 32 * 1024 * 1024
"""Bytes of a chunk of wide rows, about."""

KEYS_MAX: Final = 500
"""Keys of a chunk of a read of keys."""

_ROWS_FIRST: Final = 2_000
_CLOCK_BEGINS_US: Final = 946_684_800_000_000
"""What the server's binary times count from, the year 2000."""

_NOTED_EVERY: Final = 20_000

SESSION: Final = (
    f"{expression.SESSION}; "
    "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; "
    "SET lock_timeout = '10s'; SET default_transaction_read_only = on; "
    # rows that a policy hides would be missing without a word: now that is an error
    "SET row_security = off; "
    # a chunk is a walk along the key's index; what the planner saves elsewhere it costs in start
    "SET jit = off; SET max_parallel_workers_per_gather = 0"
)
"""What the session of a reader must be set to."""

_ALONG_THE_KEY: Final = (
    "SET enable_seqscan = {0}; SET enable_bitmapscan = {0}; SET enable_sort = {0}"
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came of one chunk.

    Attributes:
        rows: Rows that were sent.
        size_bytes: Of their records, before they are packed.
        part: The range after it.
    """

    rows: int
    size_bytes: int
    part: KeyRange


@dataclass(frozen=True, slots=True)
class ChunkTarget:
    """Which records a read makes, and where they go.

    Attributes:
        sender: Has the topic open.
        topic: The table's.
        envelope: Makes the records.
        predicate: Condition of a read in part; None reads every row.
    """

    sender: Producer
    topic: str
    envelope: ReadEnvelope
    predicate: str | None = None


def rows_of_next(last: Chunk | None) -> int:
    """Returns how many rows the next chunk shall have, by the width of those of the last."""
    if last is None or not last.rows:
        return _ROWS_FIRST
    return max(1, min(ROWS_MAX, BYTES_AIM * last.rows // max(1, last.size_bytes)))


def read_range(
    connection: Connection[Any], facts: TableFacts, part: KeyRange, target: ChunkTarget, limit: int
) -> Chunk:
    """Sends the next rows of a range, in the order of their keys; returns once they are in Kafka.

    Raises:
        psycopg.Error: The table cannot be read.
        BrokerError: Kafka does not take the rows.
    """
    predicate = target.predicate
    connection.execute(_ALONG_THE_KEY.format("on" if predicate else "off").encode())
    conditions = _bounds(facts, part)
    if predicate is not None:
        # a comment at its end shall not reach the parenthesis
        conditions.append(sql.SQL("({}\n)").format(sql.SQL(predicate)))
    query = _copy(
        facts,
        sql.SQL("FROM {}{} ORDER BY {} LIMIT {}").format(
            facts.relation, _where(conditions), sql.SQL(", ").join(facts.key), sql.Literal(limit)
        ),
    )
    rows, size, last = _send(connection, query, facts.schema, target)
    target.sender.flush()
    return Chunk(rows, size, part.reached(last, done=rows < limit))


def read_keys(
    connection: Connection[Any],
    facts: TableFacts,
    keys: Sequence[Sequence[str]],
    part: KeyRange,
    target: ChunkTarget,
) -> Chunk:
    """Sends the rows of the next of some keys, and for each key without a row that it is absent.

    Raises:
        psycopg.Error: The table cannot be read, or a key is none of its type.
        BrokerError: Kafka does not take the rows.
    """
    at = int(part.at[0]) if part.at else 0
    now = keys[at : at + KEYS_MAX]
    wanted = _wanted(facts.schema, now)
    query = _copy(
        facts,
        sql.SQL("FROM {} WHERE ({}) IN (SELECT * FROM {} AS wanted)").format(
            facts.relation, sql.SQL(", ").join(facts.key), wanted
        ),
    )
    rows, size, _ = _send(connection, query, facts.schema, target)
    absent = sql.SQL(
        "SELECT {} FROM {} AS wanted ({}) WHERE NOT EXISTS (SELECT FROM {} AS t WHERE {})"
    ).format(
        expression.key_json(facts.schema),
        wanted,
        sql.SQL(", ").join(map(sql.Identifier, facts.schema.key)),
        facts.relation,
        sql.SQL(" AND ").join(
            sql.SQL("t.{0} = wanted.{0}").format(sql.Identifier(name)) for name in facts.schema.key
        ),
    )
    for (key_json,) in connection.execute(absent).fetchall():
        key = key_bytes(key_json.encode())
        target.sender.send(target.topic, key, target.envelope.of_absence(key))
    target.sender.flush()
    reached = at + len(now)
    return Chunk(rows, size, part.reached((str(reached),), done=reached >= len(keys)))


def read_keyless(
    connection: Connection[Any],
    facts: TableFacts,
    part: KeyRange,
    target: ChunkTarget,
    note: Callable[[int], None],
) -> Chunk:
    """Sends every row of a table without a key, in the transaction that the session is in.

    Args:
        connection: In a transaction that sees one moment.
        facts: The table.
        part: The one range of the read.
        target: Where to.
        note: Told now and then how many rows have been sent.

    Raises:
        psycopg.Error: The table cannot be read.
        BrokerError: Kafka does not take the rows.
    """
    query = _copy(facts, sql.SQL("FROM {}").format(facts.relation))
    rows, size, _ = _send(connection, query, facts.schema, target, note)
    target.sender.flush()
    return Chunk(rows, size, part.reached(None, done=True))


def _send(
    connection: Connection[Any],
    query: sql.Composed,
    schema: TableSchema,
    target: ChunkTarget,
    note: Callable[[int], None] | None = None,
) -> tuple[int, int, tuple[str, ...] | None]:
    """Sends what a query copies out; returns how many, their bytes, and the last one's key."""
    send, envelope, topic = target.sender.send, target.envelope, target.topic
    of_row = envelope.of_row
    keyed = bool(schema.key)
    rows = size = 0
    place: Sequence[bytes] = ()
    with connection.cursor().copy(query) as copy:
        copy.set_types(["bytea"] * (3 + len(schema.key)))
        for row_json, key_json, clock, *place in copy.rows():  # noqa: B007  # the last is needed
            rows += 1
            if rows == 1:
                envelope.seen(int.from_bytes(clock) + _CLOCK_BEGINS_US)
            value = of_row(row_json, 0 if keyed else rows)
            size += len(value)
            send(topic, key_bytes(key_json) if keyed else None, value)
            if note is not None and rows % _NOTED_EVERY == 0:
                note(rows)
    return rows, size, tuple(part.decode() for part in place) or None


def _copy(facts: TableFacts, rest: sql.Composable) -> sql.Composed:
    schema = facts.schema
    columns: list[sql.Composable] = [
        expression.row_json(schema),
        expression.key_json(schema) if schema.key else sql.SQL("NULL::text"),
        sql.SQL("clock_timestamp()"),  # the snapshot that the rows are of was taken before
        *key_texts(schema),
    ]
    return sql.SQL("COPY (SELECT {} {}) TO STDOUT (FORMAT binary)").format(
        sql.SQL(", ").join(columns), rest
    )


def key_texts(schema: TableSchema) -> list[sql.Composed]:
    """Returns the key's columns as texts that Postgres reads back as the same values."""
    return [sql.SQL("format('%s', {})").format(sql.Identifier(name)) for name in schema.key]


def _bounds(facts: TableFacts, part: KeyRange) -> list[sql.Composable]:
    """Conditions for what of a range has not been read."""
    compared = (("({}) > ({})", part.at or part.above), ("({}) <= ({})", part.through))
    return [
        sql.SQL(form).format(
            sql.SQL(", ").join(facts.key), sql.SQL(", ").join(map(sql.Literal, bound))
        )
        for form, bound in compared
        if bound is not None
    ]


def _where(conditions: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")


def _wanted(schema: TableSchema, keys: Sequence[Sequence[str]]) -> sql.Composed:
    types = [sql.SQL(schema.by_name[name].type_name) for name in schema.key]
    rows = (
        sql.SQL("({})").format(
            sql.SQL(", ").join(
                sql.SQL("{}::{}").format(sql.Literal(text), type_name)
                for text, type_name in zip(key, types, strict=True)
            )
        )
        for key in keys
    )
    return sql.SQL("(VALUES {})").format(sql.SQL(", ").join(rows))
