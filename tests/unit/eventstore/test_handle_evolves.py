"""What a command leads to is folded before it is stored: no event closes its own stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from eventstore import (
    EventRefusedError,
    EventTypes,
    Rejected,
    UndeclaredError,
    aggregate,
    evolves,
    handles,
    scenario,
)
from tests.fix_account import (
    Deposit,
    Deposited,
    Withdraw,
    Withdrawn,
    account,
    events_of,
    evolve,
)


def unfoldable(error):
    def evolve_or_not(state, event):
        if isinstance(event, Withdrawn):
            raise error
        return evolve(state, event)

    return evolve_or_not


@pytest.mark.parametrize("error", [KeyError("secret"), Rejected("no"), RecursionError()], ids=repr)
@pytest.mark.parametrize("times", [0, 1])
def test_an_event_that_its_own_decider_cannot_fold_is_not_stored(make_account_store, error, times):
    def decides(command, _):
        return [*[Deposited("a", 1)] * times, Withdrawn(command.account_id, 1)]

    store = make_account_store(deciders=[account(decide=decides, evolve=unfoldable(error))])
    with pytest.raises(EventRefusedError) as refused:
        store.handle(Withdraw("a", 1), idempotency_key="k")

    assert "secret" not in f"{refused.value} {refused.value.detail}"
    assert [] == events_of(store)
    assert 1 == make_account_store().handle(Deposit("a", 1)).version


def test_an_aggregate_without_a_method_for_its_own_event_stores_nothing(make_account_store):
    @aggregate("account", identity="account_id")
    class Half:
        @handles
        def deposit(self, command: Deposit) -> Deposited:
            return Deposited(command.account_id, command.amount)

    store = make_account_store(deciders=[Half])
    with pytest.raises(UndeclaredError, match="has no method for"):
        store.handle(Deposit("a", 1))

    assert [] == events_of(store)
    with pytest.raises(UndeclaredError):
        scenario(Half).when(Deposit("a", 1)).then(Deposited("a", 1))


def test_what_evolve_does_to_the_list_of_an_event_does_not_reach_what_is_stored(make_account_store):
    registry = EventTypes()

    @registry.event("account.listed")
    @dataclass(frozen=True)
    class Listed:
        items: list[int]

    @aggregate("account", identity="account_id", snapshot_every=100)
    class Lists:
        items: list[int] = field(default_factory=list)

        @handles
        def deposit(self, command: Deposit) -> tuple[Listed, ...]:
            return Listed([command.amount]), Listed([2])

        @evolves(Listed)
        def listed(self, event: Any) -> None:
            if self.items:
                self.items += event.items
            else:
                self.items = event.items

    store = make_account_store(types=registry, deciders=[Lists])
    handled = store.handle(Deposit("a", 1))

    assert [Listed([1]), Listed([2])] == list(handled.events) == events_of(store)


def test_a_decide_that_spoils_its_state_does_not_have_good_events_refused(make_account_store):
    def spoiling(command, state):
        state.clear()
        return Deposited(command.account_id, 1)

    store = make_account_store(
        deciders=[
            account(
                decide=spoiling,
                initial_state=lambda: {"sum": 0},
                evolve=lambda state, event: {"sum": state["sum"] + event.amount},
            )
        ]
    )

    assert [1, 2] == [store.handle(Deposit("a", 1)).version for _ in range(2)]
