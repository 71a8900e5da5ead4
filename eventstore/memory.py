"""The event log in memory, for tests and trials.

It keeps every promise of `eventstore.log` but durability, and refuses what Postgres refuses. What
it says of itself is proved by the same contract suite.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import islice, takewhile
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from eventstore.errors import (
    BatchRefusedError,
    CompactionError,
    ConditionFailedError,
    EventRefusedError,
    IdempotencyConflictError,
    NameRefusedError,
    WrongExpectedVersionError,
)
from eventstore.log import WHOLE_LOG, WHOLE_STREAM, Boundary, LogPart, Repeated, StreamPart
from eventstore.model.event import (
    SNAPSHOT_TYPE,
    Appended,
    AppendRequest,
    NewEvent,
    StoredEvent,
    in_utc,
)
from eventstore.model.expected_version import accepts
from eventstore.model.query import Condition, Query
from eventstore.model.token import Token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from uuid import UUID

    from eventstore.log import StateSnapshot
    from eventstore.model.event import IntegrationEvent


class SentMessage(NamedTuple):
    """An integration event that an append has sent.

    Attributes:
        tenant: Whose append it was.
        message: What was sent.
        correlation_id: Of the append.
    """

    tenant: str
    message: IntegrationEvent
    correlation_id: str | None


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryEventLog:
    """An `EventLog` that exists only in its process.

    There are no transactions in memory that an append could join: `connection` must be None.

    Args:
        clock: Returns the recording time of events; a test may set it back.
    """

    def __init__(self, *, clock: Callable[[], datetime] = _now) -> None:
        self._clock = clock
        self._lock = Lock()  # one at a time: every method sees, and leaves, a whole append
        self._log: list[StoredEvent] = []  # global position n lies at n - 1
        self._streams: dict[tuple[str, str], list[StoredEvent]] = {}
        self._folded: dict[tuple[str, str], StoredEvent] = {}  # what stands for a prefix
        self._by_id: dict[tuple[str, UUID], StoredEvent] = {}
        self._by_key: dict[tuple[str, str], Repeated] = {}
        self._snapshots: dict[tuple[str, str, str], StateSnapshot] = {}
        self._sent: list[SentMessage] = []

    @property
    def sent(self) -> tuple[SentMessage, ...]:
        """The integration events sent so far, oldest first."""
        with self._lock:
            return tuple(self._sent)

    def append(self, request: AppendRequest, *, connection: Any = None) -> Appended:
        """See `EventLog.append`."""
        _refuse_transaction(connection)
        _check_events(request)
        with self._lock:
            done = self._known_key(request) or self._known_events(request)
            if done is not None:
                return done
            self._check_condition(request)
            self._check_versions(request)
            return self._store(request)

    def _known_key(self, request: AppendRequest) -> Appended | None:
        if request.idempotency is None:
            return None
        known = self._by_key.get((request.tenant, request.idempotency.key))
        if known is not None and known.digest != request.idempotency.digest:
            raise IdempotencyConflictError(
                "the idempotency key was used for another payload",
                detail=f"at global position {known.appended.token.global_position}",
                hint="use a new key for a new command",
            )
        return None if known is None else known.appended

    def _known_events(self, request: AppendRequest) -> Appended | None:
        """The first result, if these very events are stored already."""
        wanted = [(append.stream, event) for append in request.appends for event in append.events]
        found = [self._by_id.get((request.tenant, event.event_id)) for _, event in wanted]
        stored = [event for event in found if event is not None]
        if not stored:
            return None
        for (stream, event), there in zip(wanted, found, strict=True):
            if there is None or not _same(stream, event, there):
                raise IdempotencyConflictError(
                    "an event with this id is already stored, with other content",
                    detail=f"event id {event.event_id}",
                    hint="give each event its own id",
                )
        last = max(event.global_position for event in stored)
        versions = (self._version_at(request.tenant, a.stream, last) for a in request.appends)
        return Appended(tuple(versions), Token(last), repeated=True)

    def _version_at(self, tenant: str, stream: str, position: int) -> int:
        events = self._streams.get((tenant, stream), ())
        return sum(event.global_position <= position for event in events)

    def _check_condition(self, request: AppendRequest) -> None:
        condition = request.condition
        if condition is None:
            return
        later = _matching(self._log[condition.after :], request.tenant, condition.query)
        if next(later, None) is not None:
            raise ConditionFailedError(
                "an event was added that the decision did not read",
                detail=f"after global position {condition.after}",
                hint="read the boundary again, decide again, append with its condition",
            )

    def _check_versions(self, request: AppendRequest) -> None:
        for append in request.appends:
            actual = self._version(request.tenant, append.stream)
            if not accepts(append.expected_version, actual):
                raise WrongExpectedVersionError(
                    append.stream, expected=append.expected_version, actual=actual
                )

    def _store(self, request: AppendRequest) -> Appended:
        # Everything that can be refused was: from here on nothing fails half way.
        recorded_at = self._clock()
        for append in request.appends:
            stream = self._streams.setdefault((request.tenant, append.stream), [])
            for event in append.events:
                place = (len(self._log) + 1, request.tenant, append.stream, len(stream) + 1)
                stored = _stored(place, event, request, recorded_at)
                self._log.append(stored)
                stream.append(stored)
                self._by_id[request.tenant, event.event_id] = stored
        self._sent += [
            SentMessage(request.tenant, message, request.correlation_id)
            for message in request.outbox
        ]
        versions = tuple(self._version(request.tenant, append.stream) for append in request.appends)
        appended = Appended(versions, Token(len(self._log)))
        if request.idempotency is not None:
            key, digest = request.idempotency.key, request.idempotency.digest
            first = Appended(versions, appended.token, repeated=True)
            self._by_key[request.tenant, key] = Repeated(digest, first)
        return appended

    def read_stream(
        self,
        tenant: str,
        stream: str,
        part: StreamPart = WHOLE_STREAM,
        *,
        connection: Any = None,
    ) -> Iterator[StoredEvent]:
        """See `EventLog.read_stream`."""
        _refuse_transaction(connection)
        with self._lock:
            events = list(self._streams.get((tenant, stream), ()))
            folded = self._folded.get((tenant, stream))
        if part.as_of is not None:
            # Up to the first event recorded later: a clock that was set back makes no hole.
            instant = part.as_of
            events = list(takewhile(lambda event: event.recorded_at <= instant, events))
        elif folded is not None and not part.archived:
            events = [folded, *events[folded.stream_position :]]
        wanted = [
            event
            for event in events
            if event.stream_position > part.after
            and (part.through is None or event.stream_position <= part.through)
        ]
        return _directed(wanted, backwards=part.backwards, limit=part.limit)

    def read_log(self, tenant: str | None, part: LogPart = WHOLE_LOG) -> Iterator[StoredEvent]:
        """See `EventLog.read_log`."""
        with self._lock:
            # What this slice holds is never changed, so the rest needs no lock.
            through = len(self._log) if part.through is None else max(part.through, 0)
            events = self._log[max(part.after, 0) : through]
        if part.backwards:
            events.reverse()
        return islice(_matching(events, tenant, part.query), part.limit)

    def high_water_mark(self) -> int:
        """See `EventLog.high_water_mark`."""
        with self._lock:
            return len(self._log)

    def head(self) -> int:
        """Returns the last assigned global position."""
        return self.high_water_mark()

    def stream_version(self, tenant: str, stream: str, *, connection: Any = None) -> int:
        """See `EventLog.stream_version`."""
        _refuse_transaction(connection)
        with self._lock:
            return self._version(tenant, stream)

    def _version(self, tenant: str, stream: str) -> int:
        return len(self._streams.get((tenant, stream), ()))

    def result_of(self, tenant: str, key: str, *, connection: Any = None) -> Repeated | None:
        """See `EventLog.result_of`."""
        _refuse_transaction(connection)
        with self._lock:
            return self._by_key.get((tenant, key))

    def read_boundary(self, tenant: str, query: Query, *, connection: Any = None) -> Boundary:
        """See `EventLog.read_boundary`."""
        _refuse_transaction(connection)
        Condition(query, after=0)  # refuses what no condition could hold
        with self._lock:
            events = list(_matching(self._log, tenant, query))
        return Boundary(events, events[-1].global_position if events else 0)

    def snapshot(
        self, tenant: str, stream: str, fold: str, *, through: int | None = None
    ) -> StateSnapshot | None:
        """See `EventLog.snapshot`."""
        with self._lock:
            saved = self._snapshots.get((tenant, stream, fold))
        beyond = saved and through is not None and saved.stream_position > through
        return None if beyond else saved

    def save_snapshot(self, tenant: str, snapshot: StateSnapshot) -> None:
        """See `EventLog.save_snapshot`; an older state never replaces a newer one."""
        place = (tenant, snapshot.stream, snapshot.fold)
        with self._lock:
            saved = self._snapshots.get(place)
            if saved is None or saved.stream_position <= snapshot.stream_position:
                self._snapshots[place] = snapshot

    def close(self) -> None:
        """See `EventLog.close`; it closes nothing."""

    def _replace_prefix(
        self, tenant: str, stream: str, through: int, snapshot_event: NewEvent
    ) -> StoredEvent:
        """Lets one event stand for a stream's beginning, for those who fold it.

        The originals stay: readers of the log, of an instant and of the archive see them.

        Raises:
            CompactionError: The stream is shorter, or compacted as far already.
        """
        with self._lock:
            events = self._streams.get((tenant, stream), [])
            before = self._folded.get((tenant, stream))
            done = before.stream_position if before else 0
            if not done < through <= len(events):
                raise CompactionError(
                    f"stream {stream} cannot be compacted through {through}",
                    detail=f"it is at {len(events)}, and compacted through {done}",
                )
            last = events[through - 1]
            folded = StoredEvent(
                last.global_position,
                tenant,
                stream,
                through,
                SNAPSHOT_TYPE,
                snapshot_event.schema_version,
                snapshot_event.event_id,
                bytes(snapshot_event.data),
                snapshot_event.metadata,
                snapshot_event.tags or None,
                None,
                None,
                None,
                in_utc(snapshot_event.occurred_at),
                self._clock(),
            )
            self._folded[tenant, stream] = folded
            return folded


class AsyncMemoryEventLog:
    """An `AsyncEventLog` in memory.

    Args:
        log: The log to use, which threads may share; default: a new one.
    """

    def __init__(self, log: MemoryEventLog | None = None) -> None:
        self.log = log or MemoryEventLog()

    async def append(self, request: AppendRequest, *, connection: Any = None) -> Appended:
        """See `EventLog.append`."""
        return self.log.append(request, connection=connection)

    async def read_stream(
        self,
        tenant: str,
        stream: str,
        part: StreamPart = WHOLE_STREAM,
        *,
        connection: Any = None,
    ) -> AsyncIterator[StoredEvent]:
        """See `EventLog.read_stream`."""
        for event in self.log.read_stream(tenant, stream, part, connection=connection):
            yield event

    async def read_log(
        self, tenant: str | None, part: LogPart = WHOLE_LOG
    ) -> AsyncIterator[StoredEvent]:
        """See `EventLog.read_log`."""
        for event in self.log.read_log(tenant, part):
            yield event

    async def high_water_mark(self) -> int:
        """See `EventLog.high_water_mark`."""
        return self.log.high_water_mark()

    async def head(self) -> int:
        """Returns the last assigned global position."""
        return self.log.head()

    async def stream_version(self, tenant: str, stream: str, *, connection: Any = None) -> int:
        """See `EventLog.stream_version`."""
        return self.log.stream_version(tenant, stream, connection=connection)

    async def result_of(self, tenant: str, key: str, *, connection: Any = None) -> Repeated | None:
        """See `EventLog.result_of`."""
        return self.log.result_of(tenant, key, connection=connection)

    async def read_boundary(self, tenant: str, query: Query, *, connection: Any = None) -> Boundary:
        """See `EventLog.read_boundary`."""
        return self.log.read_boundary(tenant, query, connection=connection)

    async def snapshot(
        self, tenant: str, stream: str, fold: str, *, through: int | None = None
    ) -> StateSnapshot | None:
        """See `EventLog.snapshot`."""
        return self.log.snapshot(tenant, stream, fold, through=through)

    async def save_snapshot(self, tenant: str, snapshot: StateSnapshot) -> None:
        """See `EventLog.save_snapshot`."""
        self.log.save_snapshot(tenant, snapshot)

    async def close(self) -> None:
        """See `EventLog.close`."""
        self.log.close()


def _refuse_transaction(connection: Any) -> None:
    if connection is not None:
        raise BatchRefusedError(
            "the event log in memory has no transactions to join",
            detail=f"{type(connection).__module__}.{type(connection).__qualname__}",
            hint="omit connection, or use a log on Postgres",
        )


def _check_events(request: AppendRequest) -> None:
    ids: set[UUID] = set()
    for append in request.appends:
        for event in append.events:
            _check_event(event)
            if event.event_id in ids:
                raise BatchRefusedError(
                    "an append has two events with one id", detail=f"event id {event.event_id}"
                )
            ids.add(event.event_id)


def _check_event(event: NewEvent) -> None:
    if event.type == SNAPSHOT_TYPE:
        raise NameRefusedError(
            "event types that start with $ are reserved for the store", detail=event.type
        )
    _check_json(event.type, event.data)
    if event.metadata is not None:
        _check_json(event.type, event.metadata)
    try:
        event.occurred_at.astimezone(UTC)
    except OverflowError:
        raise EventRefusedError(
            f"event {event.type} has a time that does not exist in UTC", detail="occurred_at"
        ) from None


def _check_json(type_: str, text: bytes) -> None:
    try:
        # numbers stay text: only the form is looked at, as Postgres does
        json.loads(text.decode(), parse_int=str, parse_float=str, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise EventRefusedError(
            f"the payload or metadata of event {type_} is not JSON",
            detail=type(error).__name__,
        ) from None


def _no_number(name: str) -> None:
    raise ValueError(name)  # NaN and the infinities, which Python would read


def _same(stream: str, event: NewEvent, there: StoredEvent) -> bool:
    return (stream, event.type, event.schema_version, event.data) == (
        there.stream,
        there.type,
        there.schema_version,
        there.data,
    )


def _stored(
    place: tuple[int, str, str, int], event: NewEvent, request: AppendRequest, recorded_at: datetime
) -> StoredEvent:
    return StoredEvent(
        *place,
        event.type,
        event.schema_version,
        event.event_id,
        bytes(event.data),
        None if event.metadata is None else bytes(event.metadata),
        event.tags or None,
        request.correlation_id,
        request.causation_id,
        request.actor,
        in_utc(event.occurred_at),
        recorded_at,
    )


def _matching(
    events: Iterable[StoredEvent], tenant: str | None, query: Query
) -> Iterator[StoredEvent]:
    for event in events:
        mine = tenant is None or event.tenant == tenant
        if mine and query.matches(event.category, event.type, frozenset(event.tags or ())):
            yield event


def _directed(
    events: list[StoredEvent], *, backwards: bool, limit: int | None
) -> Iterator[StoredEvent]:
    return islice(reversed(events) if backwards else iter(events), limit)
