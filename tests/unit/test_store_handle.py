"""A store over the log in memory: commands, races, keys, and what is appended beside events."""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from fix_account import (
    Account,
    BlockingStore,
    Deposit,
    Deposited,
    Empty,
    HookedLog,
    Open,
    Opened,
    Overdrawn,
    Withdraw,
    Withdrawn,
    account,
    decide,
    types,
)
from hypothesis import given
from hypothesis import strategies as st

from eventstore import (
    ANY,
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
    ResultUnknownError,
    StoreUnavailableError,
    StreamPart,
    SubjectKeyError,
    Token,
    UndeclaredError,
    WaitTimeoutError,
    WrongExpectedVersionError,
    tagged,
)
from eventstore.idempotency import command_digest, keyed_event_id, made_under
from eventstore.keyring import MemoryKeyRing
from eventstore.memory import AsyncMemoryEventLog, MemoryEventLog
from eventstore.operation import PAUSE_S_MAX, pause_after


@pytest.fixture
def log():
    return HookedLog()


@pytest.fixture(params=["blocking", "asyncio"])
def make_store(request, log):
    """Makes the same store twice: over the log, and for asyncio over the same log."""
    ends = []

    def make(**options):
        options = {"types": types, "deciders": [account()], **options}
        if request.param == "blocking":
            return EventStore(log, **options)
        store = BlockingStore(AsyncMemoryEventLog(log), **options)
        ends.append(store.end)
        return store

    yield make
    for end in ends:
        end()


@pytest.fixture
def store(make_store):
    return make_store()


def events_of(store, stream="account-a"):
    return [found.event for found in store.read_stream(stream)]


def again(hooks, name, hook):
    """Puts a hook that stays."""

    def run():
        hook()
        hooks[name] = run

    hooks[name] = run


def test_a_command_becomes_events(store):
    handled = store.handle(Deposit("a", 5, times=2))

    assert (Deposited("a", 5), Deposited("a", 5)) == handled.events
    assert (2, Token(2), False) == (handled.version, handled.token, handled.repeated)
    assert [Deposited("a", 5), Deposited("a", 5)] == events_of(store)


def test_a_command_is_decided_by_what_happened(store):
    store.handle(Deposit("a", 5))

    assert (Withdrawn("a", 5),) == store.handle(Withdraw("a", 5)).events
    with pytest.raises(Overdrawn):
        store.handle(Withdraw("a", 1))
    assert [Deposited("a", 5), Withdrawn("a", 5)] == events_of(store)


def test_a_rejection_is_the_domain_s_own(store):
    with pytest.raises(Overdrawn, match="less than 1") as rejected:
        store.handle(Withdraw("a", 1))

    assert Overdrawn is type(rejected.value)
    assert [] == events_of(store)


def test_a_command_that_changes_nothing_answers_with_where_the_stream_is(store):
    store.handle(Deposit("a", 5))
    store.handle(Withdraw("a", 5))
    store.handle(Deposit("b", 1))

    handled = store.handle(Empty("a"))

    assert ((), 2, Token(2)) == (handled.events, handled.version, handled.token)
    assert ((), 0, Token(0)) == tuple(
        getattr(store.handle(Empty("c")), name) for name in ("events", "version", "token")
    )
    assert 3 == len(list(store.read_all()))


def test_a_command_that_lost_a_race_is_decided_again(log, make_store):
    states = []

    def watched(command, state):
        states.append(state.balance)
        return decide(command, state)

    store = make_store(deciders=[account(decide=watched)])
    store.append("account-a", Deposited("a", 10))
    log.before["append"] = lambda: MemoryEventLog.append(
        log, append_of(store, "account-a", Withdrawn("a", 4))
    )

    handled = store.handle(Empty("a"))

    assert [10, 6] == states
    assert ((Withdrawn("a", 6),), 3) == (handled.events, handled.version)
    assert [Deposited("a", 10), Withdrawn("a", 4), Withdrawn("a", 6)] == events_of(store)


