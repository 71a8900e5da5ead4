"""The SQL statements of an append, and the interpretation of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from eventstore.errors import (
    ConditionFailedError,
    EventRefusedError,
    IdempotencyConflictError,
    WrongExpectedVersionError,
)
from eventstore.model.event import Appended, StoredEvent, in_utc
from eventstore.model.expected_version import NO_STREAM
from eventstore.model.token import Token
from eventstore.postgres.statement import IN_VIEW, Statement, out_of_view, query_items

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventstore.model.event import AppendRequest, IntegrationEvent, NewEvent, StreamAppend

# Appends one event with an exact expected version in a transaction of its own, at half the cost of
# a function call. CASE takes the locks in order, before the row draws its position: first the lock
# of the stream, which the functions take as well, then the shared lock that keeps the high-water
# mark below the drawn position (12_order.sql). Without a FROM, the executor starts one node. The
# expected version must be the stream's. A writer that waited for the lock compares with an old
# snapshot, so the unique index detects its conflict. The event id must be absent from the archive.
_INSERT_EVENT: Final = """
INSERT INTO eventstore.events (
    global_position, tenant, stream, stream_position, type, schema_version, event_id, data,
    metadata, correlation_id, causation_id, actor, occurred_at)
SELECT nextval('eventstore.global_position'), %(tenant)b, %(stream)b, %(expected)b::bigint + 1,
       %(type)b, %(schema_version)b, %(event_id)b, %(data)s::json, %(metadata)s::json,
       %(correlation_id)b, %(causation_id)b, %(actor)b, %(occurred_at)b
 WHERE CASE
    WHEN pg_advisory_xact_lock(1749232, hashtext(%(tenant)b || '/' || %(stream)b)) IS NULL
    THEN false
    WHEN pg_advisory_xact_lock_shared(1749231,
        (coalesce(pg_sequence_last_value('eventstore.global_position'), 0) & 2147483647)::integer)
        IS NULL
    THEN false
    WHEN %(expected)b::bigint = coalesce(
        (SELECT stream_position
           FROM eventstore.events
          WHERE tenant = %(tenant)b AND stream = %(stream)b
          ORDER BY stream_position DESC
          LIMIT 1), 0)
    THEN NOT EXISTS (SELECT FROM eventstore.archived_events
                      WHERE tenant = %(tenant)b AND event_id = %(event_id)b)
    END
RETURNING global_position, pg_current_xact_id()::text::bigint,
          CASE WHEN pg_sequence_last_value('eventstore.wake_wanted') = 1
               THEN eventstore.wake() IS NULL END
