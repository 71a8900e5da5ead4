"""What GlobalShop starts with, deterministic by seed: rows, and the events of its first orders."""

from __future__ import annotations

import random
import uuid
from dataclasses import astuple, dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from eventstore import NO_STREAM, EventData, EventStore, Occurrence
from eventstore.deciding.decider import decider_of
from eventstore.postgres import schema
from eventstore.postgres.log import PostgresEventLog
from examples.globalshop import order_tables
from examples.globalshop.ledger import Notes
from examples.globalshop.orders import (
    CancelOrder,
    Order,
    OrderLine,
    PayOrder,
    PlaceOrder,
    ShipOrder,
    total_of,
)
from examples.globalshop.vocabulary import (
    OPENED_AT,
    WAREHOUSES,
    Customer,
    Product,
    chance,
    make_customer,
    make_product,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

SCHEMA: Final = Path(__file__).with_name("schema.sql")
PROBE_SKU: Final = "PROBE"
"""A product of which one row of stock is counted over and over, to see how fast views follow."""
PROBE_WAREHOUSE: Final = "probe"

_CUSTOMERS: Final = 2_000
_PRODUCTS: Final = 400
_ORDERS: Final = 2_500
_STATUSES: Final = ("placed", "paid", "paid", "shipped", "shipped", "shipped", "cancelled")
_WITHOUT_GIFTS: Final = 0.1
"""Part of the orders that were written when `order.placed` had version 1."""
_AT_ONCE: Final = 100
"""Orders of one transaction: each holds a lock of its stream until the commit."""


@dataclass(frozen=True, slots=True)
class SeededOrder:
    """An order and all that has happened to it.

    Attributes:
        id: Its number.
        version: Of `order.placed`, in which it was written.
        history: Its events, oldest first, each with its time.
    """

    id: int
    version: int
    history: tuple[Occurrence, ...]

    @property
    def events(self) -> list[Any]:
        """Its events, in the latest version."""
        return [occurrence.event for occurrence in self.history]

    @property
    def stored(self) -> tuple[Occurrence, ...]:
        """Its events as they were written."""
        placed, *later = self.history
        return (_as_version_1(placed), *later) if self.version == 1 else self.history


@dataclass(slots=True)
class _Rows:
    customers: list[Customer]
    products: list[Product]
    inventory: list[tuple[Any, ...]]
    orders: list[SeededOrder]


def prepare(dsn: str, *, scale: float = 1.0, seed: int = 7) -> dict[str, int]:
    """Creates the schemas in an empty database and fills it.

    Orders are events first, appended in bulk; their rows follow in the same transactions, of which
    there are several. If it was interrupted, call it again: it goes on from there.

    Args:
        dsn: The database.
        scale: 1 makes about 14,000 rows and 5,700 events.
        seed: Equal seeds make equal rows.

    Returns:
        New rows per table; `events` for the events.
    """
    rows = _make_rows(random.Random(seed), scale)  # noqa: S311  # not a secret
    schema.upgrade(dsn)
    with psycopg.connect(dsn) as connection:
        notes = _copy_all(connection, rows)
        connection.commit()
        with EventStore(PostgresEventLog(dsn, connections_max=1), deciders=[Order]) as store:
            for orders in _missing(connection, rows.orders):
                with connection.transaction():
                    _append(store, connection, notes, orders)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")
    made: dict[str, int] = {}
    for (table, kind), count in notes.changes.items():
        made[table] = made.get(table, 0) + (count if kind == "insert" else 0)
    return made


def _copy_all(connection: psycopg.Connection[Any], rows: _Rows) -> Notes:
    """Creates the tables unless they are there, and fills those that are no orders'."""
    notes = Notes()
    if connection.execute("SELECT to_regclass('orders') IS NULL").fetchone() == (True,):
        connection.execute(SCHEMA.read_text("utf-8"))
        for table in ("customers", "products", "inventory"):
            notes.add(table, "insert", _copy(connection, table, getattr(rows, table)))
        # numbers are given here, so the sequence has to be told
        connection.execute(
            "SELECT setval(pg_get_serial_sequence('orders', 'id'), %s)", [len(rows.orders)]
        )
    return notes


def _copy(connection: psycopg.Connection[Any], table: str, rows: Iterable[Any]) -> int:
    count = 0
    statement = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row if isinstance(row, tuple) else astuple(row))
            count += 1
    return count


