"""The rows GlobalShop starts with: set-based, deterministic by seed."""

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
    from collections.abc import Iterable, Sequence

SCHEMA: Final = Path(__file__).with_name("schema.sql")
PROBE_SKU: Final = "PROBE"
"""A product of which one row of stock is counted over and over, to see how fast views follow."""
PROBE_WAREHOUSE: Final = "probe"

_CUSTOMERS: Final = 2_000
_PRODUCTS: Final = 400
_ORDERS: Final = 2_500
_STATUSES: Final = ("placed", "paid", "paid", "shipped", "shipped", "shipped", "cancelled")


@dataclass(slots=True)
class _Rows:
    customers: list[Customer]
    products: list[Product]
    inventory: list[tuple[Any, ...]]
    orders: list[tuple[Any, ...]]
    order_items: list[tuple[Any, ...]]
    payments: list[tuple[Any, ...]]


def prepare(dsn: str, *, scale: float = 1.0, seed: int = 7) -> dict[str, int]:
    """Creates the schema in an empty database and fills it, in one transaction.

    Args:
        dsn: The database.
        scale: 1 makes about 14,000 rows.
        seed: Equal seeds make equal rows.

    Returns:
        Rows per table.
    """
    rows = _make_rows(random.Random(seed), scale)  # noqa: S311  # not a secret
    with psycopg.connect(dsn) as connection:
        connection.execute(SCHEMA.read_text("utf-8"))
        counts = {
            table: _copy(connection, table, getattr(rows, table)) for table in _Rows.__slots__
        }
        # ids were given, so the sequence has to be told
        connection.execute(
            "SELECT setval(pg_get_serial_sequence('orders', 'id'), (SELECT max(id) FROM orders))"
        )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")
    return counts


def _copy(connection: psycopg.Connection[Any], table: str, rows: Iterable[Any]) -> int:
    count = 0
    statement = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row if isinstance(row, tuple) else astuple(row))
            count += 1
    return count


def _make_rows(rng: random.Random, scale: float) -> _Rows:
    many = max(1, round(_CUSTOMERS * scale)), max(8, round(_PRODUCTS * scale))
    customers = [
        make_customer(rng, OPENED_AT + timedelta(minutes=number)) for number in range(many[0])
    ]
    products = [make_product(rng, number) for number in range(1, many[1] + 1)]
    probe = Product(PROBE_SKU, "Freshness probe", None, Decimal(0), False, None, None)
    rows = _Rows(customers, [*products, probe], [], [], [], [])
    for product in products:
        for warehouse in WAREHOUSES:
            row = warehouse, product.sku, rng.randrange(50, 5_000), OPENED_AT
            rows.inventory.append(row)
    rows.inventory.append((PROBE_WAREHOUSE, PROBE_SKU, 0, OPENED_AT))
    ids = [customer.id for customer in customers]
    for order_id in range(1, max(1, round(_ORDERS * scale)) + 1):
        _add_order(rng, rows, order_id, ids, products)
    return rows


def _add_order(
    rng: random.Random,
    rows: _Rows,
    order_id: int,
    customers: Sequence[uuid.UUID],
    products: Sequence[Product],
) -> None:
    placed_at = OPENED_AT + timedelta(minutes=7 * order_id, microseconds=rng.randrange(1_000_000))
    total = Decimal(0)
    for line, product in enumerate(rng.sample(products, rng.randint(1, 4)), start=1):
        quantity = rng.randint(1, 3)
        price = min(product.price, Decimal("99999.99"))
        total += quantity * price
        gift = chance(rng, 0.1)
        rows.order_items.append((order_id, line, product.sku, quantity, price, gift))
    status = rng.choice(_STATUSES)
    shipped_on = (placed_at + timedelta(days=2)).date() if status == "shipped" else None
    note = rng.choice((None, None, None, "", "leave at the door", "für Oma 🎁"))
    row = (order_id, rng.choice(customers), status, total, note, placed_at, shipped_on)
    rows.orders.append(row)
    if status in {"paid", "shipped"}:
        method = rng.choice(("card", "transfer", "wallet"))
        identity = uuid.UUID(int=rng.getrandbits(128), version=4)
        rows.payments.append((identity, order_id, total, method, False, placed_at))
