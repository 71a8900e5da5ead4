"""What follows from what happens to an order, told as given and then; no store, no clock."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore import EventStore, Rejected, scenario
from eventstore.memory import MemoryEventLog
from eventstore.process import Cancel, CommandRejected, Complete, Dispatch, Schedule, TimedOut
from examples.globalshop.fulfilment import (
    COLLECTION,
    PAYMENT,
    QUERY,
    AlreadyCollected,
    CollectShipment,
    NotRequested,
    RecallShipment,
    RefuseShipment,
    ReleaseStock,
    RequestShipment,
    Reservation,
    ReserveStock,
    Shipment,
    ShipmentCollected,
    ShipmentRecalled,
    ShipmentRefused,
    ShipmentRequested,
    StockReleased,
    StockReserved,
    fulfilment,
)
from examples.globalshop.orders import (
    CancelOrder,
    ExpireOrder,
    Order,
    OrderCancelled,
    OrderLine,
    OrderPaid,
    OrderPlaced,
    OrderShipped,
    PayOrder,
    PlaceOrder,
    ShipOrder,
    Status,
)
from tests.fix_seeds import examples

ADA, PAYMENT_ID = UUID(int=1), UUID(int=2)
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
TODAY = NOON.date()
TOTAL = Decimal("19.50")
LINES = (OrderLine("GS-000001", 2, Decimal("9.75"), gift=False),)
TWO_DAYS, WEEK = timedelta(days=2), timedelta(weeks=1)

PLACED = OrderPlaced(7, ADA, LINES, TOTAL, None, NOON)
PAID = OrderPaid(7, PAYMENT_ID, TOTAL, "card", NOON)
SHIPPED = OrderShipped(7, TODAY)
CANCELLED = OrderCancelled(7, "found it cheaper")
REFUSED = ShipmentRefused(7, "too heavy")
COLLECTED = ShipmentCollected(7, TODAY)

MANAGER = fulfilment(pay_within=TWO_DAYS, collect_within=WEEK)


def reactions(*taken):
    """What is done about the last of what has come in."""
    return list(MANAGER.react(MANAGER.state(taken), taken[-1]) or ())


def test_goods_are_reserved_and_the_money_is_waited_for():
    assert reactions(PLACED) == [Dispatch(ReserveStock(7, LINES)), Schedule(PAYMENT, TWO_DAYS)]


def test_the_carrier_is_asked_when_the_money_has_come():
    assert reactions(PLACED, PAID) == [
        Cancel(PAYMENT),
        Dispatch(RequestShipment(7)),
        Schedule(COLLECTION, WEEK),
    ]


def test_what_the_carrier_has_is_shipped():
    assert reactions(PLACED, PAID, COLLECTED) == [Cancel(COLLECTION), Dispatch(ShipOrder(7, TODAY))]
    assert reactions(PLACED, PAID, COLLECTED, SHIPPED) == [Complete()]


def test_an_order_that_is_not_paid_in_time_expires():
    assert reactions(PLACED, TimedOut(PAYMENT, NOON)) == [Dispatch(ExpireOrder(7))]


def test_goods_are_released_when_the_order_is_cancelled_and_not_before():
    late = TimedOut(PAYMENT, NOON)

    assert reactions(PLACED, late, CommandRejected("ExpireOrder", "AlreadyPaid")) == []
    assert reactions(PLACED, late, CANCELLED) == [Cancel(PAYMENT), Dispatch(ReleaseStock(7))]
    assert reactions(PLACED, late, CANCELLED, StockReleased(7)) == [Complete()]


def test_an_order_that_the_carrier_refuses_is_cancelled_which_returns_the_money():
    assert reactions(PLACED, PAID, REFUSED) == [
        Cancel(COLLECTION),
        Dispatch(CancelOrder(7, "shipment: too heavy")),
    ]


def test_an_order_that_is_not_collected_in_time_is_refused():
    late = TimedOut(COLLECTION, NOON)

    assert reactions(PLACED, PAID, late) == [Dispatch(RefuseShipment(7, "not collected in time"))]


def test_goods_of_a_cancelled_order_are_called_back_before_they_are_released():
    recalled = ShipmentRecalled(7, "order: found it cheaper")

    assert reactions(PLACED, PAID, CANCELLED) == [
        Cancel(COLLECTION),
        Dispatch(RecallShipment(7, "order: found it cheaper")),
    ]
    assert Dispatch(ReleaseStock(7)) in reactions(PLACED, PAID, CANCELLED, recalled)


def test_goods_are_held_once_and_released_once():
    held, released = StockReserved(7, LINES), StockReleased(7)

    scenario(Reservation).when(ReserveStock(7, LINES)).then(held)
    scenario(Reservation).given(held).when(ReserveStock(7, LINES)).then_nothing()
    scenario(Reservation).given(held).when(ReleaseStock(7)).then(released)
    scenario(Reservation).given(held, released).when(ReleaseStock(7)).then_nothing()


def test_a_carrier_collects_or_refuses_what_waits():
    asked = scenario(Shipment).when(RequestShipment(7)).then(ShipmentRequested(7))

    asked.when(CollectShipment(7, TODAY)).then(COLLECTED)
    asked.when(RefuseShipment(7, "too heavy")).then(REFUSED)


@pytest.mark.parametrize(
    ("given_events", "command", "reason"),
    [
        ((), CollectShipment(7, TODAY), NotRequested),
        ((ShipmentRequested(7), REFUSED), CollectShipment(7, TODAY), NotRequested),
        ((ShipmentRequested(7), COLLECTED), CollectShipment(7, TODAY), AlreadyCollected),
        ((ShipmentRequested(7), COLLECTED), RefuseShipment(7, "too heavy"), AlreadyCollected),
        ((ShipmentRequested(7), REFUSED), RecallShipment(7, "wanted back"), NotRequested),
    ],
    ids=["not asked", "refused", "collected twice", "refused too late", "nothing to call back"],
)
def test_a_carrier_is_refused_what_is_not_its_turn(given_events, command, reason):
    scenario(Shipment).given(*given_events).when(command).then_rejected(reason)


def test_goods_are_called_back_from_the_ramp_and_from_the_road():
    command = RecallShipment(7, "wanted back")
    asked = scenario(Shipment).given(ShipmentRequested(7))

    asked.when(command).then(ShipmentRefused(7, "wanted back"))
    asked.given(COLLECTED).when(command).then(ShipmentRecalled(7, "wanted back"))


@dataclass
class World:
    """An order, its goods, its carrier and its process, one step after the other."""

    store: EventStore = field(
        default_factory=lambda: EventStore(
            MemoryEventLog(), deciders=[Order, Reservation, Shipment]
        )
    )
    unseen: deque = field(default_factory=deque)
    taken: list = field(default_factory=list)
    timers: dict = field(default_factory=dict)
    completed: bool = False

    def ask(self, command) -> None:
        """Somebody, or the process, wants something; what follows waits to be seen."""
        self.unseen.extend(self.store.handle(command).events)

    def see(self) -> None:
        """The process takes in the next event."""
        event = self.unseen.popleft()
        known = self.store.codec.types.of(event).name
        if any(known in item.types for item in QUERY.items) and not self.completed:
            self.take(event)

    def fire(self, name: str) -> None:
        if name in self.timers:
            del self.timers[name]
            self.take(TimedOut(name, NOON))

    def take(self, one) -> None:
        self.taken.append(one)
        for reaction in MANAGER.react(MANAGER.state(self.taken), one):
            match reaction:
                case Dispatch(command):
                    try:
                        self.ask(command)
                    except Rejected as why:
                        self.take(CommandRejected(type(command).__name__, type(why).__name__))
                case Schedule(name):
                    self.timers[name] = True
                case Cancel(name):
                    self.timers.pop(name, None)
                case Complete():
                    self.completed = True
                    self.timers.clear()

    def of(self, decider):
        return self.store.state(decider, 7).value


OUTSIDE = {
    "pay": PayOrder(7, PAYMENT_ID, TOTAL, "card", NOON),
    "cancel": CancelOrder(7, "found it cheaper"),
    "collect": CollectShipment(7, TODAY),
    "refuse": RefuseShipment(7, "too heavy"),
}


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.sampled_from([*OUTSIDE, "see", "see", PAYMENT, COLLECTION]), max_size=25))
def test_whatever_comes_first_every_order_ends_with_its_goods_and_its_money_in_one_place(steps):
    world = World()
    world.ask(PlaceOrder(7, ADA, LINES, None, NOON))
    for step in steps:
        if step in OUTSIDE:
            with suppress(Rejected):
                world.ask(OUTSIDE[step])
        elif step != "see":
            world.fire(step)
        elif world.unseen:
            world.see()
    while world.unseen or world.timers:
        if world.unseen:
            world.see()
        else:
            world.fire(next(iter(world.timers)))

    order, goods, shipment = world.of(Order), world.of(Reservation), world.of(Shipment)
    assert world.completed
    if order.status is Status.SHIPPED:
        assert (goods.held, shipment.collected, order.payment_id) == (True, True, PAYMENT_ID)
    else:
        assert order.status is Status.CANCELLED
        assert (goods.held, shipment.requested, order.payment_id) == (False, False, None)
