"""What a stream, tenant, tag, type or key may be called, and what an append may ask for."""

from __future__ import annotations

import sys
import unicodedata
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import BatchRefusedError, EventRefusedError, NameRefusedError
from eventstore.model.event import (
    EVENT_BYTES_MAX,
    EVENTS_MAX,
    STREAMS_MAX,
    AppendRequest,
    Idempotency,
    IntegrationEvent,
    NewEvent,
    StreamAppend,
    digest_of,
)
from eventstore.model.expected_version import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    accepts,
    check_expected_version,
)
from eventstore.model.names import (
    STREAM_BYTES_MAX,
    category_of,
    check_category,
    check_stream,
    check_tag,
    check_tenant,
    check_type,
)
from eventstore.model.query import Condition, Query, QueryItem, tagged
from eventstore.model.token import Token

COMBINING = "order-e" + chr(0x301)


def event(**more) -> NewEvent:
    given = {"data": b"{}", "event_id": uuid4(), "occurred_at": datetime.now(UTC)}
    return NewEvent("note.made", **{**given, **more})


@pytest.mark.parametrize(
    "name", ["order-1", "order-a-b-c", "catalog", "order-Zürich", "o_2-" + "x" * 200, "order-日本"]
)
def test_a_stream_has_a_category_and_an_identity(name):
    assert name == check_stream(name)
    assert name.split("-")[0] == category_of(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " order-1",
        "order-1 ",
        "$system-1",
        "order-",
        "-1",
        "1order-1",
        "or der-1",
        "order-\0",
        "order-\n1",
        "order-\x7f",
        "../etc-passwd",
        "order-../1",
        "order-" + "x" * STREAM_BYTES_MAX,
        COMBINING,
        "order-" + chr(0x200B),
        "order-" + chr(0x202E) + "1",
        "order-" + chr(0xD800),
        "order-" + chr(0xAD),
        "order-p" + chr(0x430) + "y",
        None,
        7,
        b"order-1",
        ["order-1"],
    ],
    ids=repr,
)
def test_a_stream_is_refused(name):
    with pytest.raises(NameRefusedError) as refused:
        check_stream(name)

    assert refused.value.code == "HW-E001"


@given(st.text(max_size=300))
def test_whatever_is_accepted_is_visible_composed_and_short(text):
    name = f"order-{text}"
    try:
        check_stream(name)
    except NameRefusedError:
        return

    assert name == unicodedata.normalize("NFC", name)
    assert len(name.encode()) <= STREAM_BYTES_MAX
    assert not any(unicodedata.category(c) in {"Cc", "Cf", "Cs"} for c in name)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (check_tenant, "acme.eu-1", ["", "a b", "-a", "x" * 64, "ü", None]),
        (check_category, "order", ["", "order-1", "1", "$x"]),
        (check_type, "order.placed", ["", "order..placed", "order placed", "$snapshot", ".a"]),
        (check_tag, "customer:c1", ["", " x", "$x", "x" * 300, "a\0b"]),
    ],
    ids=["tenant", "category", "type", "tag"],
)
def test_other_names(check, good, bad):
    assert good == check(good)
    for name in bad:
        with pytest.raises(NameRefusedError):
            check(name)


@pytest.mark.parametrize("version", [ANY, STREAM_EXISTS, NO_STREAM, 1, 2**53])
def test_an_expected_version_is_accepted(version):
    assert version == check_expected_version(version)


@pytest.mark.parametrize(
    "version",
    [-5, -3, 2**53 + 1, sys.maxsize, 1.0, "1", None, True, False, float("nan")],
    ids=repr,
)
def test_nonsense_for_an_expected_version_is_refused(version):
    with pytest.raises(BatchRefusedError):
        check_expected_version(version)


@pytest.mark.parametrize(
    ("expected", "actual", "accepted"),
    [
        (ANY, 0, True),
        (ANY, 9, True),
        (NO_STREAM, 0, True),
        (NO_STREAM, 1, False),
        (STREAM_EXISTS, 0, False),
        (STREAM_EXISTS, 1, True),
        (3, 3, True),
        (3, 2, False),
    ],
)
def test_what_an_expected_version_accepts(expected, actual, accepted):
    assert accepted == accepts(expected, actual)


