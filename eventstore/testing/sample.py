"""Sample events and appends, with only that said which a test is about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from eventstore.log import WHOLE_LOG, WHOLE_STREAM
from eventstore.model.event import AppendRequest, NewEvent, StreamAppend
from eventstore.model.expected_version import ANY
from eventstore.model.names import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventstore.log import EventLog, LogPart, StreamPart
    from eventstore.model.event import StoredEvent

OCCURRED_AT: Final = datetime(2026, 1, 31, 23, 59, 59, 123456, tzinfo=UTC)


def an_event(type_: str = "order.placed", data: bytes = b'{"total":1}', **fields: Any) -> NewEvent:
    """Returns an event with a new id.

    Args:
        type_: Name of its type.
        data: Its payload.
        **fields: Other fields of `NewEvent`.
    """
    return NewEvent(type_, data, **{"event_id": uuid4(), "occurred_at": OCCURRED_AT, **fields})


def some_events(count: int, **fields: Any) -> tuple[NewEvent, ...]:
    """Returns events with payloads that tell them apart."""
    return tuple(an_event(data=b'{"number":%d}' % number, **fields) for number in range(count))


def append_to(
    stream: str, *events: NewEvent, expected_version: int = ANY, **fields: Any
) -> AppendRequest:
    """Returns an append to one stream; of one sample event if none is given.

    Args:
        stream: Which.
        *events: What to append.
        expected_version: See `eventstore.model.expected_version`.
        **fields: Other fields of `AppendRequest`.
    """
    append = StreamAppend(stream, events or (an_event(),), expected_version)
    return AppendRequest((append,), **fields)


def append_to_all(*appends: StreamAppend, **fields: Any) -> AppendRequest:
    """Returns an append to several streams."""
    return AppendRequest(appends, **fields)


def stream_of(
    log: EventLog, stream: str, part: StreamPart = WHOLE_STREAM, *, tenant: str = DEFAULT_TENANT
) -> list[StoredEvent]:
    """Reads a stream into a list."""
    return list(log.read_stream(tenant, stream, part))


def log_of(
    log: EventLog, part: LogPart = WHOLE_LOG, *, tenant: str | None = None
) -> list[StoredEvent]:
    """Reads the log into a list; of all tenants, if none is named."""
    return list(log.read_log(tenant, part))


def places(events: Iterable[StoredEvent]) -> list[tuple[str, int]]:
    """Returns where events are: stream and position in it."""
    return [(event.stream, event.stream_position) for event in events]


def payloads(events: Iterable[StoredEvent]) -> list[bytes]:
    """Returns the payloads of events."""
    return [event.data for event in events]
