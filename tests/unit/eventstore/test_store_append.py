"""A store over the log in memory: what is appended and read, with persons in it or not."""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from eventstore import (
    NO_STREAM,
    STREAM_EXISTS,
    AsyncEventStore,
    BatchRefusedError,
    ConditionFailedError,
    ContentionError,
    Context,
    EventData,
    EventRefusedError,
    EventStore,
    IdempotencyConflictError,
    LogPart,
    NameRefusedError,
    Occurrence,
    Query,
    Redacted,
    StreamPart,
    SubjectKeyError,
    Token,
    UndeclaredError,
    WaitTimeoutError,
    WrongExpectedVersionError,
    tagged,
)
from eventstore.memory import MemoryEventLog
from eventstore.privacy.keyring import MemoryKeyRing
from tests.fix_account import (
    Account,
    Deposit,
    Deposited,
    Open,
    Opened,
    Withdraw,
    Withdrawn,
    account,
    always_faster,
    append_of,
    events_of,
)


@pytest.fixture
def log(account_log):
    return account_log


@pytest.fixture
def make_store(make_account_store):
    return make_account_store


@pytest.fixture
def store(make_store):
    return make_store()


def test_context_is_stored_beside_the_events(store):
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    context = Context("flow", "cause", "ada", at)
    store.handle(Deposit("a", 5), context=context)
    store.append("account-a", Deposited("a", 1), context=context)

    for found in store.read_stream("account-a"):
        assert ("flow", "cause", "ada", at) == (
            found.correlation_id,
            found.causation_id,
            found.actor,
            found.occurred_at,
        )
    assert Context("flow", str(found.event_id), "ada") == Context.caused_by(found)
    with pytest.raises(BatchRefusedError):
        Context(occurred_at=datetime(2026, 1, 31))  # noqa: DTZ001


def test_a_flow_begins_with_the_event_that_has_none(store):
    store.append("account-a", Deposited("a", 1))
    (found,) = store.read_stream("account-a")

    assert Context(str(found.event_id), str(found.event_id), "bob") == Context.caused_by(
        found, actor="bob"
    )


def test_a_public_event_is_sent_once(log, store):
    store.handle(Deposit("a", 5), idempotency_key="k", context=Context("flow"))
    store.handle(Deposit("a", 5), idempotency_key="k")
    store.handle(Withdraw("a", 5))

    (sent,) = log.sent
    (first, _) = store.read_stream("account-a")
    assert ("account.deposited", "account-a", first.event_id, first.data, 1, "flow") == (
        sent.message.type,
        sent.message.stream,
        sent.message.message_id,
        sent.message.payload,
        sent.message.version,
        sent.correlation_id,
    )


def test_events_are_appended_as_they_are_given(store):
    event_id, at = uuid4(), datetime(2026, 1, 31, 12, tzinfo=UTC)
    given_ = [
        Withdrawn("a", 1),
        Occurrence(Withdrawn("a", 2), event_id, at, ("vip",)),
        EventData("account.noted", {"text": "hello"}, version=3),
    ]

    appended = store.append("account-a", given_, expected_version=NO_STREAM)

    first, second, third = store.read_stream("account-a")
    assert 3 == appended.version
    assert (Withdrawn("a", 1), Withdrawn("a", 2)) == (first.event, second.event)
    assert (event_id, at, ("account:a", "vip")) == (
        second.event_id,
        second.occurred_at,
        second.tags,
    )
    assert ("account.noted", 3, b'{"text":"hello"}') == (
        third.type,
        third.schema_version,
        third.data,
    )


def test_what_cannot_be_appended_is_refused_and_nothing_is_written(store):
    wrong = [
        (lambda: store.append("account-a", []), BatchRefusedError),
        (lambda: store.append("account-a", [Deposited("a", 1), Account()]), UndeclaredError),
        (lambda: store.append("account-a", [Deposited("a", 2**64)]), EventRefusedError),
        (lambda: store.append("account-a", "text"), UndeclaredError),
        (lambda: store.append("$all", Deposited("a", 1)), NameRefusedError),
        (lambda: store.append_all(5), BatchRefusedError),
        (lambda: store.append_all([("account-a", [])]), BatchRefusedError),
        (lambda: store.append_all({}), BatchRefusedError),
    ]

    for append, error in wrong:
        with pytest.raises(error):
            append()
    assert [] == list(store.read_all())


def test_several_streams_are_appended_to_at_once_or_not_at_all(store):
    appended = store.append_all({"account-a": [Deposited("a", 1)], "account-b": Deposited("b", 1)})

    assert (1, 1) == appended.versions
    with pytest.raises(WrongExpectedVersionError) as wrong:
        store.append_all(
            [("account-a", [Deposited("a", 2)], 1), ("account-b", [Deposited("b", 2)], 7)]
        )
    assert ("account-b", 7) == (wrong.value.stream, wrong.value.expected)
    assert 2 == len(list(store.read_all()))


