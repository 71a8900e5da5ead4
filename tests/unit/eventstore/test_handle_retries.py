"""A command sent again under its key: the same one after a deploy, and after an upgrade."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field, make_dataclass, replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore import ANY, STREAM_EXISTS, EventTypes, IdempotencyConflictError
from eventstore.memory import MemoryEventLog
from eventstore.model.event import AppendRequest, Idempotency, StreamAppend, digest_of
from eventstore.planning.idempotency import command_digest, earlier_digests, keyed_event_id
from eventstore.serialization.codec import Codec
from eventstore.serialization.wire import encoded
from tests.fix_account import Deposit, Deposited, account, append_of, types


def test_a_deploy_that_adds_a_field_leaves_a_retry_the_same_command(make_account_store):
    def deployed(*fields):
        command = make_dataclass("Pay", [("account_id", str), *fields], frozen=True)
        return command, make_account_store(
            deciders=[account(commands=(command,), decide=lambda *_: Deposited("a", 1))]
        )

    pay, before = deployed()
    first = before.handle(pay("a"), idempotency_key="k")
    for added in (
        [("note", str, field(default=""))],
        [("parts", list[int], field(default_factory=list)), ("at", int, field(default=0))],
        [("inner", Inner, field(default_factory=lambda: Inner(1, 2)))],
        [("asked_at", float, field(default_factory=time.perf_counter, compare=False))],
    ):
        pay, after = deployed(*added)
        second = after.handle(pay("a"), idempotency_key="k")
        assert (True, first.version) == (second.repeated, second.version)

    pay, after = deployed(("note", str, field(default="")))
    with pytest.raises(IdempotencyConflictError):
        after.handle(pay("a", "another"), idempotency_key="k")


def test_an_append_is_the_same_after_a_deploy_that_adds_a_field(make_account_store):
    def deployed(*fields):
        registry = EventTypes()
        happened = make_dataclass("Happened", [("number", int), *fields], frozen=True)
        return registry.event("it.happened")(happened), make_account_store(
            types=registry, deciders=[]
        )

    happened, store = deployed()
    first = store.append("it-1", happened(1), idempotency_key="k")
    happened, store = deployed(
        ("note", str, field(default="")),
        ("at", float, field(default_factory=time.perf_counter, compare=False)),
    )
    second = store.append("it-1", happened(1), idempotency_key="k", expected_version=0)

    assert (True, first.version) == (second.repeated, second.version)
    for other in (happened(2), happened(1, "another")):
        with pytest.raises(IdempotencyConflictError):
            store.append("it-1", other, idempotency_key="k")


@pytest.mark.parametrize("expected", [ANY, STREAM_EXISTS, 0])
def test_an_append_s_key_of_an_earlier_version_still_names_it(
    make_account_store, account_log, expected
):
    registry = EventTypes()
    happened = registry.event("it.happened")(
        make_dataclass("Happened", [("note", str, field(default=""))], frozen=True)
    )
    store = make_account_store(types=registry, deciders=[])
    request = append_of(store, "it-1", happened())
    key = Idempotency("k", digest_of(request))
    MemoryEventLog.append(account_log, replace(request, idempotency=key))

    assert store.append("it-1", happened(), idempotency_key="k", expected_version=expected).repeated
    with pytest.raises(IdempotencyConflictError):
        store.append("it-1", happened("x"), idempotency_key="k", expected_version=expected)


@dataclass(frozen=True)
class Inner:
    one: int
    two: int = 2
    seen_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Outer:
    account_id: str
    inner: Inner
    parts: tuple[Inner, ...] = ()
    named: dict[str, Inner] = field(default_factory=dict)
    note: str | None = None
    amount: Decimal = Decimal("1.10")
    asked_at: float = field(default=0.0, compare=False)


inners = st.builds(Inner, st.integers(0, 1), st.integers(1, 2), st.floats(0, 1))
outers = st.builds(
    Outer,
    st.sampled_from(["a", "b"]),
    inners,
    st.lists(inners, max_size=1).map(tuple),
    st.dictionaries(st.sampled_from(["x", "y"]), inners, max_size=1),
    st.sampled_from([None, ""]),
    st.sampled_from([Decimal("1.10"), Decimal("1.1"), Decimal(1)]),
    st.floats(0, 1),
)


@settings(deadline=None)
@given(one=outers, other=outers)
def test_equal_commands_are_one_command_and_no_others(one, other):
    codec = Codec(types)
    same = command_digest(codec, "default", one) == command_digest(codec, "default", other)

    assert same == (one == other and str(one.amount) == str(other.amount))


@settings(deadline=None)
@given(command=outers)
def test_what_earlier_versions_stored_for_a_command_is_known(command):
    codec = Codec(types)
    name = b"command 5:Outer "
    whole = hashlib.sha256(name + encoded(command)).digest()
    known = set(earlier_digests(codec, "default", command))

    assert whole in known
    assert command_digest(codec, "default", replace(command, amount=Decimal(7))) not in known
    if command.note is None and command.amount == Decimal(1):
        before = {"account_id": command.account_id, "inner": command.inner}
        before |= {"parts": command.parts, "named": command.named, "amount": command.amount}
        text = b",".join(b'"%s":%s' % (key.encode(), encoded(v)) for key, v in before.items())
        assert hashlib.sha256(name + b"{%s}" % text).digest() in known


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_key_of_an_earlier_version_still_names_its_command(make_account_store, account_log, when):
    store = make_account_store()
    command = Deposit("a", 5)

    def done_by_an_earlier_version():
        digest = hashlib.sha256(b'command 7:Deposit {"account_id":"a","amount":5,"times":1}')
        event = store.codec.encode(
            Deposited("a", 5),
            tenant="default",
            stream="account-a",
            event_id=keyed_event_id("default", "k", 0),
        )
        MemoryEventLog.append(
            account_log,
            AppendRequest(
                (StreamAppend("account-a", (event,)),), "default", Idempotency("k", digest.digest())
            ),
        )

    if when == "before":
        done_by_an_earlier_version()
    else:
        account_log.before["append"] = done_by_an_earlier_version
    handled = store.handle(command, idempotency_key="k")

    assert (True, (Deposited("a", 5),)) == (handled.repeated, handled.events)
    with pytest.raises(IdempotencyConflictError):
        store.handle(Deposit("a", 6), idempotency_key="k")
    assert 1 == account_log.stream_version("default", "account-a")