def _missing(
    connection: psycopg.Connection[Any], orders: Sequence[SeededOrder]
) -> Iterator[Sequence[SeededOrder]]:
    """Orders that are not there yet, in the portions of one transaction."""
    row = connection.execute("SELECT coalesce(max(id), 0) FROM orders").fetchone()
    there = int(row[0]) if row else 0
    connection.commit()
    for start in range(there, len(orders), _AT_ONCE):
        yield orders[start : start + _AT_ONCE]


def _append(
    store: EventStore,
    connection: psycopg.Connection[Any],
    notes: Notes,
    orders: Sequence[SeededOrder],
) -> None:
    streams = [(f"order-{order.id}", order.stored, NO_STREAM) for order in orders]
    store.append_all(streams, connection=connection)
    happened = [event for order in orders for event in order.events]
    notes.add(order_tables.EVENTS, "insert", len(happened))
    order_tables.apply_all(connection, notes, happened)


def _make_rows(rng: random.Random, scale: float) -> _Rows:
    many = max(1, round(_CUSTOMERS * scale)), max(8, round(_PRODUCTS * scale))
    customers = [
        make_customer(rng, OPENED_AT + timedelta(minutes=number)) for number in range(many[0])
    ]
    products = [make_product(rng, number) for number in range(1, many[1] + 1)]
    probe = Product(PROBE_SKU, "Freshness probe", None, Decimal(0), False, None, None)
    rows = _Rows(customers, [*products, probe], [], [])
    for product in products:
        for warehouse in WAREHOUSES:
            row = warehouse, product.sku, rng.randrange(50, 5_000), OPENED_AT
            rows.inventory.append(row)
    rows.inventory.append((PROBE_WAREHOUSE, PROBE_SKU, 0, OPENED_AT))
    ids = [customer.id for customer in customers]
    count = max(1, round(_ORDERS * scale))
    for order_id in range(1, count + 1):
        version = 1 if order_id <= count * _WITHOUT_GIFTS else 2
        commands = _commands(rng, order_id, ids, products, gifts=version > 1)
        rows.orders.append(SeededOrder(order_id, version, tuple(_decided(commands))))
    return rows


def _commands(
    rng: random.Random,
    order_id: int,
    customers: Sequence[uuid.UUID],
    products: Sequence[Product],
    *,
    gifts: bool,
) -> Iterator[tuple[datetime, object]]:
    """What was asked of an order, and when."""
    placed_at = OPENED_AT + timedelta(minutes=7 * order_id, microseconds=rng.randrange(1_000_000))
    lines = tuple(
        OrderLine(
            product.sku,
            rng.randint(1, 3),
            min(product.price, Decimal("99999.99")),
            gifts and chance(rng, 0.1),
        )
        for product in rng.sample(products, rng.randint(1, 4))
    )
    status = rng.choice(_STATUSES)
    note = rng.choice((None, None, None, "", "leave at the door", "für Oma 🎁"))
    yield placed_at, PlaceOrder(order_id, rng.choice(customers), lines, note, placed_at)
    if status in {"paid", "shipped"}:
        method = rng.choice(("card", "transfer", "wallet"))
        payment_id = uuid.UUID(int=rng.getrandbits(128), version=4)
        total = total_of(lines)
        yield placed_at, PayOrder(order_id, payment_id, total, method, placed_at)
    if status == "shipped":
        shipped_at = placed_at + timedelta(days=2)
        yield shipped_at, ShipOrder(order_id, shipped_at.date())
    if status == "cancelled":
        yield placed_at + timedelta(days=1), CancelOrder(order_id, "customer changed their mind")


def _decided(commands: Iterable[tuple[datetime, object]]) -> Iterator[Occurrence]:
    """The events that commands lead to, one after the other."""
    decider = decider_of(Order)
    state = decider.initial_state()
    for at, command in commands:
        events = decider.decided(command, state)
        state = decider.fold(state, events)
        yield from (Occurrence(event, occurred_at=at) for event in events)


def _as_version_1(occurrence: Occurrence) -> Occurrence:
    """An order's first event as the shop wrote it before there were gifts."""
    placed: Any = occurrence.event
    lines = [
        {"sku": line.sku, "quantity": line.quantity, "unit_price": str(line.unit_price)}
        for line in placed.lines
    ]
    data = {
        "order_id": placed.order_id,
        "customer_id": str(placed.customer_id),
        "lines": lines,
        "total": str(placed.total),
        "note": placed.note,
        "placed_at": placed.placed_at.isoformat(),
    }
    tags = (f"customer:{placed.customer_id}",)
    event = EventData("order.placed", data, version=1)
    return Occurrence(event, occurred_at=occurrence.occurred_at, tags=tags)