def test_a_key_makes_an_append_happen_once(store):
    first = store.append("account-a", Deposited("a", 1), idempotency_key="k")
    second = store.append("account-a", Deposited("a", 1), idempotency_key="k", expected_version=7)

    assert (first.version, first.token, True) == (second.version, second.token, second.repeated)
    with pytest.raises(IdempotencyConflictError):
        store.append("account-a", Deposited("a", 2), idempotency_key="k")


def test_a_boundary_holds_until_an_event_that_it_means_comes_in(store):
    store.append("account-a", Withdrawn("a", 1))
    store.append("account-b", Withdrawn("b", 1))

    events, condition = store.read_boundary(tagged("account:a"))

    assert [Withdrawn("a", 1)] == [found.event for found in events]
    store.append("note-1", EventData("note.made", {}), condition=condition)
    store.append("account-a", Withdrawn("a", 2))
    with pytest.raises(ConditionFailedError):
        store.append("note-1", EventData("note.made", {}), condition=condition)


def test_the_log_is_read_whole_by_category_and_by_query(store):
    store.append("account-a", [Deposited("a", 1), Withdrawn("a", 1)])
    store.append("till-a", Withdrawn("a", 2))

    def read(found):
        return [event.global_position for event in found]

    assert [1, 2, 3] == read(store.read_all())
    assert [3, 2] == read(store.read_all(LogPart(backwards=True, limit=2)))
    assert [1, 2] == read(store.read_category("account"))
    assert [2, 3] == read(store.read(tagged("account:a")))
    assert [3] == read(store.read(tagged("account:a"), LogPart(after=2)))
    assert [2] == read(store.read(Query(tagged("account:a").items, category="account")))
    assert [2] == read(store.read_stream("account-a", StreamPart(after=1)))
    assert [] == read(store.read_stream("account-none"))
    with pytest.raises(NameRefusedError):
        list(store.read_stream(""))
    with pytest.raises(BatchRefusedError):
        list(store.read_stream("account-a", StreamPart(as_of=datetime(2026, 1, 1))))  # noqa: DTZ001


def test_an_event_of_an_unknown_type_is_yielded_and_raises_when_it_is_asked_for(store):
    store.append("account-a", [EventData("account.strange", {"x": 1}), Deposited("a", 1)])

    strange, known = store.read_stream("account-a")

    assert ("account.strange", Deposited("a", 1)) == (strange.type, known.event)
    for _ in range(2):
        with pytest.raises(UndeclaredError):
            strange.event  # noqa: B018
    with pytest.raises(UndeclaredError):
        store.state(account(), "a")
    with pytest.raises(UndeclaredError):
        store.handle(Deposit("a", 1))


def test_a_recorded_event_is_decoded_once_and_shows_no_payload(store):
    store.append("account-a", Deposited("a", 123456))
    (found,) = store.read_stream("account-a")
    (same,) = store.read_all()

    assert found.event is found.event
    assert {"account_id": "a", "amount": 123456} == found.payload
    assert (found, hash(found)) == (same, hash(same))
    assert "123456" not in repr(found)
    assert ("account", {}, (), False) == (found.category, found.headers, found.tags, found.system)
    assert found != found.stored


def test_waiting_for_a_token_ends_when_the_log_has_reached_it(store):
    token = store.handle(Deposit("a", 1)).token

    store.wait_for(token, timeout_s=0)
    with pytest.raises(WaitTimeoutError):
        store.wait_for(Token(2), timeout_s=0.01)


def test_the_state_is_had_at_a_version_and_at_an_instant(make_store, log):
    base = datetime(2026, 1, 1, tzinfo=UTC)
    ticks = iter(base + timedelta(hours=hour) for hour in range(10))
    log._clock = lambda: next(ticks)
    store = make_store()
    for amount in (1, 2, 3):
        store.handle(Deposit("a", amount))

    def balance(**when):
        state = store.state(account(), "a", **when)
        return state.value.balance, state.version

    assert (6, 3) == balance()
    assert [(0, 0), (1, 1), (3, 2), (6, 3)] == [balance(at_version=v) for v in range(4)]
    assert (3, 2) == balance(as_of=base + timedelta(hours=1))
    assert (0, 0) == balance(as_of=base - timedelta(hours=1))
    with pytest.raises(WrongExpectedVersionError) as wrong:
        balance(at_version=4)
    assert (4, 3) == (wrong.value.expected, wrong.value.actual)


