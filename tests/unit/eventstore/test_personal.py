"""Personal fields: sealed in their place, gone with their subject's key."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eventstore.errors import (
    EventRefusedError,
    NameRefusedError,
    SubjectKeyError,
    UpcastError,
    WrongKindError,
)
from eventstore.model.event import AppendRequest, StreamAppend, digest_of
from eventstore.privacy.keyring import MemoryKeyRing, SubjectKey
from eventstore.privacy.personal import Personal, Redacted
from eventstore.privacy.sealing import (
    EventAddress,
    confirmation_of,
    open_field,
    open_state,
    seal_field,
    seal_state,
    unambiguous,
)
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventData, EventTypes
from tests.fix_seeds import examples
from tests.fix_stored import STREAM, TENANT, stored

types = EventTypes()


@dataclass(frozen=True)
class Address:
    street: str
    moved_at: datetime


@types.event("customer.registered", version=1, subject="customer_id")
class Registered:
    customer_id: str
    email: Personal[str]
    country: str
    address: Personal[Address | None] = None
    limit: Personal[Decimal] = Decimal("1.10")
    extra: Personal[dict[str, Any]] = None  # type: ignore[assignment]


@types.event("account.opened", subject="owner")
class Opened:
    owner: UUID | int
    iban: Personal[str]


MOVED = datetime(2026, 1, 1, tzinfo=UTC)
ANN = Registered("ann", "ann@example.org", "DE", Address("Rue 1", MOVED), Decimal("2.50"), {"a": 1})


@pytest.fixture
def ring() -> MemoryKeyRing:
    return MemoryKeyRing()


@pytest.fixture
def codec(ring) -> Codec:
    return Codec(types, ring)


def encode(codec: Codec, event: object, stream_position: int | None = 1, **changed: Any):
    where = {"tenant": TENANT, "stream": STREAM, "stream_position": stream_position} | changed
    return codec.encode(event, **where)


def test_personal_fields_are_stored_sealed_and_read_open(codec):
    new = encode(codec, ANN)

    assert ANN == codec.decode(stored(new))
    assert b"ann@" not in new.data
    assert b"Rue" not in new.data
    assert {"customer_id": "ann", "country": "DE"} == {
        name: value for name, value in json.loads(new.data).items() if isinstance(value, str)
    }
    assert {
        "customer_id": "ann",
        "email": "ann@example.org",
        "country": "DE",
        "address": {"street": "Rue 1", "moved_at": "2026-01-01T00:00:00Z"},
        "limit": "2.50",
        "extra": {"a": 1},
    } == codec.payload(stored(new))


def test_no_two_encryptions_are_the_same(codec):
    boxes = {json.loads(encode(codec, ANN).data)["email"]["$sealed"][:16] for _ in range(50)}

    assert 50 == len(boxes)


def test_a_forgotten_subject_reads_as_redacted_and_the_rest_stays(codec, ring):
    new = encode(codec, ANN)
    gone = Redacted("ann")

    assert ring.shred(TENANT, "ann")
    assert Registered("ann", gone, "DE", gone, gone, gone) == codec.decode(stored(new))
    payload = codec.payload(stored(new))
    assert (gone, "DE") == (payload["email"], payload["country"])
    assert "[redacted]" == str(payload["email"])
    assert not ring.shred(TENANT, "ann")


@pytest.mark.parametrize("subject", [7, None, UUID(int=7), b"ann"])
def test_a_subject_that_is_no_text_is_not_forgotten_in_silence(ring, subject):
    """A number is stored as its text: its key would be another one."""
    for call in (ring.shred, ring.readmit, ring.key_of):
        with pytest.raises(WrongKindError) as raised:
            call(TENANT, subject)
        assert "str(subject)" == raised.value.hint


def test_a_forgotten_subject_gets_no_new_personal_data_until_it_is_readmitted(codec, ring):
    old = encode(codec, ANN)
    ring.shred(TENANT, "ann")
    with pytest.raises(SubjectKeyError, match="subject whose key was destroyed") as refused:
        encode(codec, ANN)
    assert "readmit" in refused.value.hint
    assert b"" != encode(codec, replace(ANN, customer_id="bob")).data

    assert ring.readmit(TENANT, "ann")
    new = encode(codec, ANN)

    assert not ring.readmit(TENANT, "ann")
    assert ANN == codec.decode(stored(new))
    assert Redacted("ann") == codec.decode(stored(old)).email


def test_a_subject_may_be_forgotten_before_it_is_known(codec, ring):
    assert not ring.shred(TENANT, "ann")
    with pytest.raises(SubjectKeyError):
        encode(codec, ANN)


def test_a_key_that_is_lost_is_not_a_subject_that_is_forgotten(codec):
    """Another ring, or a restored one, must not turn data into redactions in silence."""
    new = encode(codec, ANN)
    elsewhere = Codec(types, MemoryKeyRing())

    with pytest.raises(SubjectKeyError, match="no record of its destruction"):
        elsewhere.decode(stored(new))
    encode(elsewhere, ANN)
    with pytest.raises(SubjectKeyError, match="cannot be decrypted"):
        elsewhere.decode(stored(new))


def test_a_key_of_a_later_generation_than_the_rings_is_lost_too(codec, ring):
    ring.shred(TENANT, "ann")
    ring.readmit(TENANT, "ann")
    new = encode(codec, ANN)
    restored = MemoryKeyRing()
    restored.key_of(TENANT, "ann", create=True)

    with pytest.raises(SubjectKeyError, match="cannot be decrypted"):
        Codec(types, restored).decode(stored(new))


def test_without_a_key_ring_personal_fields_are_neither_written_nor_read(codec):
    keyless = Codec(types)

    with pytest.raises(SubjectKeyError, match="there is no key ring"):
        encode(keyless, ANN)
    with pytest.raises(SubjectKeyError, match="there is no key ring"):
        keyless.decode(stored(encode(codec, ANN)))


@pytest.mark.parametrize(
    "moved",
    [
        {"tenant": "other"},
        {"stream": "order-2"},
        {"stream_position": 2},
        {"type": "customer.moved"},
        {"data": "fields"},
        {"data": "subject"},
        {"data": "bit"},
        {"data": "cut"},
        {"data": "plain"},
        {"data": "more"},
    ],
    ids=lambda moved: next(iter(moved.values())) if isinstance(moved, dict) else moved,
)
def test_a_sealed_value_opens_nowhere_else(codec, ring, moved):
    types_moved = EventTypes()
    types_moved.event("customer.moved", subject="customer_id")(Registered)
    new = encode(codec, ANN)
    encode(codec, replace(ANN, customer_id="bob"))
    ring.key_of("other", "ann", create=True)
    if "data" in moved:
        moved = {"data": altered(new.data, moved["data"])}
    reader = Codec(types_moved, ring) if "type" in moved else codec

    with pytest.raises(SubjectKeyError):
        reader.decode(stored(new, **moved))
    with pytest.raises(SubjectKeyError):
        reader.payload(stored(new, **moved))


def altered(data: bytes, how: str) -> bytes:
    payload = json.loads(data)
    email = payload["email"]
    box = bytearray(base64.b64decode(email["$sealed"]))
    if how == "fields":
        payload["email"], payload["limit"] = payload["limit"], payload["email"]
    elif how == "subject":
        email["subject"] = "bob"
    elif how == "bit":
        box[-1] ^= 1
        email["$sealed"] = base64.b64encode(box).decode()
    elif how == "cut":
        email["$sealed"] = base64.b64encode(box[:20]).decode()
    elif how == "plain":
        payload["email"] = "ann@example.org"
    elif how == "more":
        email["more"] = 1
    return json.dumps(payload).encode()


def test_a_users_own_dict_is_never_taken_for_a_sealed_one(codec):
    alike = {"$sealed": "AAAA", "subject": "bob", "key": 1}
    new = encode(codec, replace(ANN, extra=alike))

    assert alike == codec.decode(stored(new)).extra
    plain = EventTypes()
    plain.untyped("any.happened")
    reader = Codec(plain)
    event = EventData("any.happened", {"a": alike})
    assert event == reader.decode(stored(reader.encode(event, tenant=TENANT, stream=STREAM)))


def test_personal_fields_need_an_exact_place(codec):
    assert codec.needs_position(ANN)
    assert "ann" == codec.subject_of(ANN)
    for nowhere in (None, 0, -1, True, 1.0):
        with pytest.raises(EventRefusedError, match="bound to their stream position"):
            encode(codec, ANN, nowhere)


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"email": 5}, "email does not fit its class: expected str, got int"),
        ({"email": "a\0"}, "email has a NUL character, which Postgres does not keep"),
        ({"email": Redacted("ann")}, "email is redacted: nothing is known"),
        ({"limit": 1.5}, "limit is read back as another type: float as Decimal"),
        (
            {"address": Address("a", datetime(2026, 1, 1))},  # noqa: DTZ001
            "address.moved_at is a time without a UTC offset",
        ),
        ({"extra": {"a": (1,)}}, "extra[...] is read back as another type: tuple as list"),
        ({"country": 5}, "country does not fit its class: expected str, got int"),
        ({"country": "\0"}, "country has a NUL character, which Postgres does not keep"),
        ({"country": "\ud800"}, "country has a lone surrogate, which is no character"),
    ],
    ids=range(9),
)
def test_events_with_personal_fields_are_exact_too(codec, changed, detail):
    with pytest.raises(EventRefusedError) as refused:
        encode(codec, replace(ANN, **changed))

    assert detail == refused.value.detail


def test_a_subject_is_a_text_a_number_or_a_uuid(codec):
    for owner in (UUID(int=7), 7):
        new = encode(codec, Opened(owner, "DE00"))

        assert Opened(owner, "DE00") == codec.decode(stored(new))
        assert str(owner) == codec.subject_of(Opened(owner, "DE00"))
    with pytest.raises(EventRefusedError, match="a str, int or UUID"):
        encode(codec, Opened(True, "DE00"))
    with pytest.raises(NameRefusedError):
        encode(codec, replace(ANN, customer_id=" "))


def test_a_plain_dict_is_no_way_around_the_encryption(codec):
    with pytest.raises(EventRefusedError, match="a plain dict does not encrypt"):
        encode(codec, EventData("customer.registered", {"email": "ann@example.org"}))


def test_a_class_that_does_not_take_redacted_is_told(codec, ring):
    own = EventTypes()

    @own.event("customer.registered", subject="customer_id")
    class Strict:
        customer_id: str
        email: Personal[str]

        def __post_init__(self) -> None:
            self.email.index("@")  # type: ignore[union-attr]

    strict = Codec(own, ring)
    new = encode(strict, Strict("ann", "a@b"))
    ring.shred(TENANT, "ann")

    with pytest.raises(UpcastError) as caught:
        strict.decode(stored(new))
    assert caught.value.detail.startswith("its class raised AttributeError")


def digest(new) -> bytes:
    return digest_of(AppendRequest((StreamAppend(STREAM, (new,)),)))


def test_equal_events_have_equal_digests_though_their_ciphertexts_differ(codec):
    first, again = encode(codec, ANN), encode(codec, ANN, 9)

    assert first.data != again.data
    assert digest(first) == digest(again)
    for changed in ({"email": "bob@example.org"}, {"country": "FR"}, {"limit": Decimal("2.5")}):
        assert digest(first) != digest(encode(codec, replace(ANN, **changed)))


def test_a_digest_cannot_be_guessed_without_the_key(codec):
    """The same person's data under another key has another digest."""
    elsewhere = Codec(types, MemoryKeyRing())

    assert digest(encode(codec, ANN)) != digest(encode(elsewhere, ANN))


