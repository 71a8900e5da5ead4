"""Old versions become the latest one when they are read."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from eventstore.errors import StoreUnavailableError, SubjectKeyError, UndeclaredError, UpcastError
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.privacy.personal import Personal, Redacted
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventData, EventTypes
from eventstore.upkeep.upcast_check import Verdict, check_log
from tests.fix_stored import STREAM, TENANT, stored

SUBJECT = "c1"


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str


def latest_types() -> EventTypes:
    """Version 1 had cents, version 2 a decimal, version 3 has a currency as well."""
    types = EventTypes()

    @types.event("order.placed", version=3)
    class OrderPlaced:
        order_id: str
        total: Money

    @OrderPlaced.upcast(from_version=1)
    def cents_become_a_decimal(data: dict[str, Any]) -> dict[str, Any]:
        data["total"] = Decimal(data.pop("cents")) / 100
        return data

    @OrderPlaced.upcast(from_version=2)
    def an_amount_gets_its_currency(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "total": {"amount": data["total"], "currency": "EUR"}}

    return types


def old(version: int, data: dict[str, Any], types: EventTypes | None = None):
    """An event that an older program wrote."""
    event = EventData("order.placed", data, version)
    return stored(Codec(types or EventTypes()).encode(event, tenant=TENANT, stream=STREAM))


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (1, {"order_id": "o1", "cents": 110}),
        (2, {"order_id": "o1", "total": "1.1"}),
        (3, {"order_id": "o1", "total": {"amount": "1.1", "currency": "EUR"}}),
    ],
    ids=["1", "2", "3"],
)
def test_every_version_reads_as_the_latest(version, data):
    codec = Codec(latest_types())
    event = old(version, data)
    read = codec.decode(event)

    assert ("o1", Money(Decimal("1.1"), "EUR")) == (read.order_id, read.total)
    assert read == codec.decode(event)
    assert "EUR" == codec.payload(event)["total"]["currency"]


def test_a_version_without_a_path_is_told():
    types = EventTypes()
    types.untyped("order.placed", version=3)
    types.upcaster("order.placed", 1)(lambda data: data)

    with pytest.raises(UndeclaredError, match="no upcaster converts version 2"):
        Codec(types).decode(old(1, {}))


def test_types_without_a_class_are_upcast_as_well():
    types = EventTypes()
    types.untyped("order.placed", version=2)
    types.upcaster("order.placed", 1)(lambda data: {**data, "more": True})

    assert EventData("order.placed", {"a": 1, "more": True}, 2) == Codec(types).decode(
        old(1, {"a": 1})
    )


def failing(data: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(f"s3cret {data}")


@pytest.mark.parametrize(
    ("upcaster", "said"),
    [
        (failing, "raised ValueError at test_upcasting.py:"),
        (lambda data: data["s3cret"], "raised KeyError at test_upcasting.py:"),
        (lambda _: None, "returned NoneType, not dict"),
        (lambda data: [data], "returned list, not dict"),
    ],
    ids=["raises", "misses", "nothing", "list"],
)
def test_an_upcaster_that_fails_is_named_without_the_payload(upcaster, said):
    types = EventTypes()
    types.untyped("order.placed", version=3)
    types.upcaster("order.placed", 1)(lambda data: data)
    types.upcaster("order.placed", 2)(upcaster)
    event = old(1, {"name": "s3cret"})
    with pytest.raises(UpcastError) as caught:
        Codec(types).decode(event)

    assert "event order.placed cannot be upcast to its latest version" == str(caught.value)
    assert caught.value.detail.startswith(f"the upcaster from version 2 {said}")
    assert caught.value.detail.endswith("; global position 7")
    assert "s3cret" not in caught.value.detail + "".join(traceback.format_exception(caught.value))


def test_an_upcaster_that_makes_what_the_class_does_not_take_is_told():
    types = latest_types()
    with pytest.raises(UpcastError, match="does not fit its class") as caught:
        Codec(types).decode(old(2, {"order_id": "o1", "total": ["s3cret"]}))

    assert caught.value.detail.startswith("total.amount: expected decimal, got array; version 2")


def personal_types() -> EventTypes:
    """The mail address was open in version 1, sealed as `mail` in 2, and is `email` in 3."""
    types = EventTypes()

    @types.event("customer.registered", version=3, subject="customer_id")
    class Registered:
        customer_id: str
        email: Personal[str]
        name: Personal[str | None] = None

    @Registered.upcast(from_version=1, personal=())
    def nothing_but_its_sealing_changed(data: dict[str, Any]) -> dict[str, Any]:
        return data

    @Registered.upcast(from_version=2, personal=["mail"])
    def mail_is_named_email(data: dict[str, Any]) -> dict[str, Any]:
        data["email"] = data.pop("mail")
        return data

    return types


def older_types(personal: bool) -> EventTypes:
    types = EventTypes()

    if not personal:
        types.untyped("customer.registered")
        return types

    @types.event("customer.registered", version=2, subject="customer")
    class Registered:
        customer: str
        customer_id: str
        mail: Personal[str]

    return types


def registered(ring: MemoryKeyRing):
    types = older_types(personal=True)
    cls = types.named("customer.registered").cls
    new = Codec(types, ring).encode(
        cls(SUBJECT, SUBJECT, "a@b.c"), tenant=TENANT, stream=STREAM, stream_position=1
    )
    return stored(new)


def test_a_personal_field_is_renamed():
    """Its ciphertext is bound to the old name, and its key was found by another field."""
    ring = MemoryKeyRing()
    codec = Codec(personal_types(), ring)
    event = registered(ring)

    assert "a@b.c" == codec.decode(event).email
    ring.shred(TENANT, SUBJECT)
    read = codec.decode(event)
    assert Redacted(SUBJECT) == read.email
    assert SUBJECT == read.customer_id
    assert read.name is None


def test_a_field_that_became_personal_is_read_in_plain_text_from_the_version_that_says_so():
    data = {"customer_id": SUBJECT, "mail": "a@b.c"}
    event = EventData("customer.registered", data)
    new = Codec(older_types(personal=False)).encode(event, tenant=TENANT, stream=STREAM)
    codec = Codec(personal_types(), MemoryKeyRing())

    with pytest.raises(SubjectKeyError, match="is not encrypted"):
        codec.decode(stored(new, schema_version=2))
    assert "a@b.c" == codec.decode(stored(new)).email


def test_a_redacted_value_stays_in_a_personal_field():
    ring = MemoryKeyRing()
    event = registered(ring)
    ring.shred(TENANT, SUBJECT)
    for misplaced in (
        lambda data: {**data, "email": data["mail"], "open": data["mail"]},
        lambda data: {**data, "email": data["mail"], "open": {"x": [data["mail"]]}},
    ):
        types = EventTypes()

        @types.event("customer.registered", version=3, subject="customer_id")
        class Registered:
            customer_id: str
            email: Personal[str]
            open: Any

        types.upcaster("customer.registered", 2, personal=["mail"])(
            lambda data, misplaced=misplaced: {
                k: v for k, v in misplaced(data).items() if k != "mail"
            }
        )
        with pytest.raises(UpcastError) as caught:
            Codec(types, ring).decode(event)

        assert "redacted value into field open" in caught.value.detail


class FakeLog:
    """Of the log's methods, the one that a check reads with."""

    def __init__(self, events) -> None:
        self.events = events

    def read_log(self, tenant):
        return iter(e for e in self.events if tenant in {None, e.tenant})


