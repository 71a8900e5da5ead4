"""Requests snapshots of a table, of keys, or of rows that meet a condition; streaming continues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from psycopg import DataError, Error, OperationalError, sql

from cdc.postgres import catalog, own_schema, publication, session
from cdc.snapshot import chunk, ranges, reads
from cdc.snapshot.errors import ReadRefusedError, ReadUnknownError, SnapshotError
from cdc.snapshot.reads import SnapshotRequest
from cdc.snapshot.table_facts import look
from foundation.waiting import looks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.snapshot.reads import Key, Read
    from cdc.snapshot.table_facts import TableFacts
    from cdc.table import TableName

KEYS_MAX: Final = 100_000
"""Most keys of one snapshot; for more, request the whole table."""

_CONDITION: Final = 'give an SQL condition on its columns, such as --where "customer_id = 7"'
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of a request.

    Attributes:
        read: The recorded snapshot.
        new: False if the same snapshot was already waiting.
        changes: Changes made to the source for it, one line each.
    """

    read: Read
    new: bool
    changes: tuple[str, ...] = ()


def ask(
    spec: CaptureSpec,
    table: TableName,
    *,
    keys: Sequence[object] | None = None,
    where: str | None = None,
) -> RequestOutcome:
    """Requests a snapshot of a captured table: of all rows, unless keys or a condition are given.

    The rows are sent to the table's topic with the snapshot's position, while changes stream. They
    repair these rows in views, and lose to every later change. A key without a row is sent as a
    delete. A snapshot of the whole table also makes views drop rows that no longer exist, and adds
    the table to the publication if it is missing there. A condition cannot determine which rows no
    longer satisfy it.

    Args:
        spec: The source.
        table: The table.
        keys: The keys: each is one value, a sequence in the order of the key's columns, or a
            mapping by column.
        where: SQL condition on its columns, such as `customer_id = 7`.

    Raises:
        ReadRefusedError: The table is not captured, it has no such key or columns, or the
            condition is invalid.
        CdcError: Postgres does not answer.
    """
    if table not in spec.tables:
        raise ReadRefusedError(
            f"table {table} is not captured",
            detail="captured: " + ", ".join(sorted(map(str, spec.tables))),
            hint="declare it in the source, then run headwater up, which takes a snapshot",
        )
    if keys is not None and where is not None:
        raise ReadRefusedError(
            "a snapshot takes keys or a condition, not both",
            hint="request two snapshots: one with --key, one with --where",
        )
    with session.connect(spec.dsn) as state:
        if not own_schema.exists(state):
            raise ReadRefusedError(
                f"source {spec.name} was never captured",
                hint=("headwater up captures the source and takes its snapshots"),
            )
        changes = _publish(state, spec, table) if keys is None and where is None else []
        spec = replace(spec, epoch=reads.epoch_of(state, spec.name, spec.epoch))
        request, expected = _checked(spec, SnapshotRequest(table, None, where), keys)
        number, new = reads.ask(state, spec.name, spec.epoch, request, expected)
        return RequestOutcome(_found(state, spec, number), new, tuple(changes))


def cancel(spec: CaptureSpec, number: int) -> Read:
    """Cancels a snapshot; the rows that it has sent remain, and are correct.

    Raises:
        ReadUnknownError: The snapshot does not exist, or has ended.
        ReadRefusedError: It has begun, and its table has no key: its rows would exist twice until
            the next snapshot of the whole table.
    """
    with session.connect(spec.dsn) as state:
        found = reads.find(state, spec.name, number)
        if found is not None and found.state == "reading" and _keyless(state, found.table):
            raise ReadRefusedError(
                f"snapshot {number} of {found.table} has begun, and the table has no key",
                hint=(
                    "let it end: views then remove their former rows, so that no row is duplicated"
                ),
            )
        if not reads.cancel(state, spec.name, number):
            raise ReadUnknownError(
                f"snapshot {number} is not running",
                detail=f"its state is {found.state}" if found else "no snapshot has this number",
            )
        return _found(state, spec, number)


def wait(
    spec: CaptureSpec,
    number: int,
    deadline_s: float,
    progress: Callable[[Read], None] = lambda _: None,
) -> Read:
    """Waits until a snapshot is done.

    Args:
        spec: The source.
        number: Number of the snapshot.
        deadline_s: Longest wait, seconds.
        progress: Called periodically with its progress.

    Raises:
        ReadUnknownError: The snapshot does not exist.
        SnapshotError: It failed, was cancelled, or is not done in time.
    """
    with session.connect(spec.dsn) as state:
        for _ in looks(deadline_s, _POLL_S):
            found = _found(state, spec, number)
            if found.state not in reads.OPEN:
                break
            progress(found)
        else:
            raise SnapshotError(
                f"snapshot {number} is not done after {deadline_s:.0f} s",
                detail=found.failure or f"{found.rows_read:,} rows read",
                hint="headwater source status shows its progress",
            )
    if not found.done:
        raise SnapshotError(f"snapshot {number} is {found.state}", detail=found.failure)
    return found