KEY = SubjectKey(bytes(32), 1)
names = st.text(max_size=3)
places = st.builds(EventAddress, names, names, st.integers(1, 30), names)


class OneKey(MemoryKeyRing):
    def key_of(self, *_: Any, **__: Any) -> SubjectKey:
        return KEY


@settings(deadline=None)
@given(places, names, places, names, st.binary(max_size=20))
def test_what_is_sealed_for_one_place_opens_there_only(place, field, other, other_field, plain):
    sealed = seal_field(plain, "s", KEY, place, field)

    assert plain == open_field(sealed, OneKey(), place, field)
    if (place, field) != (other, other_field):
        with pytest.raises(SubjectKeyError):
            open_field(sealed, OneKey(), other, other_field)
        if (place.type, field) != (other.type, other_field):
            assert confirmation_of(plain, KEY, place.type, field) != confirmation_of(
                plain, KEY, other.type, other_field
            )


parts = st.lists(st.text("1:;a", max_size=4) | st.text(max_size=4), max_size=4)


@settings(deadline=None)
@given(parts, parts)
@example(["a", "b"], ["a;b"])
@example(["a", "b"], ["a1:b"])
@example(["é"], ["e\u0301"])
@example(["", "a"], ["a", ""])
def test_no_two_lists_of_parts_are_bound_to_the_same(one, other):
    assert (unambiguous(*one) == unambiguous(*other)) == (one == other)