def append_of(store, stream, *events):
    from eventstore.event import AppendRequest, StreamAppend

    encode = store.codec.encode
    encoded = tuple(encode(e, tenant=store.tenant, stream=stream) for e in events)
    return AppendRequest((StreamAppend(stream, encoded),), store.tenant)


def always_faster(log, store):
    again(
        log.before,
        "append",
        lambda: MemoryEventLog.append(log, append_of(store, "account-a", Deposited("a", 1))),
    )


def test_a_command_that_loses_every_race_gives_up_within_its_bound(log, store):
    always_faster(log, store)

    with pytest.raises(ContentionError, match="Deposit lost") as lost:
        store.handle(Deposit("a", 100), attempts_max=3)

    assert "3 attempts" == lost.value.detail
    assert isinstance(lost.value.__cause__, WrongExpectedVersionError)
    assert [Deposited("a", 1)] * 3 == events_of(store)


def test_with_an_exact_version_nothing_is_tried_again(log, store):
    always_faster(log, store)

    with pytest.raises(WrongExpectedVersionError) as wrong:
        store.handle(Deposit("a", 100), expected_version=NO_STREAM)

    assert (0, 1) == (wrong.value.expected, wrong.value.actual)
    assert ["read_stream", "append"] == log.calls


@pytest.mark.parametrize(
    ("expected_version", "fits"),
    [(ANY, True), (STREAM_EXISTS, True), (2, True), (NO_STREAM, False), (1, False), (3, False)],
)
def test_a_command_can_say_where_its_stream_should_be(store, expected_version, fits):
    store.handle(Deposit("a", 5, times=2))

    if fits:
        handled = store.handle(Deposit("a", 1), expected_version=expected_version)

        assert 3 == handled.version
        return
    with pytest.raises(WrongExpectedVersionError) as wrong:
        store.handle(Deposit("a", 1), expected_version=expected_version)
    assert (expected_version, 2) == (wrong.value.expected, wrong.value.actual)
    assert 2 == len(events_of(store))


def test_a_command_to_a_stream_that_should_exist_is_refused_where_there_is_none(log, store):
    with pytest.raises(WrongExpectedVersionError) as wrong:
        store.handle(Deposit("a", 1), expected_version=STREAM_EXISTS)

    assert (STREAM_EXISTS, 0) == (wrong.value.expected, wrong.value.actual)
    assert 0 == log.calls.count("append")


def test_a_command_to_a_stream_that_exists_is_tried_again(log, store):
    store.handle(Deposit("a", 1))
    log.before["append"] = lambda: MemoryEventLog.append(
        log, append_of(store, "account-a", Deposited("a", 2))
    )

    assert 3 == store.handle(Deposit("a", 3), expected_version=STREAM_EXISTS).version


@pytest.mark.parametrize("expected_version", [True, -3, 1.0, "1", None], ids=repr)
def test_an_expected_version_that_is_none_is_refused(store, expected_version):
    with pytest.raises(BatchRefusedError):
        store.handle(Deposit("a", 1), expected_version=expected_version)
    with pytest.raises(BatchRefusedError):
        store.append("account-a", Deposited("a", 1), expected_version=expected_version)


@pytest.mark.parametrize("attempts_max", [0, True, None, 1.5], ids=repr)
def test_a_bound_that_is_none_is_refused(store, attempts_max):
    with pytest.raises(BatchRefusedError):
        store.handle(Deposit("a", 1), attempts_max=attempts_max)


def test_a_key_makes_a_command_happen_once(store):
    store.handle(Deposit("a", 1))
    first = store.handle(Deposit("a", 5, times=20), idempotency_key="k")
    store.handle(Deposit("a", 1))

    second = store.handle(Deposit("a", 5, times=20), idempotency_key="k")

    assert (False, True) == (first.repeated, second.repeated)
    assert (first.events, first.version, first.token) == (
        second.events,
        second.version,
        second.token,
    )
    assert 22 == len(events_of(store))


