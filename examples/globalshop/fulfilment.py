"""Fulfilment: from an order to goods that have left, or to money and goods that are back.

Three kinds of streams have to do with each other: the order, the goods that are reserved for it,
and its shipment. Each decides for itself; `fulfilment` is what reacts to all of them:

    placed ── reserve goods, wait for the money ──► paid ── ask the carrier, wait ──► shipped
       │ not paid in time                             │ refused, or not collected in time
       └────► cancelled ── release goods              └────► cancelled, refunded ── release goods

A reaction follows from what has happened, never from what was asked for: goods are released when
the order *is* cancelled, because a payment may have been faster than the end of its time.

Reserved goods are told by events alone; the table `inventory` has its own life.
"""

from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from eventstore import Query, QueryItem, RecordedEvent, Rejected, aggregate, event, evolves, handles
from eventstore.process import (
    Cancel,
    Complete,
    Dispatch,
    ProcessManager,
    Reaction,
    Schedule,
    TimedOut,
)
from examples.globalshop.orders import (
    CancelOrder,
    ExpireOrder,
    OrderCancelled,
    OrderLine,
    OrderPaid,
    OrderPlaced,
    OrderShipped,
    ShipOrder,
)

PAYMENT = "payment"
"""The timer that waits for the money."""

COLLECTION = "collection"
"""The timer that waits for the carrier."""


@event("stock.reserved")
class StockReserved:
    """Goods wait for their order."""

    order_id: int
    lines: tuple[OrderLine, ...]


@event("stock.released")
class StockReleased:
    """Goods are for others again."""

    order_id: int


@event("shipment.requested")
class ShipmentRequested:
    """The carrier was asked to come."""

    order_id: int


@event("shipment.collected")
class ShipmentCollected:
    """The carrier has the goods."""

    order_id: int
    collected_on: date


@event("shipment.refused")
class ShipmentRefused:
    """The goods do not leave."""

    order_id: int
    reason: str


@event("shipment.recalled")
class ShipmentRecalled:
    """The goods had left, and come back."""

    order_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReserveStock:
    """Puts goods aside."""

    order_id: int
    lines: tuple[OrderLine, ...]


@dataclass(frozen=True, slots=True)
class ReleaseStock:
    """Gives goods back."""

    order_id: int


@dataclass(frozen=True, slots=True)
class RequestShipment:
    """Asks the carrier to come."""

    order_id: int


@dataclass(frozen=True, slots=True)
class CollectShipment:
    """The carrier comes."""

    order_id: int
    collected_on: date


@dataclass(frozen=True, slots=True)
class RefuseShipment:
    """The carrier does not come, or does not want it."""

    order_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecallShipment:
    """The goods are wanted back, wherever they are."""

    order_id: int
    reason: str


class AlreadyCollected(Rejected):
    """The carrier has the goods."""


class NotRequested(Rejected):
    """The carrier was not asked, or not any more."""


@aggregate("reservation", identity="order_id")
class Reservation:
    """Goods that wait for one order."""

    held: bool = False

    @handles
    def reserve(self, command: ReserveStock) -> StockReserved | None:
        """Once."""
        return None if self.held else StockReserved(command.order_id, command.lines)

    @handles
    def release(self, command: ReleaseStock) -> StockReleased | None:
        """What is not held need not be released."""
        return StockReleased(command.order_id) if self.held else None

    @evolves
    def _reserved(self, _: StockReserved) -> None:
        self.held = True

    @evolves
    def _released(self, _: StockReleased) -> None:
        self.held = False


