"""The tables that follow from the events of orders; nothing else writes an order's rows.

`OrderStore` takes commands. What they lead to and the rows that follow from it are written in one
transaction, so each can be read at any time and neither is ever ahead. That is a choice: views in
other stores follow the log, a moment later.

`purge_cancelled` of the traffic deletes rows of cancelled orders. Their events stay.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventstore import EventStore
from examples.globalshop.ledger import Notes
from examples.globalshop.orders import (
    OrderCancelled,
    OrderPaid,
    OrderPlaced,
    OrderRefunded,
    OrderShipped,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from psycopg import Connection

    from eventstore.planning.handling import Handled

EVENTS: Final = "events"
"""Under which name the ledger counts events; each is a row of its own."""


class Change(NamedTuple):
    """What an event does to one table."""

    table: str
    kind: str
    statement: str


CHANGES: Final[Mapping[type, tuple[Change, ...]]] = {
    OrderPlaced: (
        Change(
            "orders",
            "insert",
            "INSERT INTO orders (id, customer_id, status, total, note, placed_at) VALUES"
            " (%(order_id)s, %(customer_id)s, 'placed', %(total)s, %(note)s, %(placed_at)s)",
        ),
        Change(
            "order_items",
            "insert",
            "INSERT INTO order_items SELECT %(order_id)s, * FROM unnest(%(numbers)s::smallint[],"
            " %(skus)s::text[], %(quantities)s::integer[], %(prices)s::numeric[],"
            " %(gifts)s::boolean[])",
        ),
    ),
    OrderPaid: (
        Change("orders", "update", "UPDATE orders SET status = 'paid' WHERE id = %(order_id)s"),
        Change(
            "payments",
            "insert",
            "INSERT INTO payments VALUES"
            " (%(payment_id)s, %(order_id)s, %(amount)s, %(method)s, false, %(paid_at)s)",
        ),
    ),
    OrderShipped: (
        Change(
            "orders",
            "update",
            "UPDATE orders SET status = 'shipped', shipped_on = %(shipped_on)s"
            " WHERE id = %(order_id)s",
        ),
    ),
    OrderCancelled: (
        Change(
            "orders",
            "update",
            "UPDATE orders SET status = 'cancelled', note = '' WHERE id = %(order_id)s",
        ),
    ),
    OrderRefunded: (
        Change(
            "payments", "update", "UPDATE payments SET refunded = true WHERE id = %(payment_id)s"
        ),
    ),
}
"""By event, in the order in which they happen to an order."""


class OrderStore(EventStore):
    """An event store that keeps the tables of orders as well."""

    def handle(
        self, command: object, *, connection: Any = None, notes: Notes | None = None, **options: Any
    ) -> Handled:
        """Has a command decided and carried out within the transaction that is open.

        Args:
            command: About an order, or what else a decider of the store takes.
            connection: With the transaction; if it is rolled back, nothing has happened.
            notes: Told of each row.
            options: See `EventStore.handle`.

        Raises:
            ValueError: There is no transaction that the rows could be written in.
            Rejected: The command is refused; the transaction can go on.
        """
        if connection is None:
            raise ValueError("events of an order and its rows are written in one transaction")
        handled = super().handle(command, connection=connection, **options)
        if not handled.repeated:
            notes = Notes() if notes is None else notes
            notes.add(EVENTS, "insert", len(handled.events))
            for happened in handled.events:
                apply(connection, notes, happened)
        return handled


def apply(connection: Connection[Any], notes: Notes, happened: object) -> None:
    """Takes an event into the tables.

    Args:
        connection: With the transaction that the event is appended in.
        notes: Told of each row.
        happened: The event.
    """
    for table, kind, statement in CHANGES.get(type(happened), ()):
        done = connection.execute(statement, _values(happened))
        notes.add(table, kind, done.rowcount)


def apply_all(connection: Connection[Any], notes: Notes, happened: Iterable[object]) -> None:
    """Takes many events into the tables, fast: each statement is sent for all events of its type.

    That keeps the order of what happens to one order, not that among orders.
    """
    by_type: dict[type, list[dict[str, Any]]] = {}
    for each in happened:
        by_type.setdefault(type(each), []).append(_values(each))
    with connection.cursor() as cursor:
        for event_type, changes in CHANGES.items():
            values = by_type.get(event_type, [])
            for table, kind, statement in changes if values else ():
                cursor.executemany(statement, values)
                notes.add(table, kind, cursor.rowcount)


def _values(happened: Any) -> dict[str, Any]:
    values = {field.name: getattr(happened, field.name) for field in fields(happened)}
    if isinstance(happened, OrderPlaced):
        lines = values.pop("lines")
        values |= {
            "numbers": list(range(1, len(lines) + 1)),
            "skus": [line.sku for line in lines],
            "quantities": [line.quantity for line in lines],
            "prices": [line.unit_price for line in lines],
            "gifts": [line.gift for line in lines],
        }
    return values
