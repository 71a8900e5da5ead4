"""An order's process on a real database: the goods, the money and the tables, whatever fails."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
import pytest

from eventstore.postgres.log import PostgresEventLog
from eventstore.process.runner import ProcessRunner
from examples.globalshop import seed
from examples.globalshop.fulfilment import (
    CollectShipment,
    RefuseShipment,
    Reservation,
    Shipment,
    fulfilment,
)
from examples.globalshop.order_tables import OrderStore
from examples.globalshop.orders import (
    CancelOrder,
    Order,
    OrderLine,
    PayOrder,
    PlaceOrder,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

ADA = UUID(int=1)
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
TODAY = NOON.date()
TOTAL = Decimal("19.50")
LINES = (OrderLine("GS-000001", 2, Decimal("9.75"), gift=False),)
PAYMENT = PayOrder(7, uuid4(), TOTAL, "card", NOON)
DECIDERS = (Order, Reservation, Shipment)
AT_ONCE = timedelta(0)

HAPPY_END = {
    "order-7": ["order.placed", "order.paid", "order.shipped"],
    "reservation-7": ["stock.reserved"],
    "shipment-7": ["shipment.requested", "shipment.collected"],
}


@dataclass(frozen=True, slots=True)
class Shop:
    """A shop with one customer, one product and no order."""

    dsn: str
    store: OrderStore

    def ask(self, command: object) -> None:
        with psycopg.connect(self.dsn) as connection:
            self.store.handle(command, connection=connection)

    @contextmanager
    def fulfilling(self, **within: timedelta) -> Iterator[ProcessRunner]:
        with ProcessRunner(self.dsn, fulfilment(**within), self.store) as runner:
            yield runner

    def streams(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for recorded in self.store.read_all():
            found.setdefault(recorded.stream, []).append(recorded.type)
        return found

    def until(self, stream: str, type_: str) -> None:
        wait_until(lambda: type_ in self.streams().get(stream, ()))

    def until_completed(self) -> None:
        wait_until(lambda: self.row("SELECT completed_at IS NOT NULL FROM eventstore.processes")[0])

    def row(self, query: str) -> Any:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query).fetchone() or (None,)

    def order(self) -> tuple[str, bool | None]:
        """Status of the order's row, and whether the money was returned."""
        return self.row(
            "SELECT status::text, refunded FROM orders LEFT JOIN payments ON order_id = orders.id"
        )


@pytest.fixture
def shop(store_dsn: str) -> Iterator[Shop]:
    with psycopg.connect(store_dsn) as connection:
        connection.execute(seed.SCHEMA.read_text("utf-8"))
        connection.execute(
            "INSERT INTO customers VALUES (%s, 'a@example.com', 'Ada', '', NULL, false, '{}', %s)",
            [ADA, NOON],
        )
        connection.execute("INSERT INTO products VALUES ('GS-000001', 'Kettle', NULL, 9.75)")
    with OrderStore(PostgresEventLog(store_dsn), deciders=DECIDERS) as store:
        yield Shop(store_dsn, store)


def test_an_order_that_is_paid_and_collected_is_shipped(shop):
    with shop.fulfilling():
        shop.ask(PlaceOrder(7, ADA, LINES, None, NOON))
        shop.until("reservation-7", "stock.reserved")
        shop.ask(PAYMENT)
        shop.until("shipment-7", "shipment.requested")
        shop.ask(CollectShipment(7, TODAY))
        shop.until_completed()

    assert shop.streams() == HAPPY_END
    assert shop.order() == ("shipped", False)
    assert shop.row("SELECT count(*) FROM eventstore.timers") == (0,)


def test_an_order_that_is_not_paid_in_time_is_cancelled_and_its_goods_are_released(shop):
    with shop.fulfilling(pay_within=AT_ONCE):
        shop.ask(PlaceOrder(7, ADA, LINES, None, NOON))
        shop.until_completed()

    assert shop.streams() == {
        "order-7": ["order.placed", "order.cancelled"],
        "reservation-7": ["stock.reserved", "stock.released"],
    }
    assert shop.order() == ("cancelled", None)


