"""Saved states: used when they can be believed, ignored otherwise; the events are the truth."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from eventstore import (
    EventRefusedError,
    StreamPart,
    UpcastError,
)
from eventstore.memory import MemoryEventLog
from eventstore.planning import snapshotting
from eventstore.planning.snapshotting import (
    decode_state,
    encode_state,
    fold_name,
    state_type,
)
from eventstore.privacy.keyring import MemoryKeyRing
from tests.fix_account import (
    Account,
    Deposit,
    Deposited,
    Empty,
    HookedLog,
    Open,
    Overdrawn,
    Withdraw,
    account,
    decide,
    evolve,
)
from tests.support.saved_states import (
    STREAM,
    a_store,
    compact,
    decider_in,
    reasons,
    saved,
    state_of,
)


def folded(store, version):
    """The state by the original events and nothing else."""
    originals = store.read_stream(STREAM, StreamPart(through=version, archived=True))
    return decider_in(store).fold(Account(), [found.event for found in originals])


commands = st.lists(
    st.one_of(
        st.builds(Deposit, st.just("a"), st.integers(1, 9), st.integers(0, 3)),
        st.builds(Withdraw, st.just("a"), st.integers(1, 9)),
        st.just(Empty("a")),
        st.builds(Open, st.just("a"), st.sampled_from(["Ada", "Bob"])),
    ),
    max_size=12,
)


@given(
    commands=commands,
    snapshot_every=st.sampled_from([None, 1, 2, 3, 5]),
    compacted=st.lists(st.tuples(st.integers(0, 12), st.floats(0, 1)), max_size=3),
    shredded=st.one_of(st.none(), st.integers(0, 12)),
)
def test_the_state_is_the_fold_of_the_events_at_every_version(
    commands, snapshot_every, compacted, shredded
):
    ring = MemoryKeyRing()
    store = a_store(MemoryEventLog(), ring=ring, snapshot_every=snapshot_every)
    plain = a_store(store.log, ring=ring)
    for number, command in enumerate(commands):
        if shredded == number:
            ring.shred("default", "a")
            ring.readmit("default", "a")
        for place, share in compacted:
            version = store.log.stream_version("default", STREAM)
            through = int(version * share)
            done = store.log._folded.get(("default", STREAM))
            if place == number and through > (done.stream_position if done else 0):
                compact(store, through)
        try:
            store.handle(command)
        except Overdrawn:
            continue

    version = store.log.stream_version("default", STREAM)
    expected = [(folded(store, each), each) for each in range(version + 1)]
    for looked_at in (store, plain):
        found = [state_of(looked_at, at_version=each) for each in range(version + 1)]

        assert expected == [(state.value, state.version) for state in found]
        assert expected[-1] == (state_of(looked_at).value, state_of(looked_at).version)


def test_a_state_is_saved_when_a_multiple_is_passed():
    store = a_store(MemoryEventLog(), snapshot_every=3)
    positions = []
    for times in (1, 1, 1, 2, 2, 7, 0):
        store.handle(Deposit("a", 1, times))
        positions.append(getattr(saved(store), "stream_position", None))

    assert [None, None, 3, 3, 7, 14, 14] == positions


def test_a_saved_state_spares_reading_what_is_in_it():
    log = HookedLog()
    store = a_store(log, snapshot_every=5)
    store.handle(Deposit("a", 1, 5))
    store.handle(Deposit("a", 1))
    log.calls.clear()
    read = []
    original = MemoryEventLog.read_stream

    def watched(self, *args, **options):
        found = list(original(self, *args, **options))
        read.append([event.stream_position for event in found])
        return iter(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryEventLog, "read_stream", watched)
        handled = store.handle(Withdraw("a", 6))

    assert 7 == handled.version
    assert [[5, 6]] == read
    assert ["snapshot", "read_stream", "append"] == log.calls


def test_without_a_policy_no_snapshot_is_asked_for():
    log = HookedLog()
    a_store(log).handle(Deposit("a", 1))

    assert ["read_stream", "append"] == log.calls


def damaged(snapshot):
    return snapshot._replace(state=snapshot.state.replace(b'"balance":4', b'"balance":5'))


def ahead(snapshot):
    return snapshot._replace(stream_position=9)


def with_other_subjects(snapshot):
    return snapshot._replace(subjects=("b",))


def moved(snapshot):
    return snapshot._replace(stream_position=3)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (damaged, "damaged, or of another history"),
        (moved, "damaged, or of another history"),
        (with_other_subjects, "damaged, or of another history"),
        (ahead, "ahead of the stream"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_snapshot_that_cannot_be_believed_is_ignored(harm, reason):
    log = HookedLog()
    store = a_store(log, snapshot_every=4)
    store.handle(Deposit("a", 1, 4))
    store.handle(Deposit("a", 1))
    place = ("default", STREAM, fold_name(decider_in(store)))
    log._snapshots[place] = harm(log._snapshots[place])
    log.calls.clear()

    with structlog.testing.capture_logs() as logs:
        state = state_of(store)

    assert (5, 5) == (state.value.balance, state.version)
    assert [reason] == reasons(logs)
    assert ["snapshot", "read_stream", "read_stream"] == log.calls
    assert {"event", "log_level", "reason", "fold", "stream_position"} == set(logs[0])


def test_a_snapshot_of_another_history_is_ignored_even_where_the_position_exists():
    """After a restore without the snapshots' table: the stream grew again, otherwise."""
    before = a_store(MemoryEventLog(), snapshot_every=4)
    before.handle(Deposit("a", 100, 4))
    restored = a_store(MemoryEventLog(), snapshot_every=4)
    restored.log.save_snapshot("default", saved(before))
    with structlog.testing.capture_logs() as logs:
        restored.handle(Deposit("a", 1))
        for _ in range(4):
            restored.append(STREAM, Deposited("a", 1))

        assert 5 == state_of(restored).value.balance
    assert ["ahead of the stream", "damaged, or of another history"] == reasons(logs)


