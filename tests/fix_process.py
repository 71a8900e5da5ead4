"""An order is placed, paid and shipped; or all of it is taken back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from eventstore.deciding.decider import Decider
from eventstore.errors import Rejected
from eventstore.model.query import Query, QueryItem
from eventstore.process import (
    Cancel,
    CommandRejected,
    Complete,
    Dispatch,
    ProcessManager,
    Schedule,
    TimedOut,
)
from eventstore.serialization.registry import EventTypes
from eventstore.store import EventStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventstore.log import EventLog

types = EventTypes()


@types.event("order.placed", version=1)
class OrderPlaced:
    order_id: str
    total: int


@types.event("order.cancelled", version=1)
class OrderCancelled:
    order_id: str


@types.event("payment.requested", version=1)
class PaymentRequested:
    order_id: str
    total: int


@types.event("payment.received", version=1)
class PaymentReceived:
    order_id: str


@types.event("payment.refunded", version=1)
class PaymentRefunded:
    order_id: str


@types.event("shipment.sent", version=1)
class ShipmentSent:
    order_id: str


@dataclass(frozen=True)
class PlaceOrder:
    order_id: str
    total: int


@dataclass(frozen=True)
class CancelOrder:
    order_id: str


@dataclass(frozen=True)
class RequestPayment:
    order_id: str
    total: int


@dataclass(frozen=True)
class ReceivePayment:
    order_id: str


@dataclass(frozen=True)
class RefundPayment:
    order_id: str


@dataclass(frozen=True)
class SendShipment:
    order_id: str


class TooMuchError(Rejected):
    pass


class NoRouteError(Rejected):
    pass


def decide_order(command: Any, state: tuple[Any, ...]) -> Any:
    if isinstance(command, PlaceOrder):
        return OrderPlaced(command.order_id, command.total)
    if any(isinstance(event, OrderCancelled) for event in state):
        raise Rejected("the order is cancelled")
    return OrderCancelled(command.order_id)


def decide_payment(command: Any, state: tuple[Any, ...]) -> Any:
    if isinstance(command, RequestPayment):
        if command.total > 1000:
            raise TooMuchError("too much")
        return PaymentRequested(command.order_id, command.total)
    if isinstance(command, ReceivePayment):
        return PaymentReceived(command.order_id)
    return PaymentRefunded(command.order_id)


def decide_shipment(command: Any, state: tuple[Any, ...]) -> Any:
    if command.order_id.startswith("far"):
        raise NoRouteError("no route")
    return ShipmentSent(command.order_id)


def remember(state: tuple[Any, ...], event: Any) -> tuple[Any, ...]:
    return (*state, event)


def decider(category: str, decide: Any, *commands: type) -> Decider[Any, Any, Any]:
    return Decider(
        category=category,
        decide=decide,
        evolve=remember,
        initial_state=tuple,
        commands=commands,
        stream_id=lambda command: command.order_id,
    )


def deciders() -> list[Decider[Any, Any, Any]]:
    return [
        decider("order", decide_order, PlaceOrder, CancelOrder),
        decider("payment", decide_payment, RequestPayment, ReceivePayment, RefundPayment),
        decider("shipment", decide_shipment, SendShipment),
    ]


def shop(log: EventLog, tenant: str = "default") -> EventStore:
    return EventStore(log, types=types, tenant=tenant, deciders=deciders())


@dataclass(frozen=True)
class Fulfilment:
    """How far an order is."""

    order_id: str = ""
    paid: bool = False


def evolve(state: Fulfilment, taken: Any) -> Fulfilment:
    if isinstance(taken, OrderPlaced):
        return Fulfilment(taken.order_id)
    if isinstance(taken, PaymentReceived):
        return Fulfilment(taken.order_id, paid=True)
    return state


def react(state: Fulfilment, taken: Any, patience: timedelta) -> Iterable[Any]:
    match taken:
        case OrderPlaced(order_id, total):
            yield Dispatch(RequestPayment(order_id, total))
            yield Schedule("payment", after=patience)
        case PaymentReceived(order_id):
            yield Cancel("payment")
            yield Dispatch(SendShipment(order_id))
        case TimedOut("payment"):
            yield Dispatch(CancelOrder(state.order_id))
        case CommandRejected():
            if state.paid:
                yield Dispatch(RefundPayment(state.order_id))
            yield Dispatch(CancelOrder(state.order_id))
        case ShipmentSent() | OrderCancelled():
            yield Complete()


def fulfilment(patience: timedelta = timedelta(hours=1)) -> ProcessManager[Fulfilment]:
    return ProcessManager(
        name="fulfilment",
        correlate=lambda recorded: recorded.event.order_id,
        initial_state=Fulfilment,
        evolve=evolve,
        react=lambda state, taken: react(state, taken, patience),
        query=Query((QueryItem(frozenset(declared.name for declared in types)),)),
    )