def _keyless(state: Connection[Any], table: TableName) -> bool:
    schema = catalog.describe(state, [table]).get(table)
    return schema is not None and not schema.key


def _publish(state: Connection[Any], spec: CaptureSpec, table: TableName) -> list[str]:
    """Adds a table to the publication if it is missing; the snapshot begins afterwards."""
    found = publication.find(state, spec.publication)
    if found is None or found.all_tables or table in found.tables:
        return []
    return publication.ensure(state, spec.publication, [*found.tables, table])


def _checked(
    spec: CaptureSpec, request: SnapshotRequest, keys: Sequence[object] | None
) -> tuple[SnapshotRequest, int | None]:
    with session.connect(spec.reader_dsn, options=session.UNFILTERED) as connection:
        connection.execute(chunk.SESSION.encode())
        try:
            facts = look(connection, request.table, spec.publication, spec.columns)
            if not facts.key and (keys is not None or request.predicate is not None):
                raise ReadRefusedError(
                    f"table {request.table} has no key, so single rows cannot be selected",
                    hint="request a snapshot of the whole table, or add a primary key",
                )
            if keys is not None:
                canonical = _keys(connection, facts, keys)
                return replace(request, keys=canonical), len(canonical)
            return request, ranges.rows_expected(connection, facts, request.predicate)
        except OperationalError:
            raise
        except Error as error:
            conditional = request.predicate is not None
            raise ReadRefusedError(
                f"the {'condition' if conditional else 'table'} cannot be read",
                detail=error.diag.message_primary,
                hint=_CONDITION
                if conditional
                else ("headwater doctor names the privileges that the role lacks"),
            ) from None


def _keys(
    connection: Connection[Any], facts: TableFacts, keys: Sequence[object]
) -> tuple[Key, ...]:
    names = facts.schema.key
    texts = [_texts(names, key) for key in keys]
    if not 0 < len(texts) <= KEYS_MAX:
        raise ReadRefusedError(
            "no keys are given" if not texts else "too many keys",
            detail=f"{len(texts):,}, {KEYS_MAX:,} at most",
            hint=(
                f"headwater source resnapshot {facts.schema.table} takes a snapshot of the "
                "whole table"
            ),
        )
    # as the types print them, so that equal keys are one
    columns = sql.SQL(", ").join(
        sql.SQL("format('%s', k.{}::{})").format(
            sql.Identifier(f"k{place}"),
            sql.SQL(facts.schema.by_name[name].type_name),
        )
        for place, name in enumerate(names)
    )
    arrays = sql.SQL(", ").join(
        sql.SQL("{}::text[]").format(sql.Literal([key[place] for key in texts]))
        for place in range(len(names))
    )
    listed = sql.SQL(", ").join(sql.Identifier(f"k{place}") for place in range(len(names)))
    query = sql.SQL("SELECT DISTINCT {} FROM unnest({}) AS k ({})").format(columns, arrays, listed)
    try:
        return tuple(tuple(row) for row in connection.execute(query).fetchall())
    except DataError as error:
        types = ", ".join(f"{name} {facts.schema.by_name[name].type_name}" for name in names)
        raise ReadRefusedError(
            f"a key does not fit table {facts.schema.table}",
            detail=type(error).__name__,
            hint=f"use Postgres' input format: {types}",
        ) from None


def _texts(names: Sequence[str], key: Any) -> tuple[str, ...]:
    if isinstance(key, dict):
        if set(key) != set(names):
            raise _other_key(names, sorted(map(str, key)))
        values = [key[name] for name in names]
    elif isinstance(key, list | tuple):
        values = list(key)
    else:
        values = [key]
    if len(values) != len(names) or any(value is None for value in values):
        raise _other_key(names, [f"{len(values)} values"])
    return tuple(_text(value) for value in values)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value)


def _other_key(names: Sequence[str], given: Sequence[str]) -> ReadRefusedError:
    return ReadRefusedError(
        "a key has other columns than the table's key",
        detail=f"given: {', '.join(given)}; the key is {', '.join(names)}",
        hint='give one value, or all columns as JSON: {"a": 1, "b": "x"}',
    )


def _found(state: Connection[Any], spec: CaptureSpec, number: int) -> Read:
    found = reads.find(state, spec.name, number)
    if found is None:
        raise ReadUnknownError(f"source {spec.name} has no snapshot {number}")
    return found
