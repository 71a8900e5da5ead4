"""What GlobalShop does with an order, told as given, when and then; no store, no server."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from eventstore import EventData, EventStore, scenario
from eventstore.memory import MemoryEventLog
from examples.globalshop.orders import (
    AlreadyCancelled,
    AlreadyPaid,
    AlreadyPlaced,
    AlreadyShipped,
    CancelOrder,
    EmptyOrder,
    ExpireOrder,
    NotPaid,
    Order,
    OrderCancelled,
    OrderLine,
    OrderPaid,
    OrderPlaced,
    OrderRefunded,
    OrderShipped,
    PayOrder,
    PlaceOrder,
    ShipOrder,
    Status,
    UnknownOrder,
    WrongAmount,
)

ADA, PAYMENT = UUID(int=1), UUID(int=2)
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
TODAY = NOON.date()
TOTAL = Decimal("24.50")
LINES = (
    OrderLine("GS-000001", 2, Decimal("9.75"), gift=False),
    OrderLine("GS-000002", 1, Decimal("5.00"), gift=True),
)

PLACE = PlaceOrder(7, ADA, LINES, "ring twice", NOON)
PAY = PayOrder(7, PAYMENT, TOTAL, "card", NOON)
SHIP = ShipOrder(7, TODAY)
CANCEL = CancelOrder(7, "found it cheaper")
EXPIRE = ExpireOrder(7)

PLACED = OrderPlaced(7, ADA, LINES, TOTAL, "ring twice", NOON)
PAID = OrderPaid(7, PAYMENT, TOTAL, "card", NOON)
SHIPPED = OrderShipped(7, TODAY)
CANCELLED = OrderCancelled(7, "found it cheaper")
REFUNDED = OrderRefunded(7, PAYMENT, TOTAL)

HISTORIES = {
    "nothing": (),
    "placed": (PLACED,),
    "paid": (PLACED, PAID),
    "shipped": (PLACED, PAID, SHIPPED),
    "cancelled": (PLACED, CANCELLED),
    "refunded": (PLACED, PAID, CANCELLED, REFUNDED),
}


def test_an_order_is_placed_for_what_its_lines_cost():
    scenario(Order).when(PLACE).then(PLACED)


def test_an_order_is_paid_and_leaves():
    scenario(Order).when(PLACE).then(PLACED).when(PAY).then(PAID).when(SHIP).then(SHIPPED)


@pytest.mark.parametrize(
    "lines",
    [(), (OrderLine("GS-000001", 0, Decimal(1), gift=False),)],
    ids=["no line", "no piece"],
)
def test_an_order_is_for_something(lines):
    scenario(Order).when(PlaceOrder(7, ADA, lines, None, NOON)).then_rejected(EmptyOrder)


@pytest.mark.parametrize("amount", ["24.49", "24.51", "0", "-24.50"])
def test_the_whole_amount_is_paid(amount):
    pay = PayOrder(7, PAYMENT, Decimal(amount), "card", NOON)

    scenario(Order).given(PLACED).when(pay).then_rejected(WrongAmount)


def test_what_was_paid_is_returned_when_an_order_is_cancelled():
    scenario(Order).given(PLACED, PAID).when(CANCEL).then(CANCELLED, REFUNDED)


def test_nothing_is_returned_when_nothing_was_paid():
    scenario(Order).given(PLACED).when(CANCEL).then(CANCELLED)


def test_an_order_that_is_not_paid_expires():
    scenario(Order).given(PLACED).when(EXPIRE).then(OrderCancelled(7, "not paid in time"))


@pytest.mark.parametrize("command", [CANCEL, EXPIRE], ids=["cancel", "expire"])
@pytest.mark.parametrize("history", ["cancelled", "refunded"])
def test_to_cancel_again_is_accepted_and_changes_nothing(history, command):
    scenario(Order).given(*HISTORIES[history]).when(command).then_nothing()


REFUSED = [
    ("placed", PLACE, AlreadyPlaced),
    ("cancelled", PLACE, AlreadyPlaced),
    ("nothing", PAY, UnknownOrder),
    ("paid", PAY, AlreadyPaid),
    ("shipped", PAY, AlreadyShipped),
    ("cancelled", PAY, AlreadyCancelled),
    ("nothing", SHIP, UnknownOrder),
    ("placed", SHIP, NotPaid),
    ("shipped", SHIP, AlreadyShipped),
    ("refunded", SHIP, AlreadyCancelled),
    ("nothing", CANCEL, UnknownOrder),
    ("shipped", CANCEL, AlreadyShipped),
    ("nothing", EXPIRE, UnknownOrder),
    ("paid", EXPIRE, AlreadyPaid),
    ("shipped", EXPIRE, AlreadyShipped),
]


@pytest.mark.parametrize(
    ("history", "command", "reason"),
    REFUSED,
    ids=[f"{type(command).__name__} when {history}" for history, command, _ in REFUSED],
)
def test_commands_are_refused_for_a_reason(history, command, reason):
    scenario(Order).given(*HISTORIES[history]).when(command).then_rejected(reason)


def test_the_state_is_what_the_events_fold_to():
    scenario(Order).given(PLACED, PAID).then_state(Order(Status.PAID, TOTAL, PAYMENT))


def test_an_order_of_the_first_version_is_read_without_gifts():
    store = EventStore(MemoryEventLog(), deciders=[Order])
    line = {"sku": "GS-000001", "quantity": 3, "unit_price": "1.50"}
    first = {
        "order_id": 7,
        "customer_id": str(ADA),
        "lines": [line],
        "total": "4.50",
        "note": None,
        "placed_at": "2026-01-05T12:00:00Z",
    }
    store.append("order-7", EventData("order.placed", first, version=1))

    (recorded,) = store.read_stream("order-7")

    lines = (OrderLine("GS-000001", 3, Decimal("1.50"), gift=False),)
    assert recorded.schema_version == 1
    assert recorded.event == OrderPlaced(7, ADA, lines, Decimal("4.50"), None, NOON)


def test_orders_are_found_by_their_customer():
    store = EventStore(MemoryEventLog(), deciders=[Order])
    store.handle(PLACE)

    (recorded,) = store.read_stream("order-7")

    assert recorded.tags == (f"customer:{ADA}",)
