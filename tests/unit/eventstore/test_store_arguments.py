"""Arguments of a store that are of another kind: a typed error that says what was meant."""

from __future__ import annotations

import math
from datetime import date
from uuid import uuid4

import pytest

from eventstore import (
    BatchRefusedError,
    Context,
    EventData,
    EventRefusedError,
    EventTypes,
    IntegrationEvent,
    LogPart,
    NameRefusedError,
    Occurrence,
    QueryItem,
    StreamPart,
    Token,
    WrongKindError,
    tagged,
)
from eventstore.log import POSITION_MAX
from eventstore.memory import MemoryEventLog
from eventstore.model.names import check_key, check_label
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.subscription.reaching import Reaching
from tests.fix_account import Deposit, Deposited, Opened, account, append_of


@pytest.fixture
def store(make_account_store):
    return make_account_store(keyring=MemoryKeyRing())


DEPOSITED = Deposited("a", 1)


def message() -> IntegrationEvent:
    return IntegrationEvent("account-grown", b"{}", "account-a", uuid4())


@pytest.mark.parametrize("context", [None, "ada", {"actor": "ada"}, Context])
def test_a_context_of_another_kind_is_refused(store, context):
    for call in (
        lambda: store.append("account-a", DEPOSITED, context=context),
        lambda: store.append_all({"account-a": DEPOSITED}, context=context),
        lambda: store.handle(Deposit("a", 1), context=context),
    ):
        with pytest.raises(WrongKindError) as raised:
            call()
        assert "context" in raised.value.message
        assert "ada" not in str(raised.value.detail)

    assert [] == list(store.read_stream("account-a"))


@pytest.mark.parametrize("outbox", [None, "text", 5])
def test_an_outbox_of_another_kind_is_refused(store, outbox):
    with pytest.raises(WrongKindError):
        store.append("account-a", DEPOSITED, outbox=outbox)


def test_one_message_is_no_outbox(store):
    with pytest.raises(WrongKindError) as raised:
        store.append("account-a", DEPOSITED, outbox=message())

    assert "outbox=[message]" in raised.value.hint


def test_an_append_that_is_repeated_sends_messages_and_tags_of_a_generator(account_log, store):
    store.append("account-a", DEPOSITED)
    account_log.before["append"] = lambda: MemoryEventLog.append(
        account_log, append_of(store, "account-a", Deposited("a", 2))
    )
    occurrence = Occurrence(Opened("a", "Ada"), tags=(tag for tag in ["branch:7"]))

    store.append("account-a", occurrence, outbox=(each for each in [message()]))

    sent = [each.message.type for each in account_log.sent]
    assert "account-grown" in sent
    assert ["account-a"] == [found.stream for found in store.read(tagged("branch:7"))]


@pytest.mark.parametrize("part", [None, 5, "text", StreamPart(), StreamPart])
def test_a_part_of_the_log_of_another_kind_is_refused(store, part):
    for read in (
        lambda: store.read_all(part),
        lambda: store.read_category("account", part),
        lambda: store.read(tagged("a:1"), part),
    ):
        with pytest.raises(WrongKindError) as raised:
            next(read(), None)
        assert "LogPart" in raised.value.message


@pytest.mark.parametrize("part", [None, 5, LogPart(), StreamPart])
def test_a_part_of_a_stream_of_another_kind_is_refused(store, part):
    with pytest.raises(WrongKindError) as raised:
        next(store.read_stream("account-a", part), None)

    assert "StreamPart" in raised.value.message


@pytest.mark.parametrize("query", [None, "a:1", QueryItem(tags=frozenset({"a:1"}))])
def test_a_query_of_another_kind_is_refused(store, query):
    with pytest.raises(WrongKindError):
        next(store.read(query), None)
    with pytest.raises(WrongKindError):
        store.read_boundary(query)
    if query is not None:
        with pytest.raises(WrongKindError):
            store.handle(Deposit("a", 1), boundary=query)


def test_no_category_is_not_every_category(store):
    store.append("account-a", DEPOSITED)

    with pytest.raises(NameRefusedError):
        next(store.read_category(None))


@pytest.mark.parametrize("instant", ["2026-01-31", date(2026, 1, 31), 1769817600])
def test_an_instant_that_is_no_datetime_is_refused(store, instant):
    for made in (
        lambda: Context(occurred_at=instant),
        lambda: Occurrence(DEPOSITED, occurred_at=instant),
        lambda: StreamPart(as_of=instant),
        lambda: store.state(account(), "a", as_of=instant),
    ):
        with pytest.raises(WrongKindError) as raised:
            made()
        assert "datetime" in raised.value.message


@pytest.mark.parametrize("timeout_s", [None, "1", math.nan, True])
def test_a_timeout_that_is_no_number_is_refused(store, timeout_s):
    """A wait for NaN seconds would never be over."""
    with pytest.raises(BatchRefusedError) as raised:
        store.wait_for(Token(99), timeout_s)
    assert "timeout_s" in raised.value.detail
    with pytest.raises(BatchRefusedError):
        Reaching("default", "view", Token(99), timeout_s)


@pytest.mark.parametrize("token", [None, "hw1.1.0", 1])
def test_a_token_of_another_kind_is_refused(store, token):
    with pytest.raises(WrongKindError) as raised:
        store.wait_for(token, 1)
    assert "Token.parse" in raised.value.hint
    with pytest.raises(WrongKindError):
        Reaching("default", "view", token, 1)


@pytest.mark.parametrize("text", [None, 5, b"hw1.1.0", f"hw1.{POSITION_MAX + 1}.0"])
def test_what_is_no_text_of_a_token_is_refused(text):
    with pytest.raises(BatchRefusedError):
        Token.parse(text)


@pytest.mark.parametrize("tags", ["branch:7", 7, Occurrence])
def test_tags_of_an_occurrence_that_are_no_collection_are_refused(tags):
    with pytest.raises(WrongKindError):
        Occurrence(DEPOSITED, tags=tags)


@pytest.mark.parametrize("tags", [[["branch:7"]], [None], [{"branch": 7}]])
def test_a_tag_that_is_no_text_is_refused(store, tags):
    with pytest.raises(NameRefusedError):
        store.append("account-a", Occurrence(DEPOSITED, tags=tags))


def test_a_tags_function_that_returns_nothing_is_refused(make_account_store):
    types = EventTypes()

    @types.event("account.noted", tags=lambda _: None)
    class Noted:
        text: str

    with pytest.raises(EventRefusedError) as raised:
        make_account_store(types=types, deciders=()).append("account-a", Noted("secret"))

    assert "NoneType" in raised.value.detail
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("version", ["1", True, None, 0, 2**15])
def test_a_version_that_is_no_number_is_refused(store, version):
    with pytest.raises(EventRefusedError):
        store.append("account-a", EventData("account.noted", {}, version=version))


def test_the_names_of_things_have_their_article():
    for check in (lambda: check_key(""), lambda: check_label("actor", "")):
        with pytest.raises(NameRefusedError) as raised:
            check()
        assert raised.value.message.startswith("an ")
