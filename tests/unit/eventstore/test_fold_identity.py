"""A fold's identity: a saved state is read by the fold that made it and by no other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore import (
    EventStore,
    Personal,
    UndeclaredError,
    aggregate,
    evolves,
    handles,
)
from eventstore.deciding.fold_identity import fold_name, shape_of
from eventstore.memory import MemoryEventLog
from tests.fix_account import Account, Deposit, Deposited, account, evolve, types

NAMES = ["balance", "balance_cents", "total"]
DEFAULTS: list[tuple[type, Any]] = [(int, 0), (int, 1), (float, 0.0), (int | None, None)]


@dataclass(frozen=True)
class Shape:
    """A state with one counter, a field that has a default, and how its events are folded."""

    counter: str
    other: str
    kind: int
    biggest: bool
    class_name: str

    def decider(self, **options):
        hint, default = DEFAULTS[self.kind]
        fields = [(self.counter, int, field(default=0))]
        if self.other != self.counter:
            fields.append((self.other, hint, field(default=default)))
        state = make_dataclass(self.class_name, fields, frozen=True)
        counter, biggest = self.counter, self.biggest

        def add(before, event):
            value = getattr(before, counter)
            added = max(value, event.amount) if biggest else value + event.amount
            return state(**{**vars(before), counter: added})

        def largest(before, event):
            return add(before, event)

        options = {"initial_state": state, "evolve": largest if biggest else add, **options}
        return account(**options)


shapes = st.builds(
    Shape,
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.integers(0, len(DEFAULTS) - 1),
    st.booleans(),
    st.sampled_from(["Wallet", "Largest"]),
)


@settings(deadline=None)
@given(folds=st.lists(shapes, min_size=2, max_size=5), times=st.integers(2, 5))
def test_a_state_is_that_of_its_own_fold_whatever_others_have_saved(folds, times):
    """As a deploy would change it, again and again, without raising the version."""
    log = MemoryEventLog()
    for number, shape in enumerate(folds):
        decider = shape.decider(snapshot_every=1)
        store = EventStore(log, types=types, deciders=[decider])
        store.handle(Deposit("a", 10, times))
        events = [found.event for found in store.read_stream("account-a")]

        state = store.state(decider, "a")

        assert decider.fold(decider.initial_state(), events) == state.value
        assert (number + 1) * times == state.version


def test_a_renamed_field_is_not_read_as_its_default():
    log = MemoryEventLog()

    def declared(name):
        def add(self, event: Deposited) -> None:
            setattr(self, name, getattr(self, name) + event.amount)

        def deposit(self, command: Deposit) -> Deposited:
            return Deposited(command.account_id, command.amount)

        body = {"__annotations__": {name: int}, name: 0}
        body |= {"add": evolves(Deposited)(add), "deposit": handles(Deposit)(deposit)}
        return aggregate("account", identity="account_id", snapshot_every=2)(
            type("Account", (), body)
        )

    store = EventStore(log, types=types, deciders=[declared("balance")])
    for _ in range(4):
        store.handle(Deposit("a", 100))
    renamed = declared("balance_cents")

    assert 400 == EventStore(log, types=types).state(renamed, "a").value.balance_cents


def wallets(**options):
    @aggregate("account", identity="account_id", snapshot_every=3, **options)
    class Wallet:
        total: int = 0

        @handles
        def deposit(self, command: Deposit) -> Deposited:
            return Deposited(command.account_id, command.amount)

        @evolves
        def add(self, event: Deposited) -> None:
            self.total += event.amount

    @aggregate("account", identity="account_id", snapshot_every=3, **options)
    class Largest:
        total: int = 0

        @evolves
        def add(self, event: Deposited) -> None:
            self.total = max(self.total, event.amount)

    return Wallet, Largest


def test_two_deciders_of_one_category_are_told_apart(make_account_store):
    wallet, largest = wallets()
    store = make_account_store(deciders=[wallet])
    for _ in range(3):
        store.handle(Deposit("a", 10))

    assert (30, 10) == tuple(store.state(each, "a").value.total for each in (wallet, largest))


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"evolve": lambda state, event: evolve(state, event)},  # noqa: PLW0108  # another one
        {"initial_state": lambda: Account(balance=1)},
        {"state_type": dict},
        {"state_name": "other"},
    ],
)
def test_a_store_refuses_two_folds_of_one_category(make_account_store, changed):
    other = account(commands=(), **changed)

    with pytest.raises(UndeclaredError, match="account"):
        make_account_store(deciders=[account(), other])


def test_a_store_takes_two_deciders_that_share_a_fold(make_account_store):
    store = make_account_store(deciders=[account(), account(commands=(), decide=lambda *_: None)])

    assert 1 == store.handle(Deposit("a", 1)).version


def test_two_aggregates_of_one_category_are_refused(make_account_store):
    with pytest.raises(UndeclaredError) as refused:
        make_account_store(deciders=wallets())

    assert "Wallet" in (refused.value.detail or "")


def test_a_fold_that_cannot_be_told_from_the_store_s_own_is_refused(make_account_store):
    """Two lambdas of one function have one name."""
    one, other = [account(evolve=lambda state, event, n=n: (state, event, n)) for n in (1, 2)]
    store = make_account_store(deciders=[one])
    with pytest.raises(UndeclaredError):
        store.state(other, "a")


def test_a_class_that_was_renamed_reads_what_it_saved_under_its_old_name():
    def named(name, **options):
        state = make_dataclass(name, [("total", int, field(default=0))], frozen=True)
        return account(initial_state=state, **options)

    old, renamed = fold_name(named("Old")), fold_name(named("New"))

    assert old != renamed
    kept = {fold_name(named(name, state_name="wallet")) for name in ("Old", "New")}
    assert 1 == len(kept)
    assert {old, renamed}.isdisjoint(kept)


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Named(TypedDict):
    name: str


class Packed(msgspec.Struct):
    value: int


@dataclass
class Tree:
    children: list[Tree] = field(default_factory=list)


@dataclass
class Limited:
    limit: int = 100
    owner: str | None = None


@dataclass
class Held:
    points: dict[str, Point]
    person: Personal[str]


UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("hint", "shape"),
    [
        (int, "int"),
        (dict[str, list[int]], "dict[str, list[int]]"),
        (int | None, "int | NoneType"),
        (Literal["a", 1], "Literal['a', 1]"),
        (Annotated[int, msgspec.Meta(gt=0)], "int"),
        (UserId, "int"),
        (Point, "(x: int, y: float)"),
        (Named, "(name: str)"),
        (Packed, "(value: int)"),
        (Tree, "(children: list[Tree])"),
        (Held, "(points: dict[str, (x: int, y: float)], person: str | (subject: str))"),
        (
            Limited,
            "(limit: int = 100, owner: str | NoneType = null)",
        ),
        (deque, "deque"),
        (Any, "Any"),
    ],
)  # fmt: skip
def test_a_shape_names_every_field_and_its_type(hint, shape):
    assert shape == shape_of(hint)