def test_a_snapshot_of_another_fold_is_not_read():
    log = MemoryEventLog()
    old = a_store(log, snapshot_every=2)
    old.handle(Deposit("a", 1, 2))

    def doubled(state, event):
        return evolve(state, replace(event, amount=2 * event.amount))

    new = a_store(log, snapshot_every=2, version=2, evolve=doubled)

    assert (2, 4) == (state_of(old).value.balance, state_of(new).value.balance)


def test_a_saved_state_that_does_not_fit_its_type_is_ignored_and_never_filled_up():
    """As where `state_name` or a digest that collides says that it is of this fold."""
    log = MemoryEventLog()
    store = a_store(log, snapshot_every=2)
    store.handle(Deposit("a", 1, 2))
    own = saved(store)
    for harm in (
        lambda state: state.replace(b'"balance"', b'"balance_cents"'),
        lambda state: state.replace(b'"balance":2,', b""),
        lambda state: state.replace(b'"balance":2', b'"balance":2,"more":1'),
        lambda state: state.replace(b'"balance":2', b'"balance":"2"'),
    ):
        (event,) = list(store.read_stream(STREAM, StreamPart(after=1)))
        harmed = own._replace(state=harm(own.state), digest=b"")
        digest = snapshotting._digest("default", harmed, event.event_id)
        log.save_snapshot("default", harmed._replace(digest=digest))
        with structlog.testing.capture_logs() as logs:
            assert Account(2, (1, 1)) == state_of(store).value
        assert (["cannot be opened"], "HW-E021") == (reasons(logs), logs[0]["code"])


def test_a_failure_to_save_fails_no_command():
    log = HookedLog()
    store = a_store(log, snapshot_every=2)

    def broken():
        raise RuntimeError("secret text")

    log.before["save_snapshot"] = broken
    with structlog.testing.capture_logs() as logs:
        handled = store.handle(Deposit("a", 1, 2))

    assert (2, None) == (handled.version, saved(store))
    (entry,) = logs
    assert ("aggregate snapshot not saved", "RuntimeError") == (entry["event"], entry["error"])
    assert "secret" not in str(entry)