@settings(deadline=None, max_examples=examples(50))
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.booleans())
def test_every_personal_value_reads_back_until_it_is_forgotten(email, forgotten):
    ring = MemoryKeyRing()
    codec = Codec(types, ring)
    event = stored(encode(codec, replace(ANN, email=email)))
    if forgotten:
        ring.shred(TENANT, "ann")

    assert (Redacted("ann") if forgotten else email) == codec.decode(event).email


def test_a_saved_state_is_readable_until_one_of_its_subjects_is_forgotten(ring):
    state = b'{"a":1}'
    sealed = seal_state(state, TENANT, STREAM, ["bob", "ann", "bob"], ring)

    assert b"$sealed" in sealed
    assert json.loads(sealed)
    assert state == open_state(sealed, TENANT, STREAM, ("ann", "bob"), ring)
    ring.shred(TENANT, "bob")
    assert open_state(sealed, TENANT, STREAM, ("ann", "bob"), ring) is None
    ring.readmit(TENANT, "bob")
    assert open_state(sealed, TENANT, STREAM, ("ann", "bob"), ring) is None
    assert state == open_state(
        seal_state(state, TENANT, STREAM, ("ann", "bob"), ring),
        TENANT,
        STREAM,
        ("ann", "bob"),
        ring,
    )