def test_a_check_reads_the_whole_log_and_counts_what_cannot_be_read():
    ring = MemoryKeyRing()
    types = personal_types()
    latest = latest_types()
    types._by_name["order.placed"] = latest.named("order.placed")
    types._upcasters |= latest._upcasters
    types.untyped("note.made", version=2)
    types.upcaster("order.paid", 1)(lambda data: data)
    good = old(1, {"order_id": "o1", "cents": 110})
    events = [
        good,
        good._replace(data=b'{"order_id":"o1"}'),
        registered(ring),
        registered(ring)._replace(stream_position=2),
        good._replace(type="order.lost"),
        good._replace(schema_version=9),
        good._replace(type="note.made"),
        good._replace(type="$snapshot"),
        *[good._replace(data=b"{}")] * 20,
        good._replace(tenant="other"),
    ]
    log = FakeLog([e._replace(global_position=n * 10) for n, e in enumerate(events, 1)])
    report = check_log(log, Codec(types, ring))
    seen = {(each.type, each.version): each for each in report.versions}

    assert not report.ok
    assert (len(events) - 1, len(events) * 10) == (report.events, report.through)
    assert {
        ("customer.registered", 2): (2, 1, Verdict.FAILING, {"HW-E022": 1}),
        ("note.made", 1): (1, 1, Verdict.FAILING, {"HW-E020": 1}),
        ("order.lost", 1): (1, 1, Verdict.UNKNOWN, {"HW-E020": 1}),
        ("order.placed", 1): (23, 21, Verdict.FAILING, {"HW-E021": 21}),
        ("order.placed", 9): (1, 1, Verdict.NEWER, {"HW-E020": 1}),
    } == {
        kind: (each.events, each.failures, each.verdict, dict(each.codes))
        for kind, each in seen.items()
    }
    assert [20, *range(90, 180, 10)] == seen["order.placed", 1].first_failed
    assert "raised KeyError at test_upcasting.py" in seen["order.placed", 1].example
    assert (
        "an upcaster converts version 1 of order.paid, which is unknown",
        "no upcaster converts version 1 of note.made",
    ) == report.undeclared


def test_a_check_of_one_tenant_reads_only_its_events():
    good = old(1, {"order_id": "o1", "cents": 110})
    log = FakeLog([good, good._replace(tenant="other"), good])
    report = check_log(log, Codec(latest_types()), tenant="other")

    assert report.ok
    assert 1 == report.events
    assert (0, 0) == (check_log(log, Codec(latest_types()), tenant="x").events, 0)


def test_a_key_ring_that_does_not_answer_says_nothing_about_an_event():
    class Away(MemoryKeyRing):
        def key_of(self, *_: Any, **__: Any):
            raise StoreUnavailableError("the database is unavailable")

    with pytest.raises(StoreUnavailableError):
        check_log(FakeLog([registered(MemoryKeyRing())]), Codec(personal_types(), Away()))
