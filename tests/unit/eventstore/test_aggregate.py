"""An aggregate: a decider written as a class, whose methods cannot do harm."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from eventstore import EventTypes, Rejected, UndeclaredError, aggregate, evolves, handles
from eventstore.planning.snapshotting import decode_state, encode_state

types = EventTypes()


@types.event("cart.added")
class Added:
    cart: str
    item: str


@types.event("cart.cleared")
class Cleared:
    cart: str


@types.event("cart.printed")
class Printed:
    cart: str


@dataclass(frozen=True)
class Add:
    cart: str
    item: str


@dataclass(frozen=True)
class AddTwice:
    cart: str
    item: str


@dataclass(frozen=True)
class Clear:
    cart: str


class Full(Rejected):
    """Three are enough."""


@aggregate("cart", identity="cart", version=3, snapshot_every=2, ignores=[Printed])
class Cart:
    items: list[str] = field(default_factory=list)

    @handles
    def add(self, command: Add | AddTwice):
        times = 2 if isinstance(command, AddTwice) else 1
        for _ in range(times):
            if len(self.items) == 3:
                raise Full("three are enough")
            self.items.append(command.item)
            yield Added(command.cart, command.item)

    @handles(Clear)
    def clear(self, command):
        if self.items:
            return [Cleared(command.cart), Printed(command.cart)]
        return None

    @evolves
    def _added(self, event: Added) -> None:
        self.items.append(event.item)

    @evolves
    def _cleared(self, _event: Cleared) -> Cart:
        return Cart()


def folded(*events):
    return Cart.decider.fold(Cart(), events)


def test_a_class_becomes_a_decider():
    decider = Cart.decider

    assert {Add, AddTwice, Clear} == set(decider.commands)
    assert ("cart", 3, 2, Cart) == (
        decider.category,
        decider.version,
        decider.snapshot_every,
        decider.state_type,
    )
    assert "cart-c1" == decider.stream_of(Clear("c1"))


def test_events_are_taken_into_a_state_one_after_the_other():
    assert Cart(["x", "y"]) == folded(Added("c", "x"), Added("c", "y"))
    assert Cart() == folded(Added("c", "x"), Cleared("c"), Printed("c"))


def test_deciding_changes_nothing_even_if_the_method_changes_itself():
    state = folded(Added("c", "x"))

    events = Cart.decider.decided(AddTwice("c", "y"), state)

    assert (Added("c", "y"), Added("c", "y")) == events
    assert Cart(["x"]) == state


def test_a_rejection_in_the_middle_leads_to_no_event():
    state = folded(Added("c", "x"), Added("c", "y"))

    with pytest.raises(Full):
        Cart.decider.decided(AddTwice("c", "z"), state)
    assert Cart(["x", "y"]) == state


@pytest.mark.parametrize("way", ["evolve", "fold"])
def test_an_earlier_state_stays_when_a_later_one_is_made(way):
    first = folded(Added("c", "x"))
    decider = Cart.decider

    if way == "evolve":
        second = decider.evolve(first, Added("c", "y"))
    else:
        second = decider.fold(first, [Added("c", "y")])

    assert (Cart(["x"]), Cart(["x", "y"])) == (first, second)


def test_its_states_can_be_saved():
    state = folded(Added("c", "x"))

    assert state == decode_state(Cart.decider, encode_state(Cart.decider, state))


def test_nothing_and_several_events_may_follow():
    decider = Cart.decider

    assert () == decider.decided(Clear("c"), Cart())
    assert (Cleared("c"), Printed("c")) == decider.decided(Clear("c"), Cart(["x"]))


def test_an_event_that_no_method_takes_is_no_event_to_skip():
    @aggregate("empty", identity="cart")
    class Nothing:
        count: int = 0

    with pytest.raises(UndeclaredError, match="has no method for an event"):
        Nothing.decider.fold(Nothing(), [Added("c", "x")])


def test_a_method_that_returns_something_else_than_a_state_is_found_out():
    @aggregate("odd", identity="cart")
    class Odd:
        count: int = 0

        @evolves
        def _added(self, _event: Added) -> int:
            self.count += 1
            return self.count

    with pytest.raises(UndeclaredError, match="does not return the next state"):
        Odd.decider.fold(Odd(), [Added("c", "x")])


def test_the_identity_may_be_a_function():
    @aggregate("box", identity=lambda command: command.cart.upper())
    class Box:
        count: int = 0

        @handles
        def clear(self, command: Clear) -> None: ...

    assert "box-C1" == Box.decider.stream_of(Clear("c1"))


def test_a_frozen_class_returns_its_next_state():
    @aggregate("ice", identity="cart")
    @dataclass(frozen=True)
    class Ice:
        count: int = 0

        @evolves
        def _added(self, _event: Added) -> Ice:
            return Ice(self.count + 1)

    assert Ice(2) == Ice.decider.fold(Ice(), [Added("c", "x"), Added("c", "y")])


def test_methods_are_inherited():
    class Countable:
        @evolves
        def _added(self, _event: Added) -> None:
            self.count += 1

    @aggregate("heir", identity="cart")
    class Heir(Countable):
        count: int = 0

    assert Heir(1) == Heir.decider.fold(Heir(), [Added("c", "x")])


def a_class_that_needs_arguments():
    @aggregate("bad", identity="cart")
    class Bad:
        count: int


def a_method_without_a_class():
    @aggregate("bad", identity="cart")
    class Bad:
        @handles
        def clear(self, command): ...


def a_method_of_an_unknown_class():
    @aggregate("bad", identity="cart")
    class Bad:
        @handles
        def clear(self, command: Unknown): ...  # noqa: F821


def a_method_without_arguments():
    @aggregate("bad", identity="cart")
    class Bad:
        @evolves
        def cleared(self): ...


def two_methods_for_one_command():
    @aggregate("bad", identity="cart")
    class Bad:
        @handles
        def one(self, command: Clear): ...

        @handles
        def two(self, command: Clear): ...


def a_command_without_the_identity():
    @aggregate("bad", identity="order")
    class Bad:
        @handles
        def clear(self, command: Clear): ...


def brackets_without_a_class():
    @handles()
    def clear(self, command: Clear): ...


@pytest.mark.parametrize(
    "declaration",
    [
        a_class_that_needs_arguments,
        a_method_without_a_class,
        a_method_of_an_unknown_class,
        a_method_without_arguments,
        two_methods_for_one_command,
        a_command_without_the_identity,
        brackets_without_a_class,
    ],
    ids=lambda declaration: declaration.__name__,
)
def test_a_class_that_is_no_decider_is_refused_when_it_is_declared(declaration):
    with pytest.raises(UndeclaredError):
        declaration()