def test_a_state_without_personal_fields_stays_as_it_is(ring):
    assert b"{}" == seal_state(b"{}", TENANT, STREAM, (), ring)
    assert b"{}" == open_state(b"{}", TENANT, STREAM, (), ring)


def test_no_state_is_sealed_for_a_forgotten_subject(ring):
    ring.shred(TENANT, "ann")
    with pytest.raises(SubjectKeyError, match="subject whose key was destroyed"):
        seal_state(b"{}", TENANT, STREAM, ("ann", "bob"), ring)


def test_a_saved_state_belongs_to_its_stream_and_subjects(ring):
    for name in ("ann", "bob", "eve"):
        ring.key_of(TENANT, name, create=True)
        ring.key_of("other", name, create=True)
    sealed = seal_state(b"{}", TENANT, STREAM, ("ann", "bob"), ring)
    payload = json.loads(sealed)
    swapped = json.dumps(payload | {"subjects": [["ann", 1], ["eve", 1]]}).encode()
    fewer = json.dumps(payload | {"subjects": [["ann", 1]]}).encode()

    for where in (
        (sealed, "other", STREAM, ("ann", "bob")),
        (sealed, TENANT, "order-2", ("ann", "bob")),
        (sealed, TENANT, STREAM, ("ann",)),
        (sealed, TENANT, STREAM, ("ann", "eve")),
        (swapped, TENANT, STREAM, ("ann", "eve")),
        (fewer, TENANT, STREAM, ("ann",)),
        (b"{}", TENANT, STREAM, ("ann",)),
        (b"", TENANT, STREAM, ("ann",)),
    ):
        with pytest.raises(SubjectKeyError):
            open_state(*where, ring)
