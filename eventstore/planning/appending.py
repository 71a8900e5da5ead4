"""Appending: the plan by which events, typed or not, are appended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from eventstore.deciding.context import NO_CONTEXT, Context, occurrences
from eventstore.errors import (
    BatchRefusedError,
    ContentionError,
    IdempotencyConflictError,
    WrongExpectedVersionError,
    WrongKindError,
)
from eventstore.model.callables import check_kind
from eventstore.model.event import (
    AppendRequest,
    Idempotency,
    IntegrationEvent,
    StreamAppend,
    digest_of,
)
from eventstore.model.expected_version import ANY, accepts, check_expected_version
from eventstore.model.names import check_stream
from eventstore.planning.idempotency import check_same, significant
from eventstore.planning.operation import pause_after
from eventstore.serialization.registry import EventData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.deciding.context import Occurrence
    from eventstore.model.event import Appended, NewEvent
    from eventstore.model.query import Condition
    from eventstore.planning.operation import Access, Plan
    from eventstore.serialization.codec import Codec

ATTEMPTS_MAX: Final = 20
"""Of an append with personal fields to a stream that others append to."""

Wanted = list[tuple[str, list["Occurrence"], int]]
"""Stream, events and expected version of each append."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What an append says besides its events.

    Attributes:
        idempotency_key: Makes it happen once.
        condition: Refuses it if the decision is out of date.
        outbox: Sent with it.
        context: Stored beside the events.

    Raises:
        WrongKindError: The outbox is no collection, or the context is of another kind.
    """

    idempotency_key: str | None = None
    condition: Condition | None = None
    outbox: Sequence[IntegrationEvent] = ()
    context: Context = NO_CONTEXT

    def __post_init__(self) -> None:
        check_kind("the context", self.context, Context, "such as Context(actor=...)")
        given: object = self.outbox
        if given.__class__ is tuple:
            return
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise WrongKindError(
                "the outbox of an append must be a collection of messages",
                detail=f"an object of {type(given).__qualname__}",
                hint="also for one message: outbox=[message]",
            )
        # an append is repeated, and a generator's messages would be gone after the first attempt
        object.__setattr__(self, "outbox", tuple(given))


def wanted_of(appends: Any) -> Wanted:
    """Returns what a caller wants appended to several streams.

    Args:
        appends: A mapping from stream to events; or stream, events and expected version of each.

    Raises:
        BatchRefusedError: It is neither.
    """
    if isinstance(appends, Mapping):
        return [(stream, occurrences(events), ANY) for stream, events in appends.items()]
    try:
        return [
            (stream, occurrences(events), check_expected_version(expected))
            for stream, events, expected in appends
        ]
    except (TypeError, ValueError):
        raise BatchRefusedError(
            "an append to several streams takes a mapping from stream to events, or a list "
            "of (stream, events, expected version)"
        ) from None


def appending(access: Access, wanted: Wanted, terms: Terms) -> Plan[Appended]:
    """Appends events.

    Personal fields are bound to their place. So where the caller does not say which place that is,
    it is read, and read again if another writer took it.

    Raises:
        EventStoreError: See `EventStore.append`.
    """
    bound = [any(access.codec.needs_position(o.event) for o in events) for _, events, _ in wanted]
    for attempt in range(1, ATTEMPTS_MAX + 1):
        placed = list(wanted)
        for number, (stream, events, expected) in enumerate(wanted):
            if bound[number] and expected < 0:
                version = yield access.version(check_stream(stream))
                placed[number] = (stream, events, version)
        request = request_of(access, placed, terms)
        earlier = digest_of(request) if terms.idempotency_key is not None else b""
        if terms.idempotency_key is not None:
            digest = digest_of(_significant(access, request, placed))
            request = replace(request, idempotency=Idempotency(terms.idempotency_key, digest))
        absent = [
            stream
            for (stream, _, expected), (_, _, version) in zip(wanted, placed, strict=True)
            if expected != version and not accepts(expected, version)
        ]
        if absent:
            return (yield from _refused(access, request, absent[0], wanted, earlier))
        try:
            return (yield from _appended(access, request, earlier))
        except WrongExpectedVersionError as error:
            expected = next(e for stream, _, e in wanted if stream == error.stream)
            if expected == error.expected:
                raise
            stopped = attempt == ATTEMPTS_MAX or (yield pause_after(attempt))
            if stopped:
                raise ContentionError(
                    "an append with personal fields lost repeatedly to concurrent writers",
                    detail=f"{attempt} attempts",
                    hint="pass an exact expected version, or append again",
                ) from error
    raise AssertionError


def _appended(access: Access, request: AppendRequest, earlier: bytes) -> Plan[Appended]:
    """Appends, or answers what was done under a key that an earlier version stored.

    Every field counted for its digest then.
    """
    key = request.idempotency
    try:
        answer: Appended = yield access.append(request)
    except IdempotencyConflictError:
        known = None if key is None else (yield access.result_of(key.key))
        if known is None or known.digest != earlier:
            raise
        answer = known.appended
    return answer


def _significant(access: Access, request: AppendRequest, placed: Wanted) -> AppendRequest:
    """The same append, with what counts of each event; events with personal fields have it."""
    return replace(
        request,
        appends=tuple(
            replace(
                append,
                events=tuple(
                    new
                    if _whole(access, given.event)
                    else replace(new, digest=significant(given.event))
                    for new, given in zip(append.events, given_events, strict=True)
                ),
            )
            for append, (_, given_events, _) in zip(request.appends, placed, strict=True)
        ),
    )


def _whole(access: Access, event: object) -> bool:
    return isinstance(event, EventData) or access.codec.needs_position(event)


def _refused(
    access: Access, request: AppendRequest, stream: str, wanted: Wanted, earlier: bytes
) -> Plan[Appended]:
    """The answer to an append to a stream that should exist and does not; a key answers first."""
    key = request.idempotency
    known = None if key is None else (yield access.result_of(key.key))
    if key is not None and known is not None:
        check_same(known, key.digest, (earlier,))
        first: Appended = known.appended
        return first
    expected = next(expected for name, _, expected in wanted if name == stream)
    raise WrongExpectedVersionError(stream, expected=expected, actual=0)


def request_of(
    access: Access, appends: Wanted, terms: Terms, key: Idempotency | None = None
) -> AppendRequest:
    """Returns the append of typed events, encoded.

    Events of a public type are sent to others as well, as they are stored: sealed fields stay so.

    Raises:
        EventRefusedError: An event would not read back unchanged.
        UndeclaredError: An event is of no declared type.
        BatchRefusedError: The append contradicts itself.
    """
    context = terms.context
    encoded = tuple(
        StreamAppend(stream, _encoded(access, stream, events, expected, context), expected)
        for stream, events, expected in appends
    )
    messages = [
        _message(append.stream, event)
        for append in encoded
        for event in append.events
        if _public(access.codec, event)
    ]
    return AppendRequest(
        encoded,
        access.tenant,
        key,
        terms.condition,
        (*terms.outbox, *messages),
        context.correlation_id,
        context.causation_id,
        context.actor,
    )


def _encoded(
    access: Access, stream: str, events: list[Occurrence], expected: int, context: Context
) -> tuple[NewEvent, ...]:
    encode = access.codec.encode
    return tuple(
        encode(
            occurrence.event,
            tenant=access.tenant,
            stream=stream,
            stream_position=expected + place if expected >= 0 else None,
            event_id=occurrence.event_id,
            occurred_at=occurrence.occurred_at or context.occurred_at,
            tags=occurrence.tags,
        )
        for place, occurrence in enumerate(events, 1)
    )


def _public(codec: Codec, event: NewEvent) -> bool:
    return event.type in codec.types and codec.types.named(event.type).public


def _message(stream: str, event: NewEvent) -> IntegrationEvent:
    return IntegrationEvent(
        event.type, event.data, stream, event.event_id, version=event.schema_version
    )
