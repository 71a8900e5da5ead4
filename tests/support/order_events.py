"""Events of orders, in a module of their own: tasks import it by its name."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal  # noqa: TC003  # read when the class is declared

from eventstore.serialization.registry import EventTypes

types = EventTypes()


@types.event("order.placed")
@dataclass(frozen=True)
class OrderPlaced:
    order: str
    total: Decimal


@types.event("order.paid")
@dataclass(frozen=True)
class OrderPaid:
    order: str
    method: str | None = None


@types.event("order.noted")
@dataclass(frozen=True)
class OrderNoted:
    order: str
