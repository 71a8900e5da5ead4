"""Sealing: AES-256-GCM of personal fields and of saved states, bound to their place.

A sealed field is the JSON object `{"$sealed": base64, "subject": ..., "key": generation}`. What it
is bound to (the associated data) is its tenant, stream, place in the stream, event type and field:
moved anywhere else, it does not open. Each encryption draws its own random nonce.
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
    """Where an event is.

    Attributes:
        tenant: Whose stream.
        stream: Name of its stream.
        stream_position: Place in its stream.
        type: Name of its type.
    """

    tenant: str
    stream: str
    stream_position: int
    type: str


class SealedField(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"box": "$sealed"}
):
    """A sealed field as it is stored.

    Attributes:
        box: Nonce, ciphertext and tag.
        subject: Whose key opens it.
        key: Generation of that key.
    """

    box: bytes
    subject: str
    key: int


class SealedState(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"box": "$sealed"}
):
    """A saved state as it is stored.

    Attributes:
        box: Nonce, ciphertext and tag.
        subjects: Each subject whose key is needed, with its generation; sorted.
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
        subject: The person whom it is about.
        key: That person's key.
        place: The event that it is written in.
        field: The field that it is written in.
    """
    box = _sealed(key.secret, plain, _bound_to_place(place, field))
    return _encode(SealedField(box, subject, key.generation))


def open_field(
    sealed: bytes, keyring: KeyRing, place: EventAddress, field: str
) -> bytes | Redacted:
    """Returns what `seal_field` was given, or that its subject is forgotten.

    Raises:
        SubjectKeyError: It is no sealed field, was altered, or was written in another place or
            under another key; or the ring does not know the subject.
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
    """Returns a saved state so that it can be read only while none of its subjects is forgotten.

    Args:
        state: The state.
        tenant: Whose stream it is the state of.
        stream: Which stream.
        subjects: Persons whose fields are in it; without any, the state is returned as it is.
        keyring: Has their keys.

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
    """Returns what `seal_state` was given; None if one of the subjects is forgotten since.

    Raises:
        SubjectKeyError: It is no such state, was altered, or belongs elsewhere.
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
    # every secret has the same length, so their row has one meaning only
    together = hashlib.sha256(b"".join(key.secret for key in keys)).digest()
    return hmac.digest(together, b"headwater saved state" + bound_to, hashlib.sha256)


def _bound_to_place(place: EventAddress, field: str) -> bytes:
    position = str(place.stream_position)
    return unambiguous("field", place.tenant, place.stream, position, place.type, field)


def _bound_to_state(tenant: str, stream: str, subjects: list[tuple[str, int]]) -> bytes:
    parts = (part for name, generation in subjects for part in (name, str(generation)))
    return unambiguous("state", tenant, stream, *parts)


def unambiguous(*parts: str) -> bytes:
    """Joins parts so that no two lists of parts give the same bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(b"%d:%s" % (len(part), part) for part in encoded)
