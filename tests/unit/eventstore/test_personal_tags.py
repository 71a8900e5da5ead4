"""No personal value gets into a tag in clear: tags are never encrypted and are not forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore import (
    EventData,
    EventRefusedError,
    EventTypes,
    NameRefusedError,
    Occurrence,
    Personal,
    SubjectKeyError,
    personal_tag,
    tagged,
)
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.privacy.personal_tags import TAGS_SUBJECT
from eventstore.serialization.codec import Codec


@dataclass(frozen=True)
class Address:
    street: str
    city: str


@dataclass(frozen=True)
class Registered:
    user: str
    email: Personal[str]
    born: Personal[date] = date(2000, 1, 31)
    address: Personal[Address | None] = None
    nicknames: Personal[tuple[str, ...]] = ()
    plan: str = "free"


def codec_with(tags, ring=None):
    types = EventTypes()
    types.event("user.registered", subject="user", tags=tags)(Registered)
    return Codec(types, ring or MemoryKeyRing())


def tags_of(codec, event, tags=()):
    encoded = codec.encode(event, tenant="default", stream="user-1", stream_position=1, tags=tags)
    return encoded.tags


ADA = Registered("1", "ada@x.org", address=Address("Elm St", "York"), nicknames=("Countess",))
IN_CLEAR = {
    "the value": lambda e: [f"email:{e.email}"],
    "changed": lambda e: [e.email.upper()[::-1]],
    "hashed without a key": lambda e: [f"email:{hash(e.email)}"],
    "a part of it": lambda e: [f"domain:{e.email.split('@')[1]}"],
    "a date": lambda e: [f"year:{e.born.isoformat()}"],
    "inside of an object": lambda e: [f"city:{e.address.city}"],
    "inside of a list": lambda e: ["plan:free", *(f"nick:{each}" for each in e.nicknames)],
    "a short one": lambda e: [f"letter:{e.email[0]}"],
    "beside a keyed hash": lambda e: [personal_tag("email", e.email), f"mail:{e.email.lower()}"],
}


@pytest.mark.parametrize("tags", IN_CLEAR.values(), ids=IN_CLEAR)
def test_a_tag_that_is_made_of_a_personal_value_is_refused(tags):
    with pytest.raises(EventRefusedError) as refused:
        tags_of(codec_with(tags), ADA)

    said = f"{refused.value} {refused.value.detail} {refused.value.hint}"
    assert not any(part in said for part in ("ada", "York", "Countess", "2000"))


@pytest.mark.parametrize("email", ["¼", "٣", "²", "é"])
def test_digits_and_letters_of_any_script_are_found_in_a_tag(email):
    with pytest.raises(EventRefusedError):
        tags_of(codec_with(lambda e: [f"mail:{e.email}-"]), Registered("1", email))


@pytest.mark.parametrize(
    "tag", ["ada@x.org", "mail:ADA@X.ORG", "city:york", "nick:countess", "to ada@x.org!"]
)
def test_a_tag_that_is_given_beside_the_event_is_looked_at_too(tag):
    with pytest.raises(EventRefusedError):
        tags_of(codec_with(None), ADA, [tag])


@settings(deadline=None)
@given(email=st.text(min_size=1), at=st.integers(0, 20))
def test_whatever_text_is_personal_is_found_in_a_tag(email, at):
    prefix = "email:"[:at]
    try:
        tags = tags_of(codec_with(lambda e: [prefix + e.email]), Registered("1", email))
    except (EventRefusedError, NameRefusedError):
        return
    # nothing in it but what no letter or digit is in: there is no other text of that form
    assert not any(character.isalnum() for character in email), tags


def test_tags_of_what_is_not_personal_are_taken():
    tags = tags_of(codec_with(lambda e: [f"user:{e.user}", f"plan:{e.plan}"]), ADA, ["org:7"])

    assert ("user:1", "plan:free", "org:7") == tags


def test_a_tag_is_not_refused_because_a_public_value_reads_alike():
    codec = codec_with(lambda e: [f"user:{e.user}"])
    event = Registered("ada", "Ada")

    assert ("user:ada", "org:adam") == tags_of(codec, event, ["org:adam"])
    assert ("user:ada",) == tags_of(codec, event, ["user:ada"])


def test_tags_that_take_no_other_value_are_looked_at_by_their_text():
    def tags(event):
        return [{"ada@x.org": "known"}[event.email], f"mail:{event.email}"]

    with pytest.raises(EventRefusedError):
        tags_of(codec_with(tags), ADA)


def test_whether_there_is_a_value_is_not_the_value():
    codec = codec_with(lambda e: ["has:address"] if e.address else [])

    assert (("has:address",), ()) == (tags_of(codec, ADA), tags_of(codec, Registered("1", "a")))


class TestKeyedHash:
    TAGS = staticmethod(lambda e: [personal_tag("email", e.email.lower()), f"plan:{e.plan}"])

    def test_it_is_the_same_for_one_value_and_tenant_only(self):
        ring = MemoryKeyRing()
        codec = codec_with(self.TAGS, ring)
        found = {
            tags_of(codec, Registered(user, email))[0]
            for user, email in (("1", "ada@x.org"), ("2", "ADA@x.org"))
        }
        others = {
            codec.personal_tag("default", "email", "bob@x.org"),
            codec.personal_tag("default", "phone", "ada@x.org"),
            codec.personal_tag("other", "email", "ada@x.org"),
            codec_with(self.TAGS).personal_tag("default", "email", "ada@x.org"),
        }

        assert {codec.personal_tag("default", "email", "ada@x.org")} == found
        assert (4, set()) == (len(others), others & found)
        assert "ada@" not in found.pop()  # a hash may have the letters by chance

    def test_without_a_ring_or_after_its_key_is_shredded_there_is_none(self):
        ring = MemoryKeyRing()
        codec = codec_with(self.TAGS, ring)
        tags_of(codec, ADA)
        ring.shred("default", TAGS_SUBJECT)
        for each in (codec, Codec(codec.types)):
            with pytest.raises(SubjectKeyError):
                each.personal_tag("default", "email", "ada@x.org")

    def test_events_are_found_by_it(self, make_account_store):
        ring = MemoryKeyRing()
        codec = codec_with(self.TAGS, ring)
        store = make_account_store(types=codec.types, keyring=ring, deciders=[])
        store.append("user-1", ADA)
        store.append("user-2", Occurrence(EventData("user.seen", {}), tags=(
            personal_tag("email", "ada@x.org"),)))  # fmt: skip
        tag = store.personal_tag("email", "ada@x.org")
        ring.shred("default", "1")

        assert ["user-1", "user-2"] == [found.stream for found in store.read(tagged(tag))]
        assert "ada@x" not in str([found.stored for found in store.read_all()])