def test_a_state_that_cannot_be_saved_fails_no_command():
    @dataclass(frozen=True)
    class Odd:
        balance: Any = 0

    store = a_store(
        MemoryEventLog(),
        snapshot_every=1,
        initial_state=Odd,
        decide=lambda command, _: Deposited("a", command.amount),
        evolve=lambda state, event: Odd(object()),  # noqa: ARG005
    )
    with structlog.testing.capture_logs() as logs:
        handled = store.handle(Deposit("a", 1))

    assert (1, None) == (handled.version, saved(store))
    assert ["HW-E002"] == [entry["code"] for entry in logs]


def test_a_decide_that_changes_its_state_does_not_change_what_is_saved():
    @dataclass
    class Drawer:
        amounts: list[int]

    def spoiling(command, state):
        state.amounts.append(1_000_000)
        return Deposited("a", command.amount)

    store = a_store(
        MemoryEventLog(),
        snapshot_every=2,
        initial_state=lambda: Drawer([]),
        state_type=Drawer,
        decide=spoiling,
        evolve=lambda state, event: Drawer([*state.amounts, event.amount]),
    )
    for amount in (1, 2, 3, 4):
        store.handle(Deposit("a", amount))

    assert 4 == saved(store).stream_position
    assert Drawer([1, 2, 3, 4]) == state_of(store).value


def test_a_race_between_looking_at_the_snapshot_and_the_events_is_harmless():
    """Another process compacts, or saves, in between."""
    for moment, harm in itertools.product(
        ["snapshot", "read_stream"], ["compact to the end", "compact a part", "append"]
    ):
        log = HookedLog()
        store = a_store(log, snapshot_every=3)
        store.handle(Deposit("a", 1, 3))
        store.handle(Deposit("a", 1))
        other = a_store(log, snapshot_every=3)

        def act(harm=harm, other=other):
            if harm == "append":
                other.handle(Deposit("a", 1, 3))
            else:
                compact(other, 4 if harm == "compact to the end" else 2)

        log.after[moment] = act
        version = store.handle(Deposit("a", 1)).version

        assert (version, version) == (state_of(store).value.balance, state_of(store).version)


def typed() -> dict[str, Decimal]:
    return {}


@pytest.mark.parametrize(
    ("initial_state", "state", "kind"),
    [
        (Account, Account(1, (1,)), Account),
        (typed, {"a": Decimal("1.10")}, dict[str, Decimal]),
        (lambda: 0, 5, int),
        (lambda: {"a": 1}, {"a": [1, {"b": None}]}, dict),
    ],
    ids=["class", "annotated function", "number", "dict"],
)
def test_a_state_is_read_as_the_type_of_the_initial_one(initial_state, state, kind):
    decider = account(initial_state=initial_state)

    assert kind == state_type(decider)
    assert state == decode_state(decider, encode_state(decider, state))


@pytest.mark.parametrize(
    ("initial_state", "state"),
    [
        (lambda: 0, 1.5),
        (lambda: None, Account()),
        (dict, {"a": Decimal(1)}),
        (dict, {"a": float("nan")}),
        (list, [object()]),
        (Account, Account(bookings=[1])),
        (dict, {1: 2}),
    ],
    ids=[
        "a fraction",
        "no type",
        "a decimal",
        "not a number",
        "an object",
        "an annotation",
        "a key that is no text",
    ],
)
def test_a_state_that_would_read_back_otherwise_is_not_saved(initial_state, state):
    with pytest.raises(EventRefusedError, match="would not read back"):
        encode_state(account(initial_state=initial_state), state)


def test_a_state_of_another_type_is_not_read():
    with pytest.raises(UpcastError):
        decode_state(account(), b'{"balance":"much"}')


def test_a_snapshot_is_not_saved_for_a_repeated_command():
    store = a_store(MemoryEventLog(), snapshot_every=2)
    store.handle(Deposit("a", 1, 2), idempotency_key="k")
    first = saved(store)
    store.handle(Deposit("a", 1, 2), idempotency_key="k")

    assert first == saved(store)
    assert decide is decider_in(store).decide
