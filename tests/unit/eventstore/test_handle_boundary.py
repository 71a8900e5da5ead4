"""A command that is decided by a boundary: its loop, its condition and its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from eventstore import (
    BatchRefusedError,
    ContentionError,
    Decider,
    EventTypes,
    IdempotencyConflictError,
    Query,
    Rejected,
    UndeclaredError,
    WrongExpectedVersionError,
    aggregate,
    evolves,
    handles,
    scenario,
    tagged,
)
from eventstore.memory import MemoryEventLog
from tests.fix_account import HookedLog, again, append_of

types = EventTypes()


@types.event("user.registered", tags=lambda e: [f"email:{e.email}"])
@dataclass(frozen=True)
class Registered:
    user: str
    email: str


@types.event("user.left", tags=lambda e: [f"email:{e.email}"])
@dataclass(frozen=True)
class Left:
    user: str
    email: str


@dataclass(frozen=True)
class Register:
    user: str
    email: str


@dataclass(frozen=True)
class Leave:
    user: str


@dataclass(frozen=True)
class Touch:
    user: str


class EmailTaken(Rejected):
    """Another user has the address."""


@aggregate("user", identity="user")
class User:
    email: str = ""

    @handles
    def register(self, command: Register, seen: tuple[Any, ...]) -> Registered:
        if len([e for e in seen if isinstance(e, Registered)]) > sum(
            isinstance(e, Left) for e in seen
        ):
            raise EmailTaken(command.email)
        return Registered(command.user, command.email)

    @handles
    def leave(self, command: Leave) -> Left:
        return Left(command.user, self.email)

    @handles
    def touch(self, command: Touch, seen: tuple[Any, ...] = ()) -> None:
        """Nothing to do, whatever was seen."""

    @evolves
    def _registered(self, event: Registered | Left) -> None:
        self.email = event.email


A = tagged("email:a@x")


@pytest.fixture
def store(make_account_store):
    return make_account_store(types=types, deciders=[User])


def registered(store):
    return [recorded.stream for recorded in store.read(A)]


def test_an_address_is_given_to_one_user(store):
    assert 1 == store.handle(Register("1", "a@x"), boundary=A).version
    with pytest.raises(EmailTaken):
        store.handle(Register("2", "a@x"), boundary=A)
    store.handle(Leave("1"))

    assert (Registered("2", "a@x"),) == store.handle(Register("2", "a@x"), boundary=A).events
    assert ["user-1", "user-1", "user-2"] == registered(store)


def test_a_rival_between_the_look_and_the_append_has_the_command_decided_again(store, account_log):
    account_log.before["append"] = lambda: MemoryEventLog.append(
        account_log, append_of(store, "user-2", Registered("2", "a@x"))
    )
    with pytest.raises(EmailTaken):
        store.handle(Register("1", "a@x"), boundary=A)

    assert ["user-2"] == registered(store)


def test_a_rival_whose_event_does_not_matter_costs_an_attempt_only(store, account_log):
    account_log.before["append"] = lambda: MemoryEventLog.append(
        account_log, append_of(store, "user-2", Left("2", "a@x"))
    )

    assert 1 == store.handle(Register("1", "a@x"), boundary=A).version


def test_rivals_that_are_always_faster_are_contention(store, account_log):
    again(
        account_log.before,
        "append",
        lambda: MemoryEventLog.append(account_log, append_of(store, "user-2", Left("2", "a@x"))),
    )
    with pytest.raises(ContentionError):
        store.handle(Register("1", "a@x"), boundary=A, attempts_max=3)


def test_a_key_answers_before_the_boundary_does(store):
    first = store.handle(Register("1", "a@x"), boundary=A, idempotency_key="k")
    second = store.handle(Register("1", "a@x"), boundary=A, idempotency_key="k")

    assert (first.events, first.version, True) == (second.events, second.version, second.repeated)
    with pytest.raises(IdempotencyConflictError):
        store.handle(Register("2", "a@x"), boundary=A, idempotency_key="k")


def test_the_same_command_done_by_another_meanwhile_is_no_rejection(store, account_log):
    def twin():
        MemoryEventLog.read_boundary(account_log, "default", A)
        other = make(store, account_log)
        other.handle(Register("1", "a@x"), boundary=A, idempotency_key="k")

    account_log.after["result_of"] = twin
    handled = store.handle(Register("1", "a@x"), boundary=A, idempotency_key="k")

    assert (True, 1) == (handled.repeated, handled.version)
    assert ["user-1"] == registered(store)


def make(store, log):
    from eventstore import EventStore

    return EventStore(log, types=types, deciders=[User])


def test_what_was_never_so_at_one_moment_rejects_nothing(store, account_log):
    """Between the look at the stream and that at the boundary, both changed."""

    def between():
        for event in (Registered("1", "a@x"), Left("1", "a@x")):
            MemoryEventLog.append(account_log, append_of(store, "user-1", event))
        MemoryEventLog.append(account_log, append_of(store, "user-3", Registered("3", "a@x")))

    account_log.after["read_stream"] = between
    with pytest.raises(WrongExpectedVersionError):
        store.handle(Register("1", "a@x"), boundary=A, expected_version=0)
    with pytest.raises(EmailTaken):
        store.handle(Register("1", "a@x"), boundary=A)


def test_a_rule_across_streams_cannot_be_forgotten(store):
    with pytest.raises(UndeclaredError, match="boundary"):
        store.handle(Register("1", "a@x"))
    with pytest.raises(UndeclaredError, match="does not use"):
        store.handle(Leave("1"), boundary=A)

    assert 0 == store.handle(Touch("1")).version == store.handle(Touch("1"), boundary=A).version


@pytest.mark.parametrize("query", [Query(), Query(category="user"), tagged(types=("user.left",))])
def test_a_boundary_that_no_condition_could_hold_is_refused(store, query):
    with pytest.raises(BatchRefusedError):
        store.handle(Register("1", "a@x"), boundary=query)


def test_a_decider_of_functions_gets_the_boundary_as_its_third_argument(make_account_store):
    def decide(command: Register, state: None, seen: tuple[Any, ...]) -> Registered:
        if seen:
            raise EmailTaken(command.email)
        return Registered(command.user, command.email)

    decider = Decider(
        category="user",
        decide=decide,
        evolve=lambda state, event: None,  # noqa: ARG005
        initial_state=lambda: None,
        commands=(Register,),
        stream_id=lambda command: command.user,
    )
    store = make_account_store(types=types, deciders=[decider])
    store.handle(Register("1", "a@x"), boundary=A)
    for options in ({}, {"boundary": A}):
        with pytest.raises((UndeclaredError, EmailTaken)):
            store.handle(Register("2", "a@x"), **options)

    assert ["user-1"] == registered(store)


def test_a_scenario_says_what_the_boundary_has():
    taken = Registered("2", "a@x")
    given = scenario(User)
    given.when(Register("1", "a@x"), boundary=[]).then(Registered("1", "a@x"))
    given.when(Register("1", "a@x"), boundary=[taken]).then_rejected(EmailTaken)
    with pytest.raises(UndeclaredError):
        given.when(Register("1", "a@x"))
    with pytest.raises(UndeclaredError):
        given.when(Leave("1"), boundary=[])


def test_without_a_boundary_no_boundary_is_read():
    log = HookedLog()
    store = make(None, log)
    store.append("user-1", Registered("1", "a@x"))
    log.calls.clear()
    store.handle(Leave("1"))

    assert ["read_stream", "append"] == log.calls