def test_a_repeated_key_answers_although_the_command_would_be_rejected_now(store):
    store.handle(Deposit("a", 5))
    first = store.handle(Withdraw("a", 5), idempotency_key="k")

    second = store.handle(Withdraw("a", 5), idempotency_key="k", expected_version=NO_STREAM)

    assert (first.events, 2, True) == (second.events, second.version, second.repeated)


def test_a_key_for_another_command_is_a_conflict_whatever_is_expected(store):
    store.handle(Deposit("a", 5), idempotency_key="k")

    for command in (Deposit("a", 6), Deposit("b", 5), Withdraw("a", 5)):
        with pytest.raises(IdempotencyConflictError):
            store.handle(command, idempotency_key="k", expected_version=77)
    assert 1 == len(list(store.read_all()))


def test_a_command_without_events_has_its_key_recorded(store):
    store.handle(Deposit("a", 5))
    store.handle(Withdraw("a", 5))
    first = store.handle(Empty("a"), idempotency_key="k")
    store.handle(Deposit("a", 5))

    second = store.handle(Empty("a"), idempotency_key="k")

    assert ((), 2, False) == (first.events, first.version, first.repeated)
    assert ((), 2, True) == (second.events, second.version, second.repeated)
    assert 3 == len(events_of(store))


@pytest.mark.parametrize("moment", ["before reading", "before appending"])
@pytest.mark.parametrize(
    ("expected_version", "command"),
    [(ANY, Withdraw("a", 5)), (1, Withdraw("a", 5)), (ANY, Deposit("a", 5))],
    ids=["a command", "with a version", "another command"],
)
def test_a_command_that_is_done_meanwhile_by_its_twin_is_repeated(
    log, make_store, moment, expected_version, command
):
    store, twin = make_store(), EventStore(log, types=types, deciders=[account()])
    store.append("account-a", Deposited("a", 5))
    first = []
    hooks, name = {
        "before reading": (log.after, "result_of"),
        "before appending": (log.after, "read_stream"),
    }[moment]
    hooks[name] = lambda: first.append(twin.handle(command, idempotency_key="k"))

    second = store.handle(command, idempotency_key="k", expected_version=expected_version)

    assert (first[0].events, first[0].version, True) == (
        second.events,
        second.version,
        second.repeated,
    )
    assert 2 == len(events_of(store))


def test_events_of_a_key_are_told_from_those_beside_them(store):
    store.handle(Deposit("a", 1, times=2), idempotency_key="k1")
    store.handle(Deposit("a", 2, times=2), idempotency_key="k2")

    repeated = store.handle(Deposit("a", 2, times=2), idempotency_key="k2")

    assert (Deposited("a", 2), Deposited("a", 2)) == repeated.events


def unknown():
    return ResultUnknownError("the connection broke while a commit was under way")


def fail(error):
    def hook():
        raise error

    return hook


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_is_asked_for_again_by_the_key(log, store, moment):
    getattr(log, moment)["append"] = fail(unknown())

    handled = store.handle(Deposit("a", 5), idempotency_key="k", expected_version=NO_STREAM)

    assert ((Deposited("a", 5),), 1) == (handled.events, handled.version)
    assert (moment == "after") == handled.repeated
    assert [Deposited("a", 5)] == events_of(store)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_without_a_key_is_said_to_be_unknown(log, store, moment):
    getattr(log, moment)["append"] = fail(unknown())

    with pytest.raises(ResultUnknownError):
        store.handle(Deposit("a", 5))

    assert 1 == log.calls.count("append")


def test_a_lost_answer_stays_unknown_if_the_database_does_not_come_back(log, store):
    def break_down():
        again(log.before, "result_of", fail(StoreUnavailableError("the database is away")))
        raise unknown()

    log.after["append"] = break_down

    with pytest.raises(ResultUnknownError):
        store.handle(Deposit("a", 5), idempotency_key="k")


def test_contention_in_the_database_is_tried_again_but_not_with_an_exact_version(log, store):
    log.before["append"] = fail(ContentionError("deadlock"))

    assert 1 == store.handle(Deposit("a", 5)).version

    log.before["append"] = fail(ContentionError("deadlock"))
    with pytest.raises(ContentionError, match="deadlock"):
        store.handle(Deposit("a", 5), expected_version=1)
    assert 1 == len(events_of(store))


