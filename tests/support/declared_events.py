"""Event types whose fields have every declared type, and how a test encodes them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

from hypothesis import strategies as st

from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventTypes
from tests.fix_stored import STREAM, TENANT

types = EventTypes()


codec = Codec(types)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    left: int
    right: str


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    notes: tuple[str, ...] = ()


@types.event("everything.happened")
class Everything:
    text: str = ""
    number: int = 0
    real: float = 0.0
    amount: Decimal = Decimal(0)
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    day: date = date(2026, 1, 1)
    clock: clock_time = clock_time(0)
    span: timedelta = timedelta(0)
    identity: UUID = UUID(int=0)
    raw: bytes = b""
    flag: bool | None = None
    mood: Mood = Mood.GOOD
    level: Level = Level.LOW
    kind: Literal["a", "b"] = "a"
    lines: list[Line] = field(default_factory=list)
    pair: Pair = Pair(0, "")
    moments: tuple[datetime, ...] = ()
    table: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[int, str] = field(default_factory=dict)
    days: dict[date, Decimal] = field(default_factory=dict)
    chosen: set[str] = field(default_factory=set)
    amounts: frozenset[Decimal] = frozenset()
    open: Any = None


@types.event("small.happened", tags=lambda small: [f"order:{small.order_id}"])
class Small:
    order_id: str
    total: int


def encode(event: object, **options: Any):
    return codec.encode(event, tenant=TENANT, stream=STREAM, **options)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


decimals = st.decimals(allow_nan=False, allow_infinity=False)


zones = st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))


moments = st.datetimes(timezones=zones | st.just(UTC))


lines = st.builds(Line, texts, decimals, st.lists(texts, max_size=2).map(tuple))