@pytest.mark.parametrize(
    "wrong",
    [
        {"occurred_at": datetime(2026, 1, 1)},  # noqa: DTZ001  # it has no offset: that is the case
        {"data": b"x" * (EVENT_BYTES_MAX + 1)},
        {"schema_version": 0},
        {"schema_version": 2**15},
        {"tags": ("a", "a")},
        {"tags": tuple(f"t{n}" for n in range(21))},
    ],
    ids=["naive time", "too large", "version 0", "version too high", "tag twice", "too many tags"],
)
def test_an_event_is_refused(wrong):
    with pytest.raises(EventRefusedError):
        event(**wrong)


def test_appends_are_refused_that_say_nothing_or_too_much():
    once = StreamAppend("order-1", (event(),))
    many = tuple(StreamAppend(f"order-{n}", (event(),)) for n in range(STREAMS_MAX + 1))
    same = event()
    for appends in ((), (once, once), many, (StreamAppend("order-1", ()),)):
        with pytest.raises(BatchRefusedError):
            AppendRequest(appends)
    with pytest.raises(BatchRefusedError):
        AppendRequest((StreamAppend("order-1", (same,) * (EVENTS_MAX + 1)),))


def test_an_append_with_a_key_may_have_no_events():
    key = Idempotency("k", b"d" * 32)

    assert () == AppendRequest((StreamAppend("order-1", ()),), idempotency=key).appends[0].events


@pytest.mark.parametrize("label", ["correlation_id", "causation_id", "actor"])
def test_labels_are_visible_text(label):
    with pytest.raises(NameRefusedError):
        AppendRequest((StreamAppend("order-1", (event(),)),), **{label: "a\0b"})


def test_a_condition_needs_tags_and_a_position():
    with pytest.raises(BatchRefusedError):
        Condition(Query(), 0)
    with pytest.raises(BatchRefusedError):
        Condition(Query((QueryItem(frozenset({"note.made"})),)), 0)
    with pytest.raises(BatchRefusedError):
        Condition(tagged("a"), -1)
    with pytest.raises(BatchRefusedError):
        Query(tuple(QueryItem() for _ in range(21)))


def test_a_query_means_any_of_its_items_and_all_of_an_items_tags():
    query = Query(
        (QueryItem(frozenset({"a.b"}), frozenset({"x", "y"})), QueryItem(frozenset({"c.d"}))),
        category="order",
    )

    assert query.matches("order", "a.b", frozenset({"x", "y", "z"}))
    assert query.matches("order", "c.d", frozenset())
    assert not query.matches("order", "a.b", frozenset({"x"}))
    assert not query.matches("other", "c.d", frozenset())


def test_an_idempotency_digest_is_of_the_payload_and_of_nothing_else():
    def digest(**more) -> bytes:
        append = StreamAppend("order-1", (event(**more),))
        return digest_of(AppendRequest((append,)))

    assert digest() == digest()
    assert digest(tags=("a", "b")) == digest(tags=("b", "a"))
    assert 4 == len({digest(), digest(data=b"[]"), digest(schema_version=2), digest(tags=("a",))})


def test_an_integration_event_is_checked_like_an_event():
    with pytest.raises(NameRefusedError):
        IntegrationEvent("order placed", b"{}", "order-1", uuid4())
    with pytest.raises(NameRefusedError):
        IntegrationEvent("order.placed", b"{}", "order-1", uuid4(), topic="a.b")
    for payload in (b"", b"x" * (EVENT_BYTES_MAX + 1)):
        with pytest.raises(EventRefusedError):
            IntegrationEvent("order.placed", payload, "order-1", uuid4())


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_token_reads_back(position, transaction):
    token = Token(position, transaction)

    assert token == Token.parse(str(token))


@pytest.mark.parametrize("text", ["", "hw1.1", "hw2.1.1", "hw1.-1.1", "hw1.1.1 ", "hw1.x.1"])
def test_other_text_is_no_token(text):
    with pytest.raises(BatchRefusedError):
        Token.parse(text)
