"""Orders: what may be asked of one, when it is refused, and what happens if it is not.

A command may be refused; an event is a fact. Nothing in here reads a clock, a database or a random
number: what a decision needs is in the command, or has happened before.
"""

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from eventstore import Rejected, aggregate, event, evolves, handles, upcast


@dataclass(frozen=True, slots=True)
class OrderLine:
    """One product of an order.

    Attributes:
        sku: Which.
        quantity: How many.
        unit_price: What one of them costs.
        gift: Whether it is wrapped.
    """

    sku: str
    quantity: int
    unit_price: Decimal
    gift: bool


def total_of(lines: tuple[OrderLine, ...]) -> Decimal:
    """Returns what an order costs."""
    return sum((line.quantity * line.unit_price for line in lines), Decimal(0))


@event("order.placed", version=2, tags=lambda placed: (f"customer:{placed.customer_id}",))
class OrderPlaced:
    """A customer has ordered."""

    order_id: int
    customer_id: UUID
    lines: tuple[OrderLine, ...]
    total: Decimal
    note: str | None
    placed_at: datetime


@upcast(OrderPlaced, from_version=1)
def nothing_was_wrapped(data: dict[str, Any]) -> dict[str, Any]:
    """In version 1 the shop had no gifts."""
    data["lines"] = [{**line, "gift": False} for line in data["lines"]]
    return data


@event("order.paid")
class OrderPaid:
    """The money has come."""

    order_id: int
    payment_id: UUID
    amount: Decimal
    method: str
    paid_at: datetime


@event("order.shipped")
class OrderShipped:
    """The goods have left."""

    order_id: int
    shipped_on: date


@event("order.cancelled")
class OrderCancelled:
    """The order is off."""

    order_id: int
    reason: str


@event("order.refunded")
class OrderRefunded:
    """The money was returned."""

    order_id: int
    payment_id: UUID
    amount: Decimal


@dataclass(frozen=True, slots=True)
class PlaceOrder:
    """A customer orders."""

    order_id: int
    customer_id: UUID
    lines: tuple[OrderLine, ...]
    note: str | None
    placed_at: datetime


@dataclass(frozen=True, slots=True)
class PayOrder:
    """Money arrives for an order."""

    order_id: int
    payment_id: UUID
    amount: Decimal
    method: str
    paid_at: datetime


@dataclass(frozen=True, slots=True)
class ShipOrder:
    """The goods are handed to the carrier."""

    order_id: int
    shipped_on: date


@dataclass(frozen=True, slots=True)
class CancelOrder:
    """Somebody does not want the order any more; what was paid is returned."""

    order_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExpireOrder:
    """The time to pay is over."""

    order_id: int


class UnknownOrder(Rejected):
    """There is no such order."""


class EmptyOrder(Rejected):
    """An order is for one product at least, and for one piece of each."""


class AlreadyPlaced(Rejected):
    """There is an order with this number."""


class AlreadyPaid(Rejected):
    """The money is there already."""


class WrongAmount(Rejected):
    """It is not what the order costs."""


class NotPaid(Rejected):
    """Nothing leaves before it is paid."""


class AlreadyShipped(Rejected):
    """The goods have left."""


class AlreadyCancelled(Rejected):
    """The order is off."""


class Status(StrEnum):
    """Where an order is.

    Attributes:
        UNKNOWN: It has not been placed. Then PLACED.
        PLACED: It is waited for the money. Then PAID or CANCELLED.
        PAID: It waits for the carrier. Then SHIPPED or CANCELLED.
        SHIPPED: The end.
        CANCELLED: The other end.
    """

    UNKNOWN = "unknown"
    PLACED = "placed"
    PAID = "paid"
    SHIPPED = "shipped"
    CANCELLED = "cancelled"


@aggregate("order", identity="order_id")
class Order:
    """An order as its decisions see it: not all that is known, only what they depend on."""

    status: Status = Status.UNKNOWN
    total: Decimal = Decimal(0)
    payment_id: UUID | None = None

    @handles
    def place(self, command: PlaceOrder) -> OrderPlaced:
        """A number is given to one order only."""
        if self.status is not Status.UNKNOWN:
            raise AlreadyPlaced(f"order {command.order_id} is there already")
        if not command.lines or any(line.quantity < 1 for line in command.lines):
            raise EmptyOrder(f"order {command.order_id} is for nothing")
        return OrderPlaced(
            command.order_id,
            command.customer_id,
            command.lines,
            total_of(command.lines),
            command.note,
            command.placed_at,
        )

    @handles
    def pay(self, command: PayOrder) -> OrderPaid:
        """The whole amount, once."""
        self._check_open(command.order_id)
        if self.status is Status.PAID:
            raise AlreadyPaid(f"order {command.order_id} is paid already")
        if command.amount != self.total:
            raise WrongAmount(f"order {command.order_id} costs another amount")
        return OrderPaid(
            command.order_id, command.payment_id, command.amount, command.method, command.paid_at
        )

    @handles
    def ship(self, command: ShipOrder) -> OrderShipped:
        """Only what is paid."""
        self._check_open(command.order_id)
        if self.status is not Status.PAID:
            raise NotPaid(f"order {command.order_id} is not paid yet")
        return OrderShipped(command.order_id, command.shipped_on)

    @handles
    def cancel(self, command: CancelOrder) -> list[OrderCancelled | OrderRefunded]:
        """Until it has left. To cancel twice changes nothing, so it is not refused."""
        if self.status is Status.CANCELLED:
            return []
        self._check_open(command.order_id)
        cancelled = OrderCancelled(command.order_id, command.reason)
        if self.payment_id is None:
            return [cancelled]
        return [cancelled, OrderRefunded(command.order_id, self.payment_id, self.total)]

    @handles
    def expire(self, command: ExpireOrder) -> OrderCancelled | None:
        """If the money came at the last moment, that came first."""
        if self.status is Status.CANCELLED:
            return None
        self._check_open(command.order_id)
        if self.status is Status.PAID:
            raise AlreadyPaid(f"order {command.order_id} was paid in time")
        return OrderCancelled(command.order_id, "not paid in time")

    @evolves
    def _placed(self, placed: OrderPlaced) -> None:
        self.status, self.total = Status.PLACED, placed.total

    @evolves
    def _paid(self, paid: OrderPaid) -> None:
        self.status, self.payment_id = Status.PAID, paid.payment_id

    @evolves
    def _shipped(self, _: OrderShipped) -> None:
        self.status = Status.SHIPPED

    @evolves
    def _cancelled(self, _: OrderCancelled) -> None:
        self.status = Status.CANCELLED

    @evolves
    def _refunded(self, _: OrderRefunded) -> None:
        self.payment_id = None

    def _check_open(self, order_id: int) -> None:
        if self.status is Status.UNKNOWN:
            raise UnknownOrder(f"there is no order {order_id}")
        if self.status is Status.SHIPPED:
            raise AlreadyShipped(f"order {order_id} has left")
        if self.status is Status.CANCELLED:
            raise AlreadyCancelled(f"order {order_id} is cancelled")
