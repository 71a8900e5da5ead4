"""A store over the log in memory: commands, races, keys, and what is appended beside events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    BatchRefusedError,
    ContentionError,
    EventStore,
    IdempotencyConflictError,
    NameRefusedError,
    ResultUnknownError,
    StoreUnavailableError,
    Token,
    UndeclaredError,
    WrongExpectedVersionError,
)
from eventstore.memory import MemoryEventLog
from eventstore.planning.idempotency import command_digest, keyed_event_id, made_under
from eventstore.planning.operation import PAUSE_S_MAX, pause_after
from tests.fix_account import (
    Deposit,
    Deposited,
    Empty,
    Overdrawn,
    Withdraw,
    Withdrawn,
    account,
    again,
    always_faster,
    append_of,
    decide,
    events_of,
    types,
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
    return ResultUnknownError("the connection broke during a commit")


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

    with pytest.raises(ContentionError, match="lost repeatedly to concurrent writers"):
        store.handle(Deposit("a", 5))

    assert 1 == log.calls.count("append")


def test_a_command_that_nobody_takes_is_named_with_those_that_are_near(store):
    @dataclass(frozen=True)
    class Deposite:
        account_id: str

    with pytest.raises(UndeclaredError) as undeclared:
        store.handle(Deposite("a"))

    assert "did you mean Deposit?" == undeclared.value.hint


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
