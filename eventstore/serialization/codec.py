"""Codec: converts typed events to stored events, and back.

Writing refuses values that would not read back equal (`eventstore.serialization.exactness`).
Reading upcasts old versions to the latest one (`eventstore.serialization.upcasting`) and decrypts
personal fields (`eventstore.privacy.sealing`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from eventstore.errors import (
    EventRefusedError,
    EventStoreError,
    SubjectKeyError,
    UpcastError,
)
from eventstore.model.callables import check_result
from eventstore.model.event import NewEvent, StoredEvent
from eventstore.model.event_id import new_event_id
from eventstore.model.names import check_label, check_tag
from eventstore.privacy.personal import Redacted
from eventstore.privacy.personal_tags import PersonalTag, check_tags, hashed
from eventstore.privacy.sealing import EventAddress, confirmation_of, open_field, seal_field
from eventstore.serialization.registry import EventData, EventType, EventTypes
from eventstore.serialization.upcasting import cause_of, check_redacted, upcasted
from eventstore.serialization.wire import (
    PersonalWire,
    Wire,
    decoded,
    decoded_object,
    described,
    encoded,
    exactly,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.privacy.keyring import KeyRing

_SUBJECT_TYPES: Final = (str, int, UUID)


class Codec:
    """Encodes events for a log, and decodes them.

    Threads: may be used concurrently.

    Args:
        types: Registry of the event types.
        keyring: Keys of subjects, for personal fields; None if no event has any.
    """

    def __init__(self, types: EventTypes, keyring: KeyRing | None = None) -> None:
        self.types = types
        self.keyring = keyring
        self._wires: dict[type, Wire | PersonalWire] = {}
        self._direct: dict[tuple[str, int], Callable[[bytes], object]] = {}

    def encode(  # noqa: PLR0913  # an event, where it goes, and what is said about it
        self,
        event: object,
        *,
        tenant: str,
        stream: str,
        stream_position: int | None = None,
        event_id: UUID | None = None,
        occurred_at: datetime | None = None,
        tags: Iterable[str | PersonalTag] = (),
    ) -> NewEvent:
        """Returns an event as it is appended.

        Args:
            event: An object of a declared class, or an `EventData`.
            tenant: Tenant of the stream.
            stream: Name of the stream.
            stream_position: Position in the stream; required, and binding, if `needs_position`.
            event_id: Its identity; by default a new one.
            occurred_at: When it happened, with an offset; by default now.
            tags: Tags besides those of its declaration.

        Raises:
            EventRefusedError: It would not read back equal, or one of its tags contains a personal
                value in plain text.
            SubjectKeyError: It has personal fields, and its subject is forgotten or there is no
                key ring.
            UndeclaredError: Its class is not declared.
        """
        wire = self._wires.get(event.__class__)
        digest = b""
        if wire.__class__ is Wire:
            declared, data = wire.declared, wire.write(event)
        elif event.__class__ is EventData:
            return self._encode_untyped(event, event_id, occurred_at, self._stored(tags, tenant))
        else:
            wire = wire or self._wire_of(self.types.of(event))
            declared = wire.declared
            if isinstance(wire, PersonalWire):
                place = _place(declared, tenant, stream, stream_position)
                data, digest = self._encode_personal(event, wire, place)
            else:
                data = wire.write(event)
        return NewEvent(
            declared.name,
            data,
            event_id or new_event_id(),
            occurred_at or datetime.now(UTC),
            declared.version,
            self._tags_of(declared, event, tags, tenant) if declared.tags or tags else (),
            None,
            digest,
        )

    def personal_tag(self, tenant: str, name: str, value: str) -> str:
        """Returns the stored form of a tag for a personal value; see `privacy.personal_tags`.

        Raises:
            SubjectKeyError: There is no key ring, or the tenant's key for tags is shredded.
        """
        return hashed(PersonalTag(name, value), tenant, self.keyring)

    def needs_position(self, event: object) -> bool:
        """Returns whether an event has personal fields, which are bound to its stream position.

        Raises:
            UndeclaredError: Its class is not declared.
        """
        return event.__class__ is not EventData and bool(self.types.of(event).personal)

    def subject_of(self, event: object) -> str | None:
        """Returns the subject of an event's personal fields; None if it has none.

        Raises:
            UndeclaredError: Its class is not declared.
        """
        if not self.needs_position(event):
            return None
        return _subject_of(self.types.of(event), event)

    def decode(self, stored: StoredEvent) -> Any:
        """Decodes a stored event to the latest version of its class.

        A personal field of a forgotten subject is `Redacted`.

        Raises:
            UndeclaredError: Its type is unknown, or its version is newer than this program's.
            UpcastError: Its payload does not fit its class, or an upcaster failed.
            SubjectKeyError: A personal field was altered or moved, or its key is missing.
        """
        direct = self._direct.get((stored.type, stored.schema_version))
        if direct is None:
            return self._decode_with_care(stored)
        try:
            return direct(stored.data)
        except Exception as error:  # noqa: BLE001  # a class may check itself
            raise _unreadable(stored, error) from None

    def payload(self, stored: StoredEvent) -> dict[str, Any]:
        """Returns a stored event's payload in the latest version, as JSON values.

        Personal values are decrypted; those of a forgotten subject are `Redacted`, whose `str` is
        `[redacted]`.

        Raises:
            EventStoreError: See `decode`.
        """
        path = self.types.path(stored.type, stored.schema_version)
        try:
            data = decoded_object(stored.data)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise _unreadable(stored, error) from None
        for name in self.types.sealed_fields(stored.type, stored.schema_version):
            if name in data:
                plain = self._unseal(stored, name, encoded(data[name]))
                data[name] = plain if isinstance(plain, Redacted) else decoded(plain)
        latest = upcasted(data, path, stored)
        check_redacted(latest, self.types.named(stored.type).personal_fields, stored)
        return latest

    def _decode_with_care(self, stored: StoredEvent) -> Any:
        declared = self.types.readable(stored.type, stored.schema_version)
        if declared.cls is EventData:
            return EventData(declared.name, self.payload(stored), declared.version)
        wire = self._wire_of(declared)
        if stored.schema_version < declared.version:
            return _made_from(wire, self.payload(stored), stored)
        if isinstance(wire, PersonalWire):
            return self._decode_personal(wire, stored)
        self._direct[stored.type, stored.schema_version] = wire.read
        return self.decode(stored)

    def _decode_personal(self, wire: PersonalWire, stored: StoredEvent) -> object:
        try:
            return wire.read(stored.data, lambda name, box: self._unseal(stored, name, box))
        except EventStoreError:
            raise
        except Exception as error:  # noqa: BLE001  # a class may check itself
            raise _unreadable(stored, error) from None

    def _tags_of(
        self, declared: EventType, event: object, given: Iterable[str | PersonalTag], tenant: str
    ) -> tuple[str, ...]:
        own = declared.tags(event) if declared.tags is not None else ()
        check_result(f"tags of event {declared.name}", own)
        if not isinstance(own, Iterable):
            raise EventRefusedError(
                f"the tags of event {declared.name} are no list",
                detail=f"its tags function returned an object of {type(own).__qualname__}",
                hint="return an empty list for no tags",
            )
        groups = [group if isinstance(group, str) else list(group) for group in (own, given)]
        if declared.personal:
            check_tags(declared, event, *groups)
        return _distinct(declared.name, *(self._stored(group, tenant) for group in groups))

    def _stored(self, tags: Iterable[Any], tenant: str) -> Iterable[str]:
        if isinstance(tags, str):
            return tags  # refused by _distinct
        return [
            hashed(tag, tenant, self.keyring) if isinstance(tag, PersonalTag) else tag
            for tag in tags
        ]

    def _encode_untyped(
        self,
        event: EventData,
        event_id: UUID | None,
        occurred_at: datetime | None,
        tags: Iterable[str],
    ) -> NewEvent:
        made = NewEvent(
            event.type,
            _untyped(event),
            event_id or new_event_id(),
            occurred_at or datetime.now(UTC),
            event.version,
            _distinct(event.type, tags),
        )
        if event.type in self.types:
            self._check_readable(made)
        return made

    def _check_readable(self, made: NewEvent) -> None:
        if self.types.sealed_fields(made.type, made.schema_version):
            raise EventRefusedError(
                f"event {made.type} has personal fields, which a plain dict does not encrypt",
                hint="pass an object of its class",
            )
        at = made.occurred_at
        stored = StoredEvent(
            0,
            "",
            "",
            0,
            made.type,
            made.schema_version,
            made.event_id,
            made.data,
            None,
            None,
            None,
            None,
            None,
            at,
            at,
        )
        try:
            self.decode(stored)
        except UpcastError as error:
            raise EventRefusedError(
                f"event {made.type} could not be decoded by its declaration",
                detail=error.detail,
            ) from None

    def _encode_personal(
        self, event: object, wire: PersonalWire, place: EventAddress
    ) -> tuple[bytes, bytes]:
        subject = _subject_of(wire.declared, event)
        personal = wire.personal(event)
        key = self._ring(place.type).key_of(place.tenant, subject, create=True)
        if key is None:
            raise SubjectKeyError(
                f"event {place.type} has personal fields of a subject whose key was destroyed",
                detail=f"subject {subject:.100}",
                hint="readmit the subject if that is intended; erased values stay erased",
            )
        sealed = {
            name: seal_field(plain, subject, key, place, name) for name, plain in personal.items()
        }
        confirmed = {
            name: encoded({"$confirmed": confirmation_of(plain, key, place.type, name)})
            for name, plain in personal.items()
        }
        digest = hashlib.sha256(wire.write(event, confirmed)).digest()
        return wire.write(event, sealed), digest

    def _unseal(self, stored: StoredEvent, name: str, box: bytes) -> bytes | Redacted:
        place = EventAddress(stored.tenant, stored.stream, stored.stream_position, stored.type)
        return open_field(box, self._ring(stored.type), place, name)

    def _ring(self, type_: str) -> KeyRing:
        if self.keyring is None:
            raise SubjectKeyError(
                f"event {type_} has personal fields, and there is no key ring",
                hint="pass a keyring to the store, such as PostgresKeyRing",
            )
        return self.keyring

    def _wire_of(self, declared: EventType) -> Wire | PersonalWire:
        wire = self._wires.get(declared.cls)
        if wire is None:
            wire = PersonalWire(declared) if declared.personal else Wire(declared)
            self._wires[declared.cls] = wire
        return wire


def _untyped(event: EventData) -> bytes:
    if type(event.data) is not dict or any(type(key) is not str for key in event.data):
        raise EventRefusedError(
            "the payload of an event without a class must be a dict with str keys"
        )
    try:
        return exactly(event.type, event.data, decoded)[0]
    except EventRefusedError:
        # top-level keys are names of fields, so an error may name them
        for key, value in event.data.items():
            exactly(event.type, value, decoded, path=f".{key}" if key.isidentifier() else "[...]")
        raise


def _made_from(wire: Wire | PersonalWire, payload: dict[str, Any], stored: StoredEvent) -> object:
    try:
        if isinstance(wire, Wire):
            return wire.read(encoded(payload))
        redacted = {
            name: payload[name]
            for name in wire.declared.personal
            if isinstance(payload.get(name), Redacted)
        }
        data = encoded({**payload, **dict.fromkeys(redacted)})
        return wire.read(data, lambda name, plain: redacted.get(name, plain))  # noqa: PLW0108  # its type
    except Exception as error:  # noqa: BLE001  # a class may check itself
        raise _unreadable(stored, error) from None


def _place(
    declared: EventType, tenant: str, stream: str, stream_position: int | None
) -> EventAddress:
    if type(stream_position) is not int or stream_position < 1:
        raise EventRefusedError(
            (
                f"event {declared.name} has personal fields, which are bound to their stream "
                "position"
            ),
            detail=f"stream position {stream_position!r:.80}",
            hint=(
                "append it with an exact expected version, or let the store determine the position"
            ),
        )
    return EventAddress(tenant, stream, stream_position, declared.name)


def _subject_of(declared: EventType, event: object) -> str:
    value = getattr(event, declared.subject or "")
    if type(value) not in _SUBJECT_TYPES:
        raise EventRefusedError(
            f"the subject of event {declared.name} must be a str, int or UUID",
            detail=f"{declared.subject} is of type {type(value).__qualname__}",
        )
    return check_label("subject", str(value))


def _distinct(type_: str, *groups: Iterable[str]) -> tuple[str, ...]:
    for group in groups:
        if isinstance(group, str):
            raise EventRefusedError(
                f"the tags of event {type_} are a str, not a list",
                hint="use a list",
            )
    tags = [tag for group in groups for tag in group]
    # others are refused here, because they may not be hashable
    return tuple(dict.fromkeys([tag if type(tag) is str else check_tag(tag) for tag in tags]))


def _unreadable(stored: StoredEvent, error: Exception) -> UpcastError:
    if isinstance(error, msgspec.MsgspecError):
        place, what = described(error)
        what = f"{place.removeprefix('.') or 'the payload'}: {what}"
    else:
        what = f"its class raised {cause_of(error)}"
    return UpcastError(
        f"event {stored.type} does not fit its class",
        detail=f"{what}; version {stored.schema_version}, global position {stored.global_position}",
        hint="a changed class needs a new version, and an upcaster from the old one",
    )
