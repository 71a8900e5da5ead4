"""What customers do before they order: they search, and click on what they find."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import psycopg

from examples.globalshop.vocabulary import chance

if TYPE_CHECKING:
    from uuid import UUID

    from psycopg import Connection

    from examples.globalshop.activity import Activity, Shop
    from examples.globalshop.ledger import Notes

_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS searches (
        id          uuid        PRIMARY KEY,
        customer_id uuid        NOT NULL,
        term        text        NOT NULL,
        searched_at timestamptz NOT NULL
    );
    CREATE TABLE IF NOT EXISTS clicks (
        id         uuid        PRIMARY KEY,
        search_id  uuid        NOT NULL,
        sku        text        NOT NULL,
        clicked_at timestamptz NOT NULL
    );
"""
_TERMS: Final = ("lamp", "kettle", "backpack", "chair", "鍋", "gift", "umbrella")
_CLICKED: Final = 0.35
_AT_ONCE: Final = 0.6
"""Part of the clicks that come in the search's own transaction; the others come later."""
_REMEMBERED: Final = 200


def prepare(dsn: str) -> None:
    """Creates the tables, unless they are there."""
    with psycopg.connect(dsn) as connection:
        connection.execute(_TABLES)


@dataclass(slots=True)
class Browsing:
    """Customers who look around.

    Attributes:
        open: Searches that may still be clicked on.
    """

    open: list[UUID] = field(default_factory=list)

    @property
    def activities(self) -> tuple[tuple[int, Activity], ...]:
        """What happens and how often, in parts as those of `ACTIVITIES`."""
        return ((30, self.search), (6, self.click))

    def search(self, shop: Shop, connection: Connection[Any], notes: Notes) -> None:
        """A search, and perhaps a click on what it found."""
        found = shop.fresh_uuid()
        connection.execute(
            "INSERT INTO searches VALUES (%s, %s, %s, %s)",
            [found, shop.rng.choice(shop.customers), shop.rng.choice(_TERMS), datetime.now(UTC)],
        )
        notes.add("searches", "insert")
        if chance(shop.rng, _CLICKED * _AT_ONCE):
            _click(shop, connection, notes, found)
        else:
            notes.afterwards(self._remember, found)

    def click(self, shop: Shop, connection: Connection[Any], notes: Notes) -> None:
        """A click on what was found a while ago."""
        found = shop.take(self.open)
        if found is None:
            return self.search(shop, connection, notes)
        _click(shop, connection, notes, found)
        notes.afterwards(self.open.remove, found)
        return None

    def _remember(self, found: UUID) -> None:
        self.open.append(found)
        del self.open[:-_REMEMBERED]


def _click(shop: Shop, connection: Connection[Any], notes: Notes, search: UUID) -> None:
    connection.execute(
        "INSERT INTO clicks VALUES (%s, %s, %s, %s)",
        [shop.fresh_uuid(), search, shop.popular_sku(), datetime.now(UTC)],
    )
    notes.add("clicks", "insert")
