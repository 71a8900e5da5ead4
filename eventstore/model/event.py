"""Events before and after they are appended, and what an append asks for and answers.

This is the level of the log: payloads are bytes of JSON here. Applications write and read typed
events through `eventstore.store.EventStore`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from eventstore.errors import BatchRefusedError, EventRefusedError, NameRefusedError
from eventstore.model.callables import check_kind
from eventstore.model.expected_version import ANY, check_expected_version
from eventstore.model.names import (
    DEFAULT_TENANT,
    SYSTEM_PREFIX,
    category_of,
    check_key,
    check_label,
    check_stream,
    check_tag,
    check_tenant,
    check_type,
)
from eventstore.model.query import Condition

if TYPE_CHECKING:
    from eventstore.model.token import Token

EVENTS_MAX: Final = 10_000
"""Of one append: more would hold its locks, and readers of the log, for too long."""

EVENT_BYTES_MAX: Final = 1024 * 1024
"""Of one payload. An event is a fact, not a file; the broker's record limit is above this."""

APPEND_BYTES_MAX: Final = 64 * 1024 * 1024

STREAMS_MAX: Final = 100
"""Of one append: each is a lock for its duration."""

TAGS_MAX: Final = 20

DIGEST_BYTES: Final = 32

_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")

SNAPSHOT_TYPE: Final = "$snapshot"
"""Type of the event that stands for a compacted stream's prefix."""