def test_money_that_came_before_the_time_was_over_wins(shop):
    """The timer is due when it is set, and the money is there already."""
    shop.ask(PlaceOrder(7, ADA, LINES, None, NOON))
    shop.ask(PAYMENT)
    with shop.fulfilling(pay_within=AT_ONCE):
        shop.until("shipment-7", "shipment.requested")
        shop.ask(CollectShipment(7, TODAY))
        shop.until_completed()

    assert shop.streams() == HAPPY_END


def test_an_order_that_the_carrier_refuses_is_refunded_and_its_goods_are_released(shop):
    with shop.fulfilling():
        shop.ask(PlaceOrder(7, ADA, LINES, None, NOON))
        shop.ask(PAYMENT)
        shop.until("shipment-7", "shipment.requested")
        shop.ask(RefuseShipment(7, "too heavy"))
        shop.until_completed()

    assert shop.streams() == {
        "order-7": ["order.placed", "order.paid", "order.cancelled", "order.refunded"],
        "reservation-7": ["stock.reserved", "stock.released"],
        "shipment-7": ["shipment.requested", "shipment.refused"],
    }
    assert shop.order() == ("cancelled", True)


def test_an_order_that_is_not_collected_in_time_is_refunded(shop):
    with shop.fulfilling(collect_within=AT_ONCE):
        shop.ask(PlaceOrder(7, ADA, LINES, None, NOON))
        shop.ask(PAYMENT)
        shop.until_completed()

    assert shop.streams()["shipment-7"] == ["shipment.requested", "shipment.refused"]
    assert shop.streams()["reservation-7"] == ["stock.reserved", "stock.released"]
    assert shop.order() == ("cancelled", True)


def test_a_customer_who_cancels_gets_the_money_and_the_goods_come_back(shop):
    with shop.fulfilling():
        shop.ask(PlaceOrder(7, ADA, LINES, None, NOON))
        shop.ask(PAYMENT)
        shop.until("shipment-7", "shipment.requested")
        shop.ask(CancelOrder(7, "found it cheaper"))
        shop.until_completed()

    assert shop.streams()["shipment-7"] == ["shipment.requested", "shipment.refused"]
    assert shop.streams()["reservation-7"] == ["stock.reserved", "stock.released"]
    assert shop.order() == ("cancelled", True)


_CRASHING = """
import os, sys
from eventstore.postgres.log import PostgresEventLog
from eventstore.process.runner import ProcessRunner
from examples.globalshop.fulfilment import Reservation, Shipment, fulfilment
from examples.globalshop.order_tables import OrderStore
from examples.globalshop.orders import Order

dsn, fatal = os.environ["SHOP_DSN"], sys.argv[1]

class Crashing(OrderStore):
    def handle(self, command, **options):
        handled = super().handle(command, **options)
        if type(command).__name__ == fatal:
            os._exit(9)
        return handled

store = Crashing(PostgresEventLog(dsn), deciders=[Order, Reservation, Shipment])
ProcessRunner(dsn, fulfilment(), store).run()
"""


@pytest.mark.parametrize(
    ("fatal", "undone"),
    [
        ("ReserveStock", "stock.reserved"),
        ("RequestShipment", "shipment.requested"),
        ("ShipOrder", "order.shipped"),
    ],
)
def test_a_process_that_is_killed_between_a_command_and_its_commit_goes_on(shop, fatal, undone):
    """Its command is taken back with it, and sent again by whoever takes over: once."""
    shop.ask(PlaceOrder(7, ADA, LINES, None, NOON))
    shop.ask(PAYMENT)
    with subprocess.Popen(
        [sys.executable, "-c", _CRASHING, fatal], env={**os.environ, "SHOP_DSN": shop.dsn}
    ) as crashing:
        try:
            if fatal == "ShipOrder":
                shop.until("shipment-7", "shipment.requested")
                shop.ask(CollectShipment(7, TODAY))
            code = crashing.wait(60)
        finally:
            crashing.kill()
    undone = {
        "ReserveStock": "stock.",
        "RequestShipment": "shipment.",
        "ShipOrder": "order.shipped",
    }
    before = [type_ for types in shop.streams().values() for type_ in types]

    with shop.fulfilling():
        shop.until("shipment-7", "shipment.requested")
        if fatal != "ShipOrder":
            shop.ask(CollectShipment(7, TODAY))
        shop.until_completed()

    assert code == 9
    assert undone not in before
    assert shop.streams() == HAPPY_END
    assert shop.order() == ("shipped", False)
