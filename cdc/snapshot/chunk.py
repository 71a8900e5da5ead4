"""One chunk of a snapshot: reads rows of a key range and sends them to the table's topic."""

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
"""Most rows of a chunk, and so most rows that a range sends again after a crash."""

BYTES_AIM: Final = 32 * 1024 * 1024
"""Approximate size of a chunk of wide rows."""

KEYS_MAX: Final = 500
"""Keys per chunk of a snapshot of single keys."""

_ROWS_FIRST: Final = 2_000
_CLOCK_BEGINS_US: Final = 946_684_800_000_000
"""Epoch of the server's binary timestamps: the year 2000."""

_NOTED_EVERY: Final = 20_000

SESSION: Final = (
    f"{expression.SESSION}; "
    "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; "
    "SET lock_timeout = '10s'; SET default_transaction_read_only = on; "
    # otherwise rows hidden by a row security policy would be missing without an error
    "SET row_security = off; "
    # a chunk scans the key's index: JIT and parallel workers would only add start-up time
    "SET jit = off; SET max_parallel_workers_per_gather = 0"
)
"""Settings of a reader's session."""

_ALONG_THE_KEY: Final = (
    "SET enable_seqscan = {0}; SET enable_bitmapscan = {0}; SET enable_sort = {0}"
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The result of one chunk.

    Attributes:
        rows: Number of rows sent.
        size_bytes: Size of their records before compression.
        part: The range with its new progress.
    """

    rows: int
    size_bytes: int
    part: KeyRange


@dataclass(frozen=True, slots=True)
class ChunkTarget:
    """The destination of a snapshot's records, and how they are encoded.

    Attributes:
        sender: Producer that has opened the topic.
        topic: The table's topic.
        envelope: Encodes the records.
        predicate: SQL condition of a partial snapshot; None to read every row.
    """

    sender: Producer
    topic: str
    envelope: ReadEnvelope
    predicate: str | None = None


def rows_of_next(last: Chunk | None) -> int:
    """Returns the row limit of the next chunk, from the average row size of the last one."""
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
        # the line break ends a trailing comment before the closing parenthesis
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
    """Sends the rows of the next keys, and a delete for each key without a row.

    Raises:
        psycopg.Error: The table cannot be read, or a key is invalid for the column type.
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
    """Sends every row of a table without a key, in the session's current transaction.

    Args:
        connection: In a transaction with one snapshot.
        facts: The table.
        part: The only range.
        target: The destination.
        note: Called periodically with the number of rows sent so far.

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
    """Sends the rows of a COPY query; returns their number, their size, and the last key."""
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
        sql.SQL("{} AS headwater_row").format(expression.row_json(schema)),
        sql.SQL("{} AS headwater_key").format(
            expression.key_json(schema) if schema.key else sql.SQL("NULL::text")
        ),
        sql.SQL("clock_timestamp() AS headwater_clock"),  # later than the snapshot of the rows
        *key_texts(schema),
    ]
    return sql.SQL("COPY (SELECT {} {}) TO STDOUT (FORMAT binary)").format(
        sql.SQL(", ").join(columns), rest
    )


def key_texts(schema: TableSchema) -> list[sql.Composed]:
    """Returns the key's columns as texts that Postgres parses to the same values.

    They have names, because ORDER BY prefers a selected value to a column of its name: a key named
    `format` would be sorted as text.
    """
    return [
        sql.SQL("format('%s', {}) AS {}").format(
            sql.Identifier(name), sql.Identifier(f"headwater_key_{place}")
        )
        for place, name in enumerate(schema.key)
    ]


def _bounds(facts: TableFacts, part: KeyRange) -> list[sql.Composable]:
    """Returns the conditions for the unread part of a range."""
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