@pytest.mark.parametrize(
    "when",
    [
        {"at_version": -1},
        {"at_version": True},
        {"at_version": 1.0},
        {"as_of": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"at_version": 1, "as_of": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
    ids=str,
)
def test_a_time_that_is_none_is_refused(store, when):
    with pytest.raises(BatchRefusedError):
        store.state(account(), "a", **when)


class TestPersonal:
    """Personal fields are bound to their place, so the store finds it."""

    @pytest.fixture
    def keyring(self):
        return MemoryKeyRing()

    @pytest.fixture
    def store(self, make_store, keyring):
        return make_store(keyring=keyring)

    def test_they_are_read_back_wherever_they_were_put(self, store):
        store.append("account-a", [Deposited("a", 1), Opened("a", "Ada")])
        store.append("account-a", Opened("a", "Bob"), expected_version=STREAM_EXISTS)
        store.append("account-a", Opened("a", "Cleo"), expected_version=3)
        store.handle(Open("a", "Dora"))

        assert ["Ada", "Bob", "Cleo", "Dora"] == [
            event.owner for event in events_of(store) if isinstance(event, Opened)
        ]
        assert "Dora" == store.state(account(), "a").value.owner
        assert [] == [found for found in store.read_all() if b"Ada" in found.data]

    def test_an_append_that_lost_its_place_takes_the_next(self, log, store):
        store.append("account-a", Deposited("a", 1))
        log.before["append"] = lambda: MemoryEventLog.append(
            log, append_of(store, "account-a", Deposited("a", 2))
        )

        assert 3 == store.append("account-a", Opened("a", "Ada")).version
        assert Opened("a", "Ada") == events_of(store)[-1]

    def test_an_append_that_never_finds_a_place_gives_up(self, log, store):
        always_faster(log, store)

        with pytest.raises(ContentionError):
            store.append("account-a", Opened("a", "Ada"))

        assert set(map(type, events_of(store))) == {Deposited}

    def test_a_stream_that_should_exist_is_refused_where_there_is_none(self, store):
        with pytest.raises(WrongExpectedVersionError) as wrong:
            store.append("account-a", Opened("a", "Ada"), expected_version=STREAM_EXISTS)

        assert (STREAM_EXISTS, 0) == (wrong.value.expected, wrong.value.actual)

    def test_a_key_answers_first_also_there(self, store):
        first = store.append("account-a", Opened("a", "Ada"), idempotency_key="k")
        second = store.append("account-a", Opened("a", "Ada"), idempotency_key="k")

        assert (1, True) == (second.version, second.repeated)
        assert first.token == second.token
        with pytest.raises(IdempotencyConflictError):
            store.append(
                "account-b",
                Opened("b", "Ada"),
                idempotency_key="k",
                expected_version=STREAM_EXISTS,
            )
        with pytest.raises(IdempotencyConflictError):
            store.append("account-a", Opened("a", "Eve"), idempotency_key="k")

    def test_a_person_in_a_command_is_not_found_out_by_guessing(self, log, store):
        first = store.handle(Open("a", "Ada"), idempotency_key="k")
        second = store.handle(Open("a", "Ada"), idempotency_key="k")

        digest = log.result_of("default", "k").digest
        guess = hashlib.sha256(b'command 4:Open {"account_id":"a","owner":"Ada"}').digest()
        assert (first.events, True) == (second.events, second.repeated)
        assert guess != digest
        with pytest.raises(IdempotencyConflictError):
            store.handle(Open("a", "Eve"), idempotency_key="k")

    def test_such_a_command_with_a_key_needs_a_ring(self, make_store):
        with pytest.raises(SubjectKeyError):
            make_store().handle(Open("a", "Ada"), idempotency_key="k")

    def test_who_is_forgotten_is_redacted_in_the_state(self, store, keyring):
        store.handle(Open("a", "Ada"))
        keyring.shred("default", "a")

        assert Redacted("a") == store.state(account(), "a").value.owner
        assert 2 == store.handle(Deposit("a", 1)).version
        with pytest.raises(SubjectKeyError):
            store.handle(Open("a", "Ada"))


def test_both_stores_have_the_same_methods():
    def methods(store):
        return {
            name: [*inspect.signature(method).parameters]
            for name, method in inspect.getmembers(store, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(EventStore) == methods(AsyncEventStore)


def test_the_example_of_the_package_runs_and_loads_no_driver():
    """In a process of its own: the example declares its event for good."""
    probe = (
        "import sys, eventstore\n"
        "heavy = {'psycopg', 'sqlalchemy', 'cryptography', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "import doctest\n"
        "names = {'__name__': '__main__'}\n"
        "print(doctest.testmod(eventstore, globs=names))\n"
    )
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    loaded, result = run.stdout.splitlines()
    assert "[]" == loaded
    assert result.startswith("TestResults(failed=0, attempted=1")
