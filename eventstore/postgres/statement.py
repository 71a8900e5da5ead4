"""Statements: the SQL of each operation, and the interpretation of its rows.

This module uses no connection, so the blocking log and the asyncio log share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from eventstore.errors import (
    IsolationRefusedError,
)
from eventstore.log import Boundary, Repeated, StateSnapshot
from eventstore.model.event import Appended, StoredEvent
from eventstore.model.query import Condition
from eventstore.model.token import Token

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from eventstore.log import LogPart, StreamPart
    from eventstore.model.event import AppendRequest
    from eventstore.model.query import Query, QueryItem


class Statement(NamedTuple):
    """One statement and its parameters."""

    sql: str
    parameters: Sequence[Any] | Mapping[str, Any]


_COLUMNS: Final = (
    "global_position, tenant, stream, stream_position, type, schema_version, event_id, data, "
    "metadata, tags, correlation_id, causation_id, actor, occurred_at, recorded_at"
)


_TAGGED: Final = (
    "SELECT global_position FROM eventstore.event_tags"
    " WHERE tag = ANY (%s) AND global_position > %s AND global_position <= %s"
)


# A condition is checked in the statement's snapshot, under the locks of its tags. A REPEATABLE READ
# transaction keeps one snapshot and misses later commits, and no unique index detects that, as one
# does for a stream's version. SERIALIZABLE does not help: Postgres detects conflicts among
# serializable transactions only, and the store's own appends are not serializable.
IN_VIEW: Final = (
    "current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"
)

HIGH_WATER_MARK: Final = Statement("SELECT eventstore.high_water_mark(), eventstore.head()", ())
HEAD: Final = Statement("SELECT eventstore.head()", ())


def query_items(items: Iterable[QueryItem]) -> str:
    """Returns the items of a query as JSON."""
    said = [{"types": sorted(item.types), "tags": sorted(item.tags)} for item in items]
    return orjson.dumps(said).decode()


def events_by_id(request: AppendRequest) -> Statement:
    """Returns the statement that finds events of an append that are already stored."""
    ids = [event.event_id for append in request.appends for event in append.events]
    return Statement(
        f"SELECT {_COLUMNS} FROM eventstore.log WHERE tenant = %s AND event_id = ANY (%s)",  # noqa: S608
        (request.tenant, ids),
    )


def stream_version(tenant: str, stream: str) -> Statement:
    """Returns the statement for `EventLog.stream_version`."""
    return Statement("SELECT eventstore.stream_version(%s, %s)", (tenant, stream))


def read_stream(tenant: str, stream: str, part: StreamPart) -> Statement:
    """Returns the statement for `EventLog.read_stream`: a single one, for one snapshot."""
    # The state at an instant needs the original events, not their `$snapshot`.
    table = "log" if part.archived or part.as_of else "events"
    clauses = ["tenant = %s", "stream = %s", "stream_position > %s"]
    parameters: list[Any] = [tenant, stream, part.after]
    if part.through is not None:
        clauses.append("stream_position <= %s")
        parameters.append(part.through)
    if part.as_of is not None:
        # Ends before the first later event, so that a clock that was set back leaves no gap.
        clauses.append(
            "stream_position < coalesce((SELECT min(stream_position) FROM eventstore.log"
            " WHERE tenant = %s AND stream = %s AND recorded_at > %s), 9223372036854775807)"
        )
        parameters += [tenant, stream, part.as_of]
    sql = (
        f"SELECT {_COLUMNS} FROM eventstore.{table} WHERE {' AND '.join(clauses)}"  # noqa: S608
        f" ORDER BY stream_position {'DESC' if part.backwards else 'ASC'}"
    )
    if part.limit is not None:
        sql += " LIMIT %s"
        parameters.append(part.limit)
    return Statement(sql, parameters)


def read_log(
    tenant: str | None, part: LogPart, *, after: int, through: int, limit: int
) -> Statement:
    """Returns the statement for one page of `EventLog.read_log`.

    Args:
        tenant: The tenant; None for all tenants.
        part: The query and the direction; the other arguments give the bounds.
        after: Only global positions greater than this.
        through: Only global positions up to this one.
        limit: Size of the page.
    """
    clauses = ["global_position > %s", "global_position <= %s"]
    parameters: list[Any] = [after, through]
    if tenant is not None:
        clauses.append("tenant = %s")
        parameters.append(tenant)
    for clause, values in _query(tenant, part.query, after, through):
        clauses.append(clause)
        parameters += values
    order = f"ORDER BY global_position {'DESC' if part.backwards else 'ASC'} LIMIT %s"
    where = f"WHERE {' AND '.join(clauses)}"
    # The body of the view eventstore.log with a limit in each half, so that the planner merges two
    # index scans. Over the view, it would read and sort all events up to the high-water mark for
    # each page.
    sql = (
        f"(SELECT {_COLUMNS} FROM eventstore.events {where} AND type <> '$snapshot' {order})"  # noqa: S608
        f" UNION ALL (SELECT {_COLUMNS} FROM eventstore.archived_events {where} {order}) {order}"
    )
    return Statement(sql, [*parameters, limit, *parameters, limit, limit])


def _query(
    tenant: str | None, query: Query, after: int, through: int
) -> Iterable[tuple[str, list[Any]]]:
    if query.category is not None:
        yield "split_part(stream, '-', 1) = %s", [query.category]
    items = query.items
    if not items:
        return
    if all(item.types and not item.tags for item in items):
        yield "type = ANY (%s)", [sorted({name for item in items for name in item.types})]
        return
    if all(item.tags for item in items):
        # the index of tags finds few candidates, on which the other criteria are checked
        names = sorted({min(item.tags) for item in items})
        if tenant is None:
            yield f"global_position IN ({_TAGGED})", [names, after, through]
        else:
            yield f"global_position IN ({_TAGGED} AND tenant = %s)", [names, after, through, tenant]
    either, values = [], []
    for item in items:
        either.append("(%s::text[] = '{}' OR type = ANY (%s)) AND coalesce(tags, '{}') @> %s")
        values += [sorted(item.types), sorted(item.types), sorted(item.tags)]
    yield "(" + " OR ".join(f"({one})" for one in either) + ")", values


def read_boundary(tenant: str, query: Query) -> Statement:
    """Returns the statement for `EventLog.read_boundary`.

    Raises:
        BatchRefusedError: The query cannot be part of a condition.
    """
    Condition(query, 0)
    return Statement(
        f"SELECT {IN_VIEW}, {_COLUMNS}"  # noqa: S608
        " FROM (SELECT) AS once LEFT JOIN eventstore.read_boundary(%s, %s) ON true"
        " ORDER BY global_position",
        (tenant, query_items(query.items)),
    )


def boundary(rows: Sequence[Sequence[Any]]) -> Boundary:
    """Interprets the rows of `read_boundary`.

    Raises:
        IsolationRefusedError: The transaction would not see every event.
    """
    if not rows[0][0]:
        raise out_of_view()
    events = [StoredEvent._make(row[1:]) for row in rows if row[1] is not None]
    return Boundary(events, events[-1].global_position if events else 0)


def out_of_view() -> IsolationRefusedError:
    """Returns the error for a transaction whose snapshot hides later commits."""
    return IsolationRefusedError(
        "an append condition needs isolation level READ COMMITTED",
        detail="the transaction would not see events committed since it began",
        hint="begin the transaction at READ COMMITTED, or omit connection",
    )


def result_of(tenant: str, key: str) -> Statement:
    """Returns the statement for `EventLog.result_of`."""
    return Statement(
        "SELECT digest, versions, global_position, transaction_id FROM eventstore.idempotency_keys"
        " WHERE tenant = %s AND key = %s",
        (tenant, key),
    )


def known_result(row: Sequence[Any] | None) -> Repeated | None:
    """Interprets the row of `result_of`."""
    if row is None:
        return None
    digest, versions, position, transaction = row
    return Repeated(digest, Appended(tuple(versions), Token(position, transaction), repeated=True))


def snapshot(tenant: str, stream: str, fold: str, through: int | None) -> Statement:
    """Returns the statement for `EventLog.snapshot`."""
    return Statement(
        "SELECT stream, fold, stream_position, state, digest, subjects FROM eventstore.snapshots"
        " WHERE tenant = %s AND stream = %s AND fold = %s AND stream_position <= %s",
        (tenant, stream, fold, 2**63 - 1 if through is None else through),
    )


def known_snapshot(row: Sequence[Any] | None) -> StateSnapshot | None:
    """Interprets the row of `snapshot`."""
    if row is None:
        return None
    stream, fold, position, state, digest, subjects = row
    return StateSnapshot(stream, fold, position, state, digest, tuple(subjects))


def save_snapshot(tenant: str, saved: StateSnapshot) -> Statement:
    """Returns the statement for `EventLog.save_snapshot`; never replaces a newer state."""
    return Statement(
        "INSERT INTO eventstore.snapshots AS known"
        " (tenant, stream, fold, stream_position, state, digest, subjects)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (tenant, stream, fold) DO UPDATE SET"
        " stream_position = excluded.stream_position, state = excluded.state,"
        " digest = excluded.digest, subjects = excluded.subjects, taken_at = clock_timestamp()"
        " WHERE known.stream_position <= excluded.stream_position",
        (tenant, *saved[:5], list(saved.subjects)),
    )