class StoredEvent(NamedTuple):
    """An event as the log holds it.

    It is a tuple because a catch-up read creates millions of them.

    Attributes:
        global_position: Position in the whole log; ascending, with gaps.
        tenant: Its tenant.
        stream: Name of its stream.
        stream_position: Position in its stream, from 1, without gaps.
        type: Name of its type.
        schema_version: Version of its type for `data`.
        event_id: Identity, given by the writer.
        data: Payload, JSON.
        metadata: Further headers, JSON; None if there are none.
        tags: Its subjects, for queries across streams.
        correlation_id: The business flow.
        causation_id: The message that caused it.
        actor: Who caused it.
        occurred_at: When it happened, by the writer's clock; with offset.
        recorded_at: When it was stored, by the database's clock; with offset.
    """

    global_position: int
    tenant: str
    stream: str
    stream_position: int
    type: str
    schema_version: int
    event_id: UUID
    data: bytes
    metadata: bytes | None
    tags: tuple[str, ...] | list[str] | None
    correlation_id: str | None
    causation_id: str | None
    actor: str | None
    occurred_at: datetime
    recorded_at: datetime

    @property
    def category(self) -> str:
        """The category of its stream."""
        return category_of(self.stream)

    @property
    def system(self) -> bool:
        """Returns whether the store itself wrote it."""
        return self.type.startswith(SYSTEM_PREFIX)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to append.

    Attributes:
        type: Name of its type.
        data: Payload, JSON.
        event_id: Identity; unique in the store.
        occurred_at: When it happened; must have an offset.
        schema_version: Version of the type for `data`.
        tags: Its subjects.
        metadata: Further headers, JSON.
        digest: Its payload for comparison under an idempotency key; empty for `data` itself. Needed
            if `data` is encrypted, and therefore different each time.
    """

    type: str
    data: bytes
    event_id: UUID
    occurred_at: datetime
    schema_version: int = 1
    tags: tuple[str, ...] = ()
    metadata: bytes | None = None
    digest: bytes = b""

    def __post_init__(self) -> None:
        if self.type != SNAPSHOT_TYPE and self.type not in _known_types:
            _known_types.add(check_type(self.type))
        if self.occurred_at.tzinfo is not UTC:
            _check_time(self.type, self.occurred_at)
        if self.event_id.__class__ is not UUID:
            check_kind(f"the id of event {self.type}", self.event_id, UUID, "such as uuid4()")
        if type(self.schema_version) is not int or not 1 <= self.schema_version < 2**15:
            raise EventRefusedError(
                f"event {self.type} has no such schema version",
                detail=f"{self.schema_version!r:.80}",
                hint="versions start at 1",
            )
        if len(self.data) > EVENT_BYTES_MAX:
            raise EventRefusedError(
                f"event {self.type} is larger than {EVENT_BYTES_MAX:,} bytes",
                detail=f"{len(self.data):,} bytes",
                hint="store the file elsewhere and its address and digest in the event",
            )
        if self.tags:
            _check_tags(self.type, self.tags)


_known_types: set[str] = set()  # a program has few; each is looked over once


def _check_time(type_: str, occurred_at: datetime) -> None:
    try:
        if occurred_at.utcoffset() is not None:
            occurred_at.astimezone(UTC)
            return
    except OverflowError:
        raise EventRefusedError(
            f"event {type_} has a time outside the years 1 to 9999 in UTC", detail="occurred_at"
        ) from None
    raise EventRefusedError(
        f"event {type_} has a time without a UTC offset",
        detail="occurred_at",
        hint="datetime.now(UTC)",
    )


def _check_tags(type_: str, tags: tuple[str, ...]) -> None:
    for tag in tags:
        check_tag(tag)
    if len(tags) > TAGS_MAX or len(set(tags)) < len(tags):
        raise EventRefusedError(
            f"event {type_} has more than {TAGS_MAX} tags, or a duplicate tag",
            detail=f"{len(tags)} tags",
        )


@dataclass(frozen=True, slots=True)
class StreamAppend:
    """Events for one stream.

    Attributes:
        stream: Name of the stream.
        events: At least one.
        expected_version: See `eventstore.model.expected_version`.
    """

    stream: str
    events: tuple[NewEvent, ...]
    expected_version: int = ANY

    def __post_init__(self) -> None:
        check_stream(self.stream)
        check_expected_version(self.expected_version)
        for event in self.events:
            if event.type == SNAPSHOT_TYPE:
                raise NameRefusedError(
                    "types that start with $ are reserved for the store",
                    detail=SNAPSHOT_TYPE,
                    hint="use another name; only compaction writes such events",
                )


@dataclass(frozen=True, slots=True)
class Idempotency:
    """Makes an append happen once, however often it is sent.

    Attributes:
        key: The caller's name for what it wants done.
        digest: 32 bytes that say what that is. The same key with another digest is a conflict.
    """

    key: str
    digest: bytes

    def __post_init__(self) -> None:
        check_key(self.key)
        if len(self.digest) != DIGEST_BYTES:
            raise BatchRefusedError(
                f"the digest of an idempotency key has {DIGEST_BYTES} bytes",
                detail=f"{len(self.digest)} bytes",
                hint="hashlib.sha256(...).digest()",
            )


@dataclass(frozen=True, slots=True)
class IntegrationEvent:
    """A public event for other applications, sent through the transactional outbox.

    Attributes:
        type: Its public name.
        payload: JSON.
        stream: Key of the message; messages of one stream stay in order.
        version: Version of the public contract.
        message_id: Identity of the message, by which receivers skip duplicates.
        topic: Part of the topic's name; the category of `stream` if empty.
    """

    type: str
    payload: bytes
    stream: str
    message_id: UUID
    version: int = 1
    topic: str = ""

    def __post_init__(self) -> None:
        check_type(self.type)
        check_stream(self.stream)
        topic = self.topic or category_of(self.stream)
        if type(topic) is not str or not _TOPIC.fullmatch(topic):
            raise NameRefusedError(
                "a topic name has at most 128 letters, digits, '_' and '-'",
                detail=f"{topic!r:.160}",
                hint="the name becomes part of a Kafka topic's name",
            )
        check_kind(f"the id of message {self.type}", self.message_id, UUID, "such as uuid4()")
        check_kind(f"the payload of message {self.type}", self.payload, bytes, "JSON as bytes")
        if type(self.version) is not int or not 0 <= self.version < 2**31:
            raise EventRefusedError(
                f"message {self.type} has no such version",
                detail=f"{self.version!r:.80}",
                hint="versions are numbers from 0",
            )
        self._check_payload()

    def _check_payload(self) -> None:
        if not 1 <= len(self.payload) <= EVENT_BYTES_MAX:
            raise EventRefusedError(
                f"message {self.type} has 1 to {EVENT_BYTES_MAX:,} bytes",
                detail=f"{len(self.payload):,} bytes",
            )
        try:
            text = self.payload.decode()
        except UnicodeDecodeError as error:
            raise EventRefusedError(
                f"the payload of message {self.type} is not UTF-8", detail=f"byte {error.start}"
            ) from None
        if "\0" in text:
            raise EventRefusedError(
                f"the payload of message {self.type} has a NUL character",
                detail=f"character {text.index(chr(0))}",
            )


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """One atomic append: all of it or nothing.

    Attributes:
        appends: One for each stream; no stream twice.
        tenant: Whose streams they are.
        idempotency: Makes it happen once.
        condition: Refuses it if the decision is out of date.
        outbox: Sent if, and only if, the append commits.
        correlation_id: See `StoredEvent`.
        causation_id: See `StoredEvent`.
        actor: See `StoredEvent`.
    """

    appends: tuple[StreamAppend, ...]
    tenant: str = DEFAULT_TENANT
    idempotency: Idempotency | None = None
    condition: Condition | None = None
    outbox: tuple[IntegrationEvent, ...] = field(default=())
    correlation_id: str | None = None
    causation_id: str | None = None
    actor: str | None = None

    def __post_init__(self) -> None:
        if self.tenant is not DEFAULT_TENANT:
            check_tenant(self.tenant)
        for what in ("correlation_id", "causation_id", "actor"):
            label = getattr(self, what)
            if label is not None:
                check_label(what, label)
        if self.condition is not None:
            hint = "Condition(query, after), which read_boundary returns"
            check_kind("the condition of an append", self.condition, Condition, hint)
        if self.outbox:
            self._check_outbox()
        self._check_streams()
        self._check_sizes()

    def _check_outbox(self) -> None:
        for message in self.outbox:
            check_kind(
                "a message of the outbox", message, IntegrationEvent, "IntegrationEvent(...)"
            )
        count = len(self.outbox) - len({message.message_id for message in self.outbox})
        if count:
            raise BatchRefusedError(
                "an append has two messages with one id",
                detail=f"{count} duplicates",
                hint="give each message its own id; receivers skip the second one",
            )

    def _check_streams(self) -> None:
        if len(self.appends) == 1:
            return
        if not self.appends:
            raise BatchRefusedError("an append needs a stream")
        names = {append.stream for append in self.appends}
        if len(names) < len(self.appends) or len(names) > STREAMS_MAX:
            raise BatchRefusedError(
                f"an append has at most {STREAMS_MAX} streams, each once",
                detail=f"{len(self.appends)} appends to {len(names)} streams",
            )

    def _check_sizes(self) -> None:
        if any(not append.events for append in self.appends) and self.idempotency is None:
            raise BatchRefusedError(
                "an append without events has no effect",
                hint="do not call append without events",
            )
        count = sum(len(append.events) for append in self.appends)
        if count > EVENTS_MAX:
            raise BatchRefusedError(
                f"an append has at most {EVENTS_MAX:,} events", detail=f"{count:,} events"
            )
        if count > 1:
            ids = {event.event_id for append in self.appends for event in append.events}
            if len(ids) < count:
                raise BatchRefusedError(
                    "an append has two events with one id", detail=f"{count - len(ids)} duplicates"
                )
        size = sum(len(event.data) for append in self.appends for event in append.events)
        if count > 1 and size > APPEND_BYTES_MAX:
            raise BatchRefusedError(
                f"an append has at most {APPEND_BYTES_MAX:,} bytes", detail=f"{size:,} bytes"
            )


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append.

    Attributes:
        versions: Version of each stream afterwards, in the order of the request.
        token: Position token of the events, for views and waits.
        repeated: Whether the idempotency key had been used before: nothing was written, and this is
            the first result.
    """

    versions: tuple[int, ...]
    token: Token
    repeated: bool = False

    @property
    def version(self) -> int:
        """Version of the only, or first, stream."""
        return self.versions[0]


def in_utc(instant: datetime) -> datetime:
    """Returns an instant in UTC, as logs store it."""
    return instant if instant.tzinfo is UTC else instant.astimezone(UTC)


def digest_of(request: AppendRequest) -> bytes:
    """Returns what the payload of an append is for its idempotency key: SHA-256.

    Streams, types, versions, payloads and tags count; expected versions, ids and times do not,
    because a retry may have new ones.
    """
    total = hashlib.sha256()
    for append in request.appends:
        _feed(total, b"stream", append.stream.encode())
        for event in append.events:
            _feed(total, b"type", f"{event.type}@{event.schema_version}".encode())
            _feed(total, b"data", event.digest or event.data)
            for tag in sorted(event.tags):
                _feed(total, b"tag", tag.encode())
    return total.digest()


def _feed(total: hashlib._Hash, what: bytes, value: bytes) -> None:
    total.update(b"%s %d:%s;" % (what, len(value), value))
