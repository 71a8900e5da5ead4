"""What happens in a shop: every function is the inside of one transaction."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from examples.globalshop.ledger import Notes
from examples.globalshop.orders import (
    CancelOrder,
    OrderLine,
    PayOrder,
    PlaceOrder,
    ShipOrder,
    total_of,
)
from examples.globalshop.seed import PROBE_SKU, PROBE_WAREHOUSE
from examples.globalshop.vocabulary import (
    WAREHOUSES,
    Customer,
    chance,
    make_customer,
    make_price,
    make_product,
    nickname,
    preferences,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from psycopg import Connection

    from examples.globalshop.order_tables import OrderStore

    Activity: TypeAlias = Callable[["Shop", Connection[Any], Notes], None]

GHOST: Final = "ghost-"
"""Starts the e-mail address of customers who must never be seen: their insert was rolled back."""

_NEW_CUSTOMER: Final = "INSERT INTO customers VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
_NEW_PRODUCT: Final = "INSERT INTO products VALUES (%s, %s, %s, %s, %s, %s, %s)"
_NEW_STOCK: Final = "INSERT INTO inventory VALUES (%s, %s, %s, %s)"
_NEXT_ORDER: Final = "SELECT nextval(pg_get_serial_sequence('orders', 'id'))"
_TAKE_STOCK: Final = """
    UPDATE inventory SET on_hand = on_hand - %s
    WHERE warehouse = %s AND sku = %s AND on_hand >= %s
"""


@dataclass(slots=True)
class Shop:
    """What the traffic knows of the committed rows, so that it need not ask before each write.

    Attributes:
        rng: Decides everything; seeded.
        store: Takes the commands about orders.
        customers: Those who order.
        newcomers: Customers without orders, who may leave.
        skus: Products, the popular ones first.
        prices: Price of each product.
        placed: Orders not paid, with their totals.
        paid: Orders not shipped.
        shipped: Orders that have left.
        cancelled: Orders to be purged.
        missing: Stock rows that were deleted and will come back with the same key.
        products_made: Numbers given to products so far.
    """

    rng: random.Random
    store: OrderStore
    customers: list[UUID] = field(default_factory=list)
    newcomers: list[UUID] = field(default_factory=list)
    skus: list[str] = field(default_factory=list)
    prices: dict[str, Decimal] = field(default_factory=dict)
    placed: list[tuple[int, Decimal]] = field(default_factory=list)
    paid: list[int] = field(default_factory=list)
    shipped: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    products_made: int = 0

    @classmethod
    def read(cls, connection: Connection[Any], rng: random.Random, store: OrderStore) -> Shop:
        """Learns what is in the database."""
        shop = cls(rng, store)
        execute = connection.execute
        shop.customers = [row[0] for row in execute("SELECT id FROM customers ORDER BY created_at")]
        found = execute("SELECT sku, price FROM products WHERE sku <> %s ORDER BY sku", [PROBE_SKU])
        shop.prices = dict(found.fetchall())
        shop.skus = list(shop.prices)
        # runs on the same database continue its numbers
        shop.products_made = 10 * len(shop.skus)
        for order_id, status, total in execute("SELECT id, status, total FROM orders ORDER BY id"):
            shop.remember_order(order_id, status, total)
        return shop

    def remember_order(self, order_id: int, status: str, total: Decimal) -> None:
        """Files an order under its status."""
        if status == "placed":
            self.placed.append((order_id, total))
        elif status == "paid":
            self.paid.append(order_id)
        elif status == "shipped":
            self.shipped.append(order_id)
        elif status == "cancelled":
            self.cancelled.append(order_id)

    def popular_sku(self) -> str:
        """A product; few are asked for often, most seldom."""
        place = int(self.rng.paretovariate(0.6)) - 1
        return self.skus[place % len(self.skus)]

    def take(self, waiting: list[Any]) -> Any | None:
        """One of the waiting, in no order; None if there is none."""
        return self.rng.choice(waiting) if waiting else None

    def fresh_uuid(self) -> UUID:
        """A key that the seed decides."""
        return UUID(int=self.rng.getrandbits(128), version=4)


def place_order(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """An order, its items, the stock they take, and mostly its payment."""
    _place(shop, connection, notes, shop.rng.choice(shop.customers))


def pay_order(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A placed order is paid."""
    waiting = shop.take(shop.placed)
    if waiting is None:
        return place_order(shop, connection, notes)
    order_id, total = waiting
    _pay(shop, connection, notes, order_id, total)
    notes.afterwards(shop.placed.remove, waiting)
    notes.afterwards(shop.paid.append, order_id)
    return None


