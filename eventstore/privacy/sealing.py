"""Sealing: AES-256-GCM of personal fields and of saved states, bound to their location.

A sealed field is the JSON object `{"$sealed": base64, "subject": ..., "key": generation}`. The
associated data is its tenant, stream, stream position, event type and field, so a field that was
moved cannot be decrypted. Each encryption uses a new random nonce.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from eventstore.errors import SubjectKeyError
from eventstore.privacy.master_key import NONCE_BYTES
from eventstore.privacy.personal import Redacted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventstore.privacy.keyring import KeyRing, SubjectKey

_TAG_BYTES: Final = 16


class EventAddress(NamedTuple):
    """The location of an event.

    Attributes:
        tenant: Tenant of the stream.
        stream: Name of the stream.
        stream_position: Position in the stream.
        type: Name of the event type.
    """

    tenant: str
    stream: str
    stream_position: int
    type: str


class SealedField(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"box": "$sealed"}
):
    """The stored form of a sealed field.

    Attributes:
        box: Nonce, ciphertext and tag.
        subject: Subject whose key decrypts it.
        key: Generation of that key.
    """

    box: bytes
    subject: str
    key: int


class SealedState(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"box": "$sealed"}
):
    """The stored form of a sealed state.

    Attributes:
        box: Nonce, ciphertext and tag.
        subjects: The required subjects, each with the generation of its key; sorted.
    """

    box: bytes
    subjects: list[tuple[str, int]]


_encode: Final = msgspec.json.encode
_decode_field: Final = msgspec.json.Decoder(SealedField).decode
_decode_state: Final = msgspec.json.Decoder(SealedState).decode


def seal_field(
    plain: bytes, subject: str, key: SubjectKey, place: EventAddress, field: str
) -> bytes:
    """Returns a personal value, encrypted, as JSON.

    Args:
        plain: The value as JSON.
        subject: The person.
        key: The person's key.
        place: Location of the event.
        field: Name of the field.
    """
    box = _sealed(key.secret, plain, _bound_to_place(place, field))
    return _encode(SealedField(box, subject, key.generation))


def open_field(
    sealed: bytes, keyring: KeyRing, place: EventAddress, field: str
) -> bytes | Redacted:
    """Returns the value that `seal_field` encrypted, or `Redacted` if its subject is forgotten.

    Raises:
        SubjectKeyError: The field is not sealed, was altered, or was written at another location
            or with another key; or the ring does not know the subject.
    """
    try:
        found = _decode_field(sealed)
    except msgspec.DecodeError:
        raise SubjectKeyError(
            "a personal field is not encrypted",
            detail=f"field {field} of {place.type} at {place.stream} {place.stream_position}",
            hint=(
                "if an older version stored it in plain text, its upcaster must name its "
                "personal fields"
            ),
        ) from None
    key = keyring.key_of(place.tenant, found.subject, generation=found.key)
    if key is None or found.key < key.generation:
        return Redacted(found.subject)
    if found.key == key.generation:
        plain = _opened(key.secret, found.box, _bound_to_place(place, field))
        if plain is not None:
            return plain
    raise SubjectKeyError(
        "a personal field cannot be decrypted",
        detail=f"field {field} of {place.type} at {place.stream} {place.stream_position}",
        hint=(
            "it was altered, moved from another event, or encrypted with a key that the ring lacks"
        ),
    )


def confirmation_of(plain: bytes, key: SubjectKey, type_: str, field: str) -> bytes:
    """Returns a digest of a personal value that cannot be computed without the subject's key."""
    derived = hmac.digest(key.secret, b"headwater digest of a personal field", hashlib.sha256)
    return hmac.digest(derived, unambiguous(type_, field) + plain, hashlib.sha256)


def seal_state(
    state: bytes, tenant: str, stream: str, subjects: Iterable[str], keyring: KeyRing
) -> bytes:
    """Returns a state, encrypted so that it is readable only while no subject is forgotten.

    Args:
        state: The state.
        tenant: Tenant of the stream.
        stream: The stream.
        subjects: Persons whose fields it contains; without any, the state is returned unchanged.
        keyring: Stores their keys.

    Raises:
        SubjectKeyError: A subject is forgotten.
    """
    names = sorted(set(subjects))
    if not names:
        return state
    keys = [(name, keyring.key_of(tenant, name, create=True)) for name in names]
    present = [(name, key) for name, key in keys if key is not None]
    if len(present) < len(keys):
        raise SubjectKeyError(
            "a state has personal fields of a subject whose key was destroyed",
            detail=f"stream {stream}",
            hint="fold the stream again; the fields are redacted now",
        )
    generations = [(name, key.generation) for name, key in present]
    bound_to = _bound_to_state(tenant, stream, generations)
    secret = _combined([key for _, key in present], bound_to)
    return _encode(SealedState(_sealed(secret, state, bound_to), generations))


def open_state(
    sealed: bytes, tenant: str, stream: str, subjects: Iterable[str], keyring: KeyRing
) -> bytes | None:
    """Returns the state that `seal_state` encrypted; None if a subject has been forgotten since.

    Raises:
        SubjectKeyError: The state is not sealed, was altered, or belongs to another stream.
    """
    names = sorted(set(subjects))
    if not names:
        return sealed
    try:
        found = _decode_state(sealed)
    except msgspec.DecodeError:
        raise SubjectKeyError("a saved state is not encrypted", detail=f"stream {stream}") from None
    keys: list[SubjectKey] = []
    for name, generation in found.subjects:
        key = keyring.key_of(tenant, name, generation=generation)
        if key is None or generation < key.generation:
            return None
        keys.append(key)
    if [name for name, _ in found.subjects] == names:
        bound_to = _bound_to_state(tenant, stream, found.subjects)
        state = _opened(_combined(keys, bound_to), found.box, bound_to)
        if state is not None:
            return state
    raise SubjectKeyError(
        "a saved state cannot be decrypted",
        detail=f"stream {stream}",
        hint=(
            "it was altered or belongs to another stream; delete it, the state can be folded again"
        ),
    )


def _sealed(secret: bytes, plain: bytes, bound_to: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(secret).encrypt(nonce, plain, bound_to)


def _opened(secret: bytes, box: bytes, bound_to: bytes) -> bytes | None:
    if len(box) < NONCE_BYTES + _TAG_BYTES:
        return None
    try:
        return AESGCM(secret).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], bound_to)
    except InvalidTag:
        return None


def _combined(keys: list[SubjectKey], bound_to: bytes) -> bytes:
    # every secret has the same length, so the concatenation is unambiguous
    together = hashlib.sha256(b"".join(key.secret for key in keys)).digest()
    return hmac.digest(together, b"headwater saved state" + bound_to, hashlib.sha256)


def _bound_to_place(place: EventAddress, field: str) -> bytes:
    position = str(place.stream_position)
    return unambiguous("field", place.tenant, place.stream, position, place.type, field)


def _bound_to_state(tenant: str, stream: str, subjects: list[tuple[str, int]]) -> bytes:
    parts = (part for name, generation in subjects for part in (name, str(generation)))
    return unambiguous("state", tenant, stream, *parts)


def unambiguous(*parts: str) -> bytes:
    """Joins parts unambiguously: no two lists of parts give the same bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(b"%d:%s" % (len(part), part) for part in encoded)
