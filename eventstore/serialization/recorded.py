"""RecordedEvent: an event as an application reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from eventstore.model.event import SNAPSHOT_TYPE

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from eventstore.model.event import StoredEvent
    from eventstore.serialization.codec import Codec

_UNREAD: Final[Any] = object()


@dataclass(frozen=True, slots=True)
class CompactedPrefix:
    """The payload of a `$snapshot` event: the compacted first events of a stream.

    `StreamPart(archived=True)` reads the events themselves.

    Attributes:
        through: Stream position of the last compacted event.
    """

    through: int


class RecordedEvent:
    """An event of the log, decoded at the first access.

    Two events are equal if their stored forms are equal. An event belongs to the thread that reads
    it.

    Attributes:
        stored: The event as the log stores it.
    """

    __slots__ = ("_codec", "_event", "stored")

    def __init__(self, codec: Codec, stored: StoredEvent) -> None:
        self.stored = stored
        self._codec = codec
        self._event = _UNREAD

    @property
    def event(self) -> Any:
        """The decoded event, in the latest version of its class.

        Raises:
            UndeclaredError: Its type is unknown, or its version is newer than this program's.
            UpcastError: Its payload does not fit its class, or an upcaster failed.
            SubjectKeyError: A personal field was altered or moved, or its key is missing.
        """
        found = self._event
        if found is _UNREAD:
            stored = self.stored
            if stored.type == SNAPSHOT_TYPE:
                found = CompactedPrefix(stored.stream_position)
            else:
                found = self._codec.decode(stored)
            self._event = found
        return found

    @property
    def payload(self) -> dict[str, Any]:
        """The payload in the latest version of its type, as JSON values.

        Raises:
            EventStoreError: See `event`.
        """
        return self._codec.payload(self.stored)

    @property
    def headers(self) -> dict[str, Any]:
        """`metadata` as JSON values; empty if there is none."""
        metadata = self.stored.metadata
        return {} if metadata is None else msgspec.json.decode(metadata)

    @property
    def global_position(self) -> int:
        """Position in the whole log; ascending, with gaps."""
        return self.stored.global_position

    @property
    def tenant(self) -> str:
        """Its tenant."""
        return self.stored.tenant

    @property
    def stream(self) -> str:
        """Name of its stream."""
        return self.stored.stream

    @property
    def category(self) -> str:
        """The category of its stream."""
        return self.stored.category

    @property
    def stream_position(self) -> int:
        """Position in its stream, from 1, without gaps."""
        return self.stored.stream_position

    @property
    def type(self) -> str:
        """Name of its type."""
        return self.stored.type

    @property
    def schema_version(self) -> int:
        """Version of its type with which it was written."""
        return self.stored.schema_version

    @property
    def event_id(self) -> UUID:
        """Identity, given by the writer."""
        return self.stored.event_id

    @property
    def data(self) -> bytes:
        """Payload as written, JSON; personal fields are encrypted."""
        return self.stored.data

    @property
    def metadata(self) -> bytes | None:
        """Further headers, JSON; None if there are none."""
        return self.stored.metadata

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        return tuple(self.stored.tags or ())

    @property
    def correlation_id(self) -> str | None:
        """Id of the business flow that it belongs to."""
        return self.stored.correlation_id

    @property
    def causation_id(self) -> str | None:
        """Id of the message that caused it."""
        return self.stored.causation_id

    @property
    def actor(self) -> str | None:
        """The user or program that caused it."""
        return self.stored.actor

    @property
    def occurred_at(self) -> datetime:
        """When it happened, by the writer's clock."""
        return self.stored.occurred_at

    @property
    def recorded_at(self) -> datetime:
        """When it was stored, by the database's clock."""
        return self.stored.recorded_at

    @property
    def system(self) -> bool:
        """Whether the store itself wrote it, as a `$snapshot`."""
        return self.stored.system

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedEvent) and self.stored == other.stored

    def __hash__(self) -> int:
        return hash((self.stored.tenant, self.stored.event_id))

    def __repr__(self) -> str:
        # without the payload, which may be personal and must not get into logs
        stored = self.stored
        place = f"{stored.stream}@{stored.stream_position}"
        return (
            f"RecordedEvent({stored.type!r}, {place!r}, global_position={stored.global_position})"
        )