def ship_order(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A paid order leaves."""
    order_id = shop.take(shop.paid)
    if order_id is None:
        return place_order(shop, connection, notes)
    _ask(shop, connection, notes, ShipOrder(order_id, _now().date()))
    notes.afterwards(shop.paid.remove, order_id)
    notes.afterwards(shop.shipped.append, order_id)
    return None


def cancel_order(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A paid order is cancelled and its money returned."""
    order_id = shop.take(shop.paid)
    if order_id is None:
        return place_order(shop, connection, notes)
    _ask(shop, connection, notes, CancelOrder(order_id, "customer changed their mind"))
    notes.afterwards(shop.paid.remove, order_id)
    notes.afterwards(shop.cancelled.append, order_id)
    return None


def cancel_too_late(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A customer wants to cancel what has left: that is refused."""
    order_id = shop.take(shop.shipped)
    if order_id is None:
        return place_order(shop, connection, notes)
    _ask(shop, connection, notes, CancelOrder(order_id, "asked too late"))
    return None


def purge_cancelled(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """Rows of cancelled orders go, children first; what happened to these orders stays."""
    gone = shop.cancelled[:3]
    for table, column in (("payments", "order_id"), ("order_items", "order_id"), ("orders", "id")):
        deleted = connection.execute(f"DELETE FROM {table} WHERE {column} = ANY(%s)", [gone])  # noqa: S608
        notes.add(table, "delete", deleted.rowcount)
    notes.afterwards(shop.cancelled.__delitem__, slice(len(gone)))


def restock(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A delivery for one warehouse: many rows by one statement."""
    skus = sorted({shop.popular_sku() for _ in range(8)})
    updated = connection.execute(
        "UPDATE inventory SET on_hand = on_hand + 50, counted_at = %s"
        " WHERE warehouse = %s AND sku = ANY(%s)",
        [_now(), shop.rng.choice(WAREHOUSES), skus],
    )
    notes.add("inventory", "update", updated.rowcount)


def edit_customer(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A customer changes what the shop knows of them; '' and NULL are two answers."""
    rng, customer = shop.rng, shop.rng.choice(shop.customers)
    if chance(rng, 0.5):
        statement, value = "UPDATE customers SET nickname = %s WHERE id = %s", nickname(rng)
    else:
        statement, value = "UPDATE customers SET preferences = %s WHERE id = %s", preferences(rng)
    connection.execute(statement, [value, customer])
    notes.add("customers", "update")


def register_customers(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A partner's customers arrive by COPY: many rows at one position of the log."""
    arriving = [make_customer(shop.rng, _now()) for _ in range(12)]
    with connection.cursor() as cursor, cursor.copy("COPY customers FROM STDIN") as copy:
        for customer in arriving:
            copy.write_row(astuple(customer))
    notes.add("customers", "insert", len(arriving))
    notes.afterwards(shop.newcomers.extend, [customer.id for customer in arriving])


def close_account(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A customer without orders leaves."""
    leaving = shop.take(shop.newcomers)
    if leaving is None:
        return register_customers(shop, connection, notes)
    connection.execute("DELETE FROM customers WHERE id = %s", [leaving])
    notes.add("customers", "delete")
    notes.afterwards(shop.newcomers.remove, leaving)
    return None


def launch_products(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """New products with stock everywhere, by multi-row inserts."""
    made = shop.products_made
    products = [make_product(shop.rng, made + number) for number in (1, 2, 3)]
    with connection.cursor() as cursor:
        cursor.executemany(_NEW_PRODUCT, [astuple(product) for product in products])
        stock = [(place, p.sku, 100, _now()) for p in products for place in WAREHOUSES]
        cursor.executemany(_NEW_STOCK, stock)
    notes.add("products", "insert", len(products))
    notes.add("inventory", "insert", len(stock))
    # numbers of rolled back launches are given again: their keys must come back clean
    notes.afterwards(setattr, shop, "products_made", made + len(products))
    notes.afterwards(shop.skus.extend, [product.sku for product in products])
    notes.afterwards(shop.prices.update, {p.sku: p.price for p in products})


def reprice(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A new price; a long description stays as it is, out of line."""
    sku, price = shop.rng.choice(shop.skus), make_price(shop.rng)
    connection.execute("UPDATE products SET price = %s WHERE sku = %s", [price, sku])
    notes.add("products", "update")
    notes.afterwards(shop.prices.update, {sku: price})


def rename_product(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A product's key changes, and with it the keys and references of its stock and items."""
    place = shop.rng.randrange(len(shop.skus) // 2, len(shop.skus))
    old = shop.skus[place]
    new = f"{old.partition('/')[0]}/{shop.rng.randrange(10**6):06d}"
    followers = connection.execute(
        "SELECT (SELECT count(*) FROM inventory WHERE sku = %s),"
        " (SELECT count(*) FROM order_items WHERE sku = %s)",
        [old, old],
    ).fetchone()
    connection.execute("UPDATE products SET sku = %s WHERE sku = %s", [new, old])
    notes.add("products", "rekey")
    if followers:
        notes.add("inventory", "rekey", followers[0])
        notes.add("order_items", "update", followers[1])

    def remember() -> None:
        shop.skus[place] = new
        shop.prices[new] = shop.prices.pop(old)
        shop.missing = [(where, new if sku == old else sku) for where, sku in shop.missing]

    notes.afterwards(remember)


def recount_stock(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A stock row is deleted and inserted again with the same key, in one transaction."""
    key = shop.rng.choice(WAREHOUSES), shop.popular_sku()
    deleted = connection.execute("DELETE FROM inventory WHERE warehouse = %s AND sku = %s", key)
    notes.add("inventory", "delete", deleted.rowcount)
    connection.execute(_NEW_STOCK, [*key, shop.rng.randrange(100, 900), _now()])
    notes.add("inventory", "insert")
    if not deleted.rowcount:
        notes.afterwards(shop.missing.remove, key)


def close_or_reopen_stock(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A stock row goes in one transaction and comes back, same key, in a later one."""
    if shop.missing and chance(shop.rng, 0.7):
        key = shop.missing[0]
        connection.execute(_NEW_STOCK, [*key, shop.rng.randrange(100, 900), _now()])
        notes.add("inventory", "insert")
        notes.afterwards(shop.missing.remove, key)
        return
    key = shop.rng.choice(WAREHOUSES), shop.popular_sku()
    deleted = connection.execute("DELETE FROM inventory WHERE warehouse = %s AND sku = %s", key)
    notes.add("inventory", "delete", deleted.rowcount)
    if deleted.rowcount:
        notes.afterwards(shop.missing.append, key)


def guest_checkout(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A customer who exists only inside one transaction: inserted, updated, deleted."""
    guest = add_customer(shop, connection, notes, prefix="guest-")
    connection.execute("UPDATE customers SET nickname = '' WHERE id = %s", [guest.id])
    notes.add("customers", "update")
    connection.execute("DELETE FROM customers WHERE id = %s", [guest.id])
    notes.add("customers", "delete")


def order_after_failed_signup(shop: Shop, connection: Connection[Any], notes: Notes) -> None:
    """A sign-up and its first order are undone by a savepoint; the order around it commits."""
    with connection.transaction(force_rollback=True):
        ghost = add_ghost(shop, connection)
        _place(shop, connection, Notes(), ghost.id)
    notes.savepoints_rolled_back += 1
    place_order(shop, connection, notes)


def count_probe(connection: Connection[Any], count: int) -> None:
    """Sets the probe's stock, whose value tells a reader how fresh its view is."""
    connection.execute(
        "UPDATE inventory SET on_hand = %s WHERE warehouse = %s AND sku = %s",
        [count, PROBE_WAREHOUSE, PROBE_SKU],
    )


def add_customer(
    shop: Shop, connection: Connection[Any], notes: Notes, *, prefix: str = ""
) -> Customer:
    """One customer signs up."""
    customer = make_customer(shop.rng, _now(), prefix=prefix)
    connection.execute(_NEW_CUSTOMER, astuple(customer))
    notes.add("customers", "insert")
    return customer


def add_ghost(shop: Shop, connection: Connection[Any]) -> Customer:
    """A customer whose insert the caller will roll back."""
    ghost = make_customer(shop.rng, _now(), prefix=GHOST)
    connection.execute(_NEW_CUSTOMER, astuple(ghost))
    return ghost


def _place(shop: Shop, connection: Connection[Any], notes: Notes, customer: UUID) -> None:
    rng = shop.rng
    skus = sorted({shop.popular_sku() for _ in range(rng.randint(1, 4))})
    lines = tuple(
        OrderLine(
            sku, rng.randint(1, 3), min(shop.prices[sku], Decimal("99999.99")), chance(rng, 0.1)
        )
        for sku in skus
    )
    note = rng.choice((None, None, "", "bitte klingeln", "配達時間 18:00", "line\nbreak"))
    # the stream has the order's number in its name, so the number comes first
    row = connection.execute(_NEXT_ORDER).fetchone()
    order_id = int(row[0]) if row else 0
    _ask(shop, connection, notes, PlaceOrder(order_id, customer, lines, note, _now()))
    warehouse = rng.choice(WAREHOUSES)
    for line in lines:
        values = [line.quantity, warehouse, line.sku, line.quantity]
        notes.add("inventory", "update", connection.execute(_TAKE_STOCK, values).rowcount)
    total, status = total_of(lines), "placed"
    if chance(rng, 0.7):
        _pay(shop, connection, notes, order_id, total)
        status = "paid"
    notes.afterwards(shop.remember_order, order_id, status, total)


def _pay(
    shop: Shop, connection: Connection[Any], notes: Notes, order_id: int, amount: Decimal
) -> None:
    method = shop.rng.choice(("card", "transfer", "wallet"))
    _ask(shop, connection, notes, PayOrder(order_id, shop.fresh_uuid(), amount, method, _now()))


def _ask(shop: Shop, connection: Connection[Any], notes: Notes, command: object) -> None:
    shop.store.handle(command, connection=connection, notes=notes)


def _now() -> datetime:
    return datetime.now(UTC)


ACTIVITIES: Final[tuple[tuple[int, Activity], ...]] = (
    (34, place_order),
    (10, pay_order),
    (12, ship_order),
    (4, cancel_order),
    (1, cancel_too_late),
    (3, purge_cancelled),
    (5, restock),
    (8, edit_customer),
    (2, register_customers),
    (3, close_account),
    (1, launch_products),
    (4, reprice),
    (1, rename_product),
    (3, recount_stock),
    (4, close_or_reopen_stock),
    (2, guest_checkout),
    (2, order_after_failed_signup),
)
"""What happens and how often, in parts of the sum."""