@aggregate("shipment", identity="order_id")
class Shipment:
    """The goods of one order on their way."""

    requested: bool = False
    collected: bool = False

    @handles
    def request(self, command: RequestShipment) -> ShipmentRequested:
        """The carrier is asked."""
        return ShipmentRequested(command.order_id)

    @handles
    def collect(self, command: CollectShipment) -> ShipmentCollected:
        """Only what the carrier was asked for."""
        self._check_waiting(command.order_id)
        return ShipmentCollected(command.order_id, command.collected_on)

    @handles
    def refuse(self, command: RefuseShipment) -> ShipmentRefused:
        """Only what is still here."""
        self._check_waiting(command.order_id)
        return ShipmentRefused(command.order_id, command.reason)

    @handles
    def recall(self, command: RecallShipment) -> ShipmentRefused | ShipmentRecalled:
        """From the ramp or from the road."""
        if self.collected:
            return ShipmentRecalled(command.order_id, command.reason)
        self._check_waiting(command.order_id)
        return ShipmentRefused(command.order_id, command.reason)

    @evolves
    def _requested(self, _: ShipmentRequested) -> None:
        self.requested = True

    @evolves
    def _collected(self, _: ShipmentCollected) -> None:
        self.collected = True

    @evolves
    def _off(self, _: ShipmentRefused | ShipmentRecalled) -> None:
        self.requested = self.collected = False

    def _check_waiting(self, order_id: int) -> None:
        if self.collected:
            raise AlreadyCollected(f"the goods of order {order_id} have left")
        if not self.requested:
            raise NotRequested(f"no carrier is asked for order {order_id}")


QUERY = Query(
    (
        QueryItem(
            frozenset(
                {
                    "order.placed",
                    "order.paid",
                    "order.shipped",
                    "order.cancelled",
                    "shipment.collected",
                    "shipment.refused",
                    "shipment.recalled",
                    "stock.released",
                }
            )
        ),
    )
)
"""What the process is made of; its own doings among it are left out."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one order is.

    Attributes:
        order_id: Which.
        shipping: Whether a carrier is asked, or has the goods.
        cancelled: Whether the order is off.
    """

    order_id: int = 0
    shipping: bool = False
    cancelled: bool = False


def fulfilment(
    pay_within: timedelta = timedelta(days=2), collect_within: timedelta = timedelta(days=5)
) -> ProcessManager[Progress]:
    """Returns the process manager of orders.

    Args:
        pay_within: Time for the money to come.
        collect_within: Time for the carrier to come.
    """

    def react(progress: Progress, taken: Any) -> list[Reaction]:
        match taken:
            case OrderPlaced(order_id, lines=lines):
                return [Dispatch(ReserveStock(order_id, lines)), Schedule(PAYMENT, pay_within)]
            case OrderPaid(order_id):
                return [
                    Cancel(PAYMENT),
                    Dispatch(RequestShipment(order_id)),
                    Schedule(COLLECTION, collect_within),
                ]
            case TimedOut(name):
                return [Dispatch(_overdue(name, progress.order_id))]
            case ShipmentCollected(order_id, collected_on):
                return [Cancel(COLLECTION), Dispatch(ShipOrder(order_id, collected_on))]
            case _:
                return _react_to_end(progress, taken)

    return ProcessManager(
        name="fulfilment",
        correlate=_order_of,
        initial_state=Progress,
        evolve=_evolve,
        react=react,
        query=QUERY,
    )


def _overdue(timer: str, order_id: int) -> ExpireOrder | RefuseShipment:
    """What to do when the time is over. What came at the last moment makes it be refused."""
    if timer == PAYMENT:
        return ExpireOrder(order_id)
    return RefuseShipment(order_id, "not collected in time")


def _react_to_end(progress: Progress, taken: Any) -> list[Reaction]:
    match taken:
        case ShipmentRefused(order_id, reason) if not progress.cancelled:
            return [Cancel(COLLECTION), Dispatch(CancelOrder(order_id, f"shipment: {reason}"))]
        case OrderCancelled(order_id, reason) if progress.shipping:
            return [Cancel(COLLECTION), Dispatch(RecallShipment(order_id, f"order: {reason}"))]
        case OrderCancelled(order_id) | ShipmentRefused(order_id) | ShipmentRecalled(order_id):
            return [Cancel(PAYMENT), Dispatch(ReleaseStock(order_id))]
        case OrderShipped() | StockReleased():
            return [Complete()]
    return []


def _evolve(progress: Progress, taken: Any) -> Progress:
    match taken:
        case OrderPlaced(order_id):
            return replace(progress, order_id=order_id)
        case OrderPaid():
            return replace(progress, shipping=True)
        case ShipmentRefused() | ShipmentRecalled():
            return replace(progress, shipping=False)
        case OrderCancelled():
            return replace(progress, cancelled=True)
    return progress


def _order_of(recorded: RecordedEvent) -> str:
    return str(recorded.event.order_id)
