"""The workload GlobalShop."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import psycopg

import examples.globalshop
from examples.globalshop import browsing, seed
from headwater.demo.result import Invariant
from headwater.demo.traffic import ChildTraffic, Written, python_module
from headwater.demo.workload import Person, Probe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.demo.traffic import Traffic
    from headwater.demo.workload import SumReader

_MONEY: Final = {
    "cents by events": """
        SELECT coalesce(sum((data ->> 'amount')::numeric
                            * CASE type WHEN 'order.paid' THEN 100 ELSE -100 END), 0)
          FROM eventstore.log
         WHERE type IN ('order.paid', 'order.refunded')
    """,
    # what was refunded may have been purged, what was not is there
    "cents by payments": """
        SELECT coalesce(sum(amount * 100), 0) FROM payments WHERE NOT refunded
    """,
}

FOLDER = Path(examples.globalshop.__file__).parent


@dataclass(frozen=True, slots=True)
class GlobalShop:
    """A shop: orders, customers, products, stock and payments."""

    name: ClassVar[str] = "globalshop"
    title: ClassVar[str] = "GlobalShop"
    settings_file: ClassVar[Path] = FOLDER / "headwater.toml"
    probe: ClassVar[Probe] = Probe(
        view="inventory",
        key={"warehouse": seed.PROBE_WAREHOUSE, "sku": seed.PROBE_SKU},
        column="on_hand",
        update=f"UPDATE inventory SET on_hand = %s WHERE sku = '{seed.PROBE_SKU}'",  # noqa: S608
    )

    spare_column: ClassVar[str | None] = "counted_at"
    person: ClassVar[Person | None] = Person(
        table="public.customers",
        view="customers",
        column="full_name",
        choose="SELECT customer_id FROM orders ORDER BY placed_at, id LIMIT 1",
        overwrite="""
            UPDATE customers SET email = 'erased-' || id, full_name = 'erased', nickname = NULL,
                   born_on = NULL, preferences = '{}'
             WHERE id = %s
        """,
    )

    def prepare(self, dsn: str, scale: float) -> int:
        """Creates the schemas and fills them: rows, and the events of the first orders."""
        return sum(seed.prepare(dsn, scale=scale).values())

    def start_traffic(self, dsn: str, rate: float, seconds: float) -> Traffic:
        """Starts customers ordering, paying, changing their minds."""
        return ChildTraffic(
            python_module("examples.globalshop.traffic"),
            read_report,
            wish={"dsn": dsn, "rate": rate, "seconds": seconds},
        )

    def invariants(self, dsn: str, stores: Mapping[str, SumReader]) -> tuple[Invariant, ...]:
        """Returns the money of the shop by its events and by its tables, which must be equal."""
        del stores
        values = {}
        with psycopg.connect(dsn) as connection:
            for name, query in _MONEY.items():
                row = connection.execute(query).fetchone()
                values[name] = int(row[0]) if row else 0
        return (Invariant("cents paid and not refunded", "source", values),)


@dataclass(frozen=True, slots=True)
class GlobalShopLive(GlobalShop):
    """The same shop with searches and clicks of customers, and a page that shows them."""

    name: ClassVar[str] = "globalshop-live"
    title: ClassVar[str] = "GlobalShop, live"
    settings_file: ClassVar[Path] = FOLDER / "live" / "headwater.toml"

    def prepare(self, dsn: str, scale: float) -> int:
        """Creates and fills GlobalShop's tables; the traffic adds searches and clicks."""
        rows = GlobalShop.prepare(self, dsn, scale)
        browsing.prepare(dsn)
        return rows

    def start_traffic(self, dsn: str, rate: float, seconds: float) -> Traffic:
        """Starts customers who search and click as well as order."""
        return ChildTraffic(
            python_module("examples.globalshop.traffic"),
            read_report,
            wish={"dsn": dsn, "rate": rate, "seconds": seconds, "browsing": True},
        )


def read_report(line: str) -> Written | None:
    """Parses a line of the traffic's report; None if it is another line."""
    try:
        fields = json.loads(line)
        return Written(
            fields["changes"], fields["transactions"], fields["rolled_back"], fields["seconds"]
        )
    except (ValueError, KeyError, TypeError):
        return None