def test_an_unavailable_database_is_not_asked_again(log, store):
    again(log.before, "read_stream", fail(StoreUnavailableError("away")))

    with pytest.raises(StoreUnavailableError, match="away"):
        store.handle(Deposit("a", 5))

    assert ["read_stream"] == log.calls


@given(attempts=st.integers(min_value=1, max_value=10_000))
def test_a_pause_is_never_longer_than_its_bound(attempts):
    assert 0 <= pause_after(attempts).seconds <= PAUSE_S_MAX


def test_a_store_that_is_closed_stops_trying(log):
    store = EventStore(log, types=types, deciders=[account()])
    again(
        log.before,
        "append",
        lambda: (
            store.close(),
            MemoryEventLog.append(log, append_of(store, "account-a", Deposited("a", 1))),
        ),
    )

    with pytest.raises(ContentionError, match="lost against faster writers"):
        store.handle(Deposit("a", 5))

    assert 1 == log.calls.count("append")


def test_a_command_that_nobody_takes_is_named_with_those_that_are_near(store):
    @dataclass(frozen=True)
    class Deposite:
        account_id: str

    with pytest.raises(UndeclaredError) as undeclared:
        store.handle(Deposite("a"))

    assert "Deposit" in undeclared.value.detail


def test_a_command_has_one_decider(make_store):
    with pytest.raises(UndeclaredError, match="two deciders"):
        make_store(deciders=[account(), account(category="other")])


def test_an_id_that_names_no_stream_is_refused(store):
    with pytest.raises(NameRefusedError):
        store.handle(Deposit("", 1))


def test_tenants_do_not_see_each_other(store):
    other = store.for_tenant("other")
    store.handle(Deposit("a", 1), idempotency_key="k")
    other.handle(Deposit("a", 2), idempotency_key="k")

    assert ("default", "other") == (store.tenant, other.tenant)
    assert [Deposited("a", 1)] == events_of(store)
    assert [Deposited("a", 2)] == events_of(other)
    with pytest.raises(NameRefusedError):
        store.for_tenant("")


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


def test_a_digest_tells_commands_apart_exactly():
    codec = EventStore(MemoryEventLog(), types=types).codec

    @dataclass(frozen=True)
    class Anything:
        value: object

    values = [None, True, 1, 1.0, "1", "", [], {}, [1], {"a": 1}, {"a": 2}, b"1"]
    digests = {command_digest(codec, "default", Anything(value)) for value in values}

    assert len(values) == len(digests)
    assert command_digest(codec, "default", Anything({"a": 1, "b": 2})) == command_digest(
        codec, "default", Anything({"b": 2, "a": 1})
    )
    for value in (float("nan"), object(), datetime(2026, 1, 1)):  # noqa: DTZ001
        with pytest.raises(BatchRefusedError):
            command_digest(codec, "default", Anything(value))


@given(tenant=st.text(), key=st.text(), place=st.integers(0, 10_000))
def test_an_id_made_under_a_key_is_known_again(tenant, key, place):
    made = keyed_event_id(tenant, key, place)

    assert (7, "specified in RFC 4122") == (made.version, made.variant)
    assert made_under(made, tenant, key, place)
    assert not made_under(made, tenant, key, place + 1)
    assert not made_under(made, tenant, key + "x", place)
    assert not made_under(made, tenant + "x", key, place)
    assert made != keyed_event_id(tenant, key, place) or isinstance(made, UUID)


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
        "heavy = {'psycopg', 'sqlalchemy', 'cryptography', 'alembic', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "import doctest\n"
        "names = {'__name__': '__main__'}\n"
        "print(doctest.testmod(eventstore, globs=names))\n"
    )
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    loaded, result = run.stdout.splitlines()
    assert "[]" == loaded
    assert result.startswith("TestResults(failed=0, attempted=1")
