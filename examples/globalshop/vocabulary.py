"""Made-up customers and products; the same seed makes the same ones."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

WAREHOUSES: Final = ("berlin", "osaka", "recife")
OPENED_AT: Final = datetime(2026, 1, 5, 8, 30, tzinfo=UTC)
"""When the shop opened; seeded rows are dated from here, so that they never depend on the clock."""

_GIVEN: Final = (
    "Zoë", "Łukasz", "José", "Ngọc Ánh", "Ольга", "美咲", "अनिता", "ليلى", "Søren", "Þóra",
    "Ada", "Grace", "Chidi", "Noa", "Mehmet", "Ірина", "지우", "Aroha", "Renée", "Siân",
)  # fmt: skip
_FAMILY: Final = (
    "O'Brien", "Nguyễn", "García-Márquez", "Иванова", "田中", "Müller", "Kowalczyk", "Øst",
    "शर्मा", "حداد", "van der Berg", "Okafor", "Čapek", "D\u2019Angelo", "김", "Smith",
    "Ó Súilleabháin",
)  # fmt: skip
_NICKNAMES: Final = (None, None, "", "zo", "🦊", "  spaced  ", 'it\'s "me"', "tab\there", "Ωmega")
_ADJECTIVES: Final = ("Quiet", "Folding", "Solar", "Woven", "Cast-iron", "Tiny", "Brûlée", "Nº 7")
_NOUNS: Final = (
    "Kettle",
    "Lamp",
    "Backpack",
    "Skillet",
    "Notebook",
    "Café chair",
    "Umbrella",
    "鍋",
)
_COLOURS: Final = ("sand", "slate", "moss", "smörgås yellow", "藍")
_DESCRIPTIONS: Final = (None, "", "Ships tomorrow.", "Line one\nline two", "50 % off; C:\\temp")
_LONG_EVERY: Final = 40


@dataclass(frozen=True, slots=True)
class Customer:
    """One row of `customers`."""

    id: uuid.UUID
    email: str
    full_name: str
    nickname: str | None
    born_on: date | None
    newsletter: bool
    preferences: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Product:
    """One row of `products`."""

    sku: str
    name: str
    description: str | None
    price: Decimal
    active: bool
    attributes: str | None
    released_on: date | None


def make_customer(rng: random.Random, created_at: datetime, *, prefix: str = "") -> Customer:
    """A customer; `prefix` starts the e-mail address."""
    identity = uuid.UUID(int=rng.getrandbits(128), version=4)
    born = date(1940, 1, 1) + timedelta(days=rng.randrange(24_000))
    return Customer(
        identity,
        f"{prefix}{identity.hex[:20]}@example.com",
        f"{rng.choice(_GIVEN)} {rng.choice(_FAMILY)}",
        nickname(rng),
        born if chance(rng, 0.8) else None,
        chance(rng, 0.4),
        preferences(rng),
        created_at,
    )


def chance(rng: random.Random, share: float) -> bool:
    """True in `share` of all cases."""
    return rng.random() < share


def nickname(rng: random.Random) -> str | None:
    """A nickname: often none, sometimes emptied."""
    return rng.choice(_NICKNAMES)


def preferences(rng: random.Random) -> str:
    """A customer's preferences as JSON."""
    fields: dict[str, object] = {"language": rng.choice(("de", "en", "ja", "pt-BR"))}
    if chance(rng, 0.5):
        fields["colours"] = rng.sample(_COLOURS, 2)
    if chance(rng, 0.2):
        fields["limits"] = {"per_order": rng.randrange(1, 10**12) / 100, "none": None}
    if chance(rng, 0.02):
        # so long that Postgres keeps it out of line: the log has it only when it changes
        fields["saved_cart"] = long_text(rng)
    return json.dumps(fields, ensure_ascii=False)


def make_product(rng: random.Random, number: int) -> Product:
    """A product; every fortieth has a long description, which Postgres stores out of line."""
    colour = rng.choice(_COLOURS)
    released = date(2025, 1, 1) + timedelta(days=rng.randrange(700))
    return Product(
        f"GS-{number:06d}",
        f"{rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}, {colour}",
        long_text(rng) if number % _LONG_EVERY == 0 else rng.choice(_DESCRIPTIONS),
        make_price(rng),
        chance(rng, 0.95),
        json.dumps({"colour": colour, "weight_g": rng.randrange(50, 9_000)}, ensure_ascii=False)
        if chance(rng, 0.9)
        else None,
        released if chance(rng, 0.9) else None,
    )


def make_price(rng: random.Random) -> Decimal:
    """A price with two decimals; now and then free, or as large as the column allows."""
    if chance(rng, 0.01):
        return Decimal("0.00")
    if chance(rng, 0.01):
        return Decimal("9999999999.99")
    return Decimal(rng.randrange(99, 50_000)) / 100


def long_text(rng: random.Random) -> str:
    """About ten thousand characters that do not compress well."""
    return " ".join(f"{rng.getrandbits(40):x}" for _ in range(1_000))