"""

_APPEND_EVENT: Final = (
    "SELECT eventstore.append_event(%(tenant)b, %(stream)b, %(expected)b::bigint, %(type)b,"
    " %(schema_version)b::smallint, %(event_id)b, %(data)s, %(metadata)s, %(occurred_at)b,"
    " %(correlation_id)b, %(causation_id)b, %(actor)b)"
)

_APPEND_EVENTS: Final = (
    "SELECT eventstore.append_events(%b, %b, %b::bigint, %s::text[], %s::smallint[], %s::uuid[],"
    " %s::text[], %s::text[], %s::timestamptz[], %b, %b, %b)"
)

_RESULT: Final = (
    "outcome",
    "versions",
    "global_position",
    "transaction_id",
    "stream_number",
    "actual_version",
)

_CALL: Final = (
    "eventstore.append(%s, %s::text[], %s::bigint[], %s::integer[], %s::text[],"
    " %s::smallint[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::timestamptz[],"
    " %s, %s, %s, %s, %s, %s, %s, %s)"
)

_APPEND: Final = f"SELECT {', '.join(_RESULT)} FROM {_CALL}"  # noqa: S608

_APPEND_IN_VIEW: Final = (
    f"SELECT {', '.join(f'(answer).{name}' for name in _RESULT)} FROM"  # noqa: S608
    f" (SELECT CASE WHEN {IN_VIEW} THEN {_CALL} END AS answer OFFSET 0) AS decided"
)

_INSERTED: Final = 3  # columns that _INSERT_EVENT returns


def append(request: AppendRequest, *, joined: bool = False) -> Statement:
    """Returns the statement that performs an append.

    Raises:
        EventRefusedError: A payload or metadata is not UTF-8 text.
    """
    try:
        return _append(request, joined=joined)
    except UnicodeDecodeError as error:
        raise EventRefusedError(
            "a payload or metadata is not UTF-8", detail=f"byte {error.start}"
        ) from None


def plain(asked: Statement) -> bool:
    """Returns whether an append uses the plain INSERT."""
    return asked.sql is _INSERT_EVENT


def _append(request: AppendRequest, *, joined: bool) -> Statement:
    """See `append`.

    Args:
        request: The append.
        joined: Whether it joins the caller's transaction. A refusal must leave that usable, so the
            append calls a function, which never raises a constraint violation.
    """
    if len(request.appends) > 1 or request.idempotency or request.condition or request.outbox:
        return _append_anything(request)
    (only,) = request.appends
    if len(only.events) > 1:
        return _append_events(request, only)
    (event,) = only.events
    if event.tags:
        return _append_anything(request)
    values = {
        "tenant": request.tenant,
        "stream": only.stream,
        "expected": only.expected_version,
        "type": event.type,
        "schema_version": event.schema_version,
        "event_id": event.event_id,
        "data": event.data.decode(),
        "metadata": None if event.metadata is None else event.metadata.decode(),
        "occurred_at": event.occurred_at,
        "correlation_id": request.correlation_id,
        "causation_id": request.causation_id,
        "actor": request.actor,
    }
    exact = only.expected_version >= NO_STREAM
    return Statement(_INSERT_EVENT if exact and not joined else _APPEND_EVENT, values)


def _append_events(request: AppendRequest, only: StreamAppend) -> Statement:
    if any(event.tags for event in only.events):
        return _append_anything(request)
    place = (request.tenant, only.stream, only.expected_version)
    context = (request.correlation_id, request.causation_id, request.actor)
    return Statement(_APPEND_EVENTS, (*place, *_columns(only.events), *context))


def _append_anything(request: AppendRequest) -> Statement:
    events = [event for append in request.appends for event in append.events]
    types, versions, ids, data, metadata, times = _columns(events)
    key, condition = request.idempotency, request.condition
    return Statement(
        _APPEND_IN_VIEW if condition else _APPEND,
        (
            request.tenant,
            [append.stream for append in request.appends],
            [append.expected_version for append in request.appends],
            [len(append.events) for append in request.appends],
            types,
            versions,
            ids,
            data,
            metadata,
            _array([_array(event.tags) if event.tags else None for event in events]),
            times,
            request.correlation_id,
            request.causation_id,
            request.actor,
            key.key if key else None,
            key.digest if key else None,
            query_items(condition.query.items) if condition else None,
            condition.after if condition else None,
            _messages(request.outbox),
        ),
    )


def _columns(events: Sequence[NewEvent]) -> tuple[str, str, str, str, str, str]:
    return (
        _array([event.type for event in events]),
        "{" + ",".join([str(event.schema_version) for event in events]) + "}",
        "{" + ",".join([event.event_id.hex for event in events]) + "}",
        _array([event.data.decode() for event in events]),
        _array([None if e.metadata is None else e.metadata.decode() for e in events]),
        "{" + ",".join([in_utc(event.occurred_at).isoformat() for event in events]) + "}",
    )


def _array(values: Iterable[str | None]) -> str:
    # An array in Postgres' text format: psycopg's generic adaptation takes five times as long.
    return (
        "{"
        + ",".join(
            [
                "NULL"
                if value is None
                else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
                for value in values
            ]
        )
        + "}"
    )


def _messages(outbox: Sequence[IntegrationEvent]) -> str | None:
    if not outbox:
        return None
    said = [
        {
            "message_id": str(message.message_id),
            "topic": message.topic or message.stream.partition("-")[0],
            "stream": message.stream,
            "type": message.type,
            "version": message.version,
            "payload": message.payload.decode(),
        }
        for message in outbox
    ]
    return orjson.dumps(said).decode()


def appended(request: AppendRequest, row: Sequence[Any]) -> Appended:
    """Interprets the row that an append returned.

    Raises:
        WrongExpectedVersionError: A stream is at another version.
        IdempotencyConflictError: The key was used for another payload.
        ConditionFailedError: An event matches the condition.
        IsolationRefusedError: The transaction might not see such an event.
    """
    if len(row) == _INSERTED:
        position, transaction, _ = row
        return Appended((request.appends[0].expected_version + 1,), Token(position, transaction))
    if len(row) > 1:
        return _appended_anything(request, row)
    answer: list[int] = row[0]
    if answer[0] == 0:
        raise wrong_version(request, answer[1])
    return Appended((answer[1],), Token(answer[0], answer[2]))


def _appended_anything(request: AppendRequest, row: Sequence[Any]) -> Appended:
    outcome, versions, position, transaction, number, actual = row
    if outcome is None:
        raise out_of_view()
    if outcome == "wrong_version":
        raise wrong_version(request, actual, number - 1)
    if outcome == "condition_failed":
        raise ConditionFailedError(
            "an event was added that the decision did not read",
            detail=f"after global position {request.condition.after if request.condition else 0}",
            hint="read the boundary again, decide again, append with its condition",
        )
    if outcome == "key_conflict":
        raise IdempotencyConflictError(
            "the idempotency key was used for another payload",
            detail=f"at global position {position}",
            hint="use a new key for a new command",
        )
    return Appended(tuple(versions), Token(position, transaction), outcome == "repeated")


def wrong_version(
    request: AppendRequest, actual: int, number: int = 0
) -> WrongExpectedVersionError:
    """Returns the error for the stream of a request that is at `actual`."""
    append = request.appends[number]
    return WrongExpectedVersionError(append.stream, expected=append.expected_version, actual=actual)


def repeated(request: AppendRequest, found: Sequence[StoredEvent]) -> Appended | None:
    """Returns the first result of an append whose events are already stored, None if none is.

    In the result, a stream without events has version 0.

    Raises:
        IdempotencyConflictError: An id is stored with other content, or only some ids are stored.
    """
    stored = {event.event_id: event for event in found}
    wanted = [(append.stream, event) for append in request.appends for event in append.events]
    if not stored:
        return None
    for stream, event in wanted:
        there = stored.get(event.event_id)
        same = there is not None and (
            (there.stream, there.type, there.schema_version, there.data)
            == (stream, event.type, event.schema_version, event.data)
        )
        if not same:
            raise IdempotencyConflictError(
                "an event with this id is already stored, with other content",
                detail=f"event id {event.event_id}",
                hint="give each event its own id",
            )
    versions = tuple(
        max((stored[event.event_id].stream_position for event in append.events), default=0)
        for append in request.appends
    )
    return Appended(versions, Token(max(e.global_position for e in found)), repeated=True)
