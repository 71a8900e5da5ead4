"""What fragments of code on the pages use and do not define, for type checkers."""

# ruff: noqa: F401, TC001, TC002, TC003
# The imports are for the fragments: `from docs_names import *`.

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import structlog

import cdc
from eventstore import (
    AsyncEventStore,
    EventStore,
    Query,
    QueryItem,
    RecordedEvent,
    aggregate,
    event,
    evolves,
    handles,
)
from eventstore.memory import MemoryEventLog
from eventstore.postgres.async_log import AsyncPostgresEventLog
from eventstore.postgres.log import PostgresEventLog
from eventstore.process import (
    Cancel,
    CommandRejected,
    Complete,
    Dispatch,
    ProcessManager,
    Reaction,
    Schedule,
    TimedOut,
)
from eventstore.process.async_runner import AsyncProcessRunner
from eventstore.process.runner import ProcessRunner
from eventstore.reactor import Reactor
from eventstore.subscription import AsyncSubscription, HandlerFailure, Subscription
from eventstore.subscription.async_runner import AsyncSubscriptionRunner
from eventstore.subscription.runner import SubscriptionRunner
from eventstore.testing import (
    MovedClock,
    ProcessSimulation,
    process_scenario,
    projection_scenario,
)

DSN = "postgresql:///shop"
KAFKA = "kafka:9092"
RECEIVER = "https://example.org/orders"
due = datetime(2026, 1, 1, tzinfo=UTC)


@event("docs.order.placed")
class OrderPlaced:
    order_id: str
    total: int


@event("docs.order.cancelled")
class OrderCancelled:
    order_id: str


@event("docs.payment.received")
class PaymentReceived:
    order_id: str


@event("docs.shipment.sent")
class ShipmentSent:
    order_id: str


@event("docs.money.deposited")
class MoneyDeposited:
    account: str
    amount: Decimal


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
class SendShipment:
    order_id: str


@aggregate("docs-order", identity="order_id", ignores=[OrderPlaced])
class Order:
    @handles
    def place(self, command: PlaceOrder) -> OrderPlaced:
        return OrderPlaced(command.order_id, command.total)


Account = Payment = Shipment = Order
store = EventStore(MemoryEventLog(), deciders=[Order])
async_store = AsyncEventStore(AsyncPostgresEventLog(DSN), deciders=[Order])


class Balances:
    name = "balances"
    query = Query(category="account")

    def apply(self, event: RecordedEvent, connection: psycopg.Connection[Any]) -> None:
        raise NotImplementedError


fulfilment: ProcessManager[Any]
paid = Reactor(name="paid", react=lambda _: None)
runner: SubscriptionRunner


class Response:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


class App:
    def get(self, path: str) -> Callable[[Callable[[], Response]], Callable[[], Response]]:
        raise NotImplementedError(path)


class Sentry:
    def capture_exception(self, error: BaseException | None) -> object:
        raise NotImplementedError


app, sentry_sdk = App(), Sentry()


def page_the_operator(error: BaseException) -> object:
    raise NotImplementedError
