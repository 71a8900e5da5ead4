"""The page of fields says what is stored and what is refused."""

from __future__ import annotations

import datetime as dt
import enum
import re
import typing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from eventstore import EventStore, EventTypes
from eventstore.errors import EventRefusedError
from eventstore.memory import MemoryEventLog
from eventstore.model import event as limits
from eventstore.model.query import ITEMS_MAX
from eventstore.serialization.exactness import DEPTH_MAX

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "fields.md").read_text()


class Color(enum.Enum):
    RED = "r"


@dataclass(frozen=True)
class Point:
    x: int


STORED = [
    ("str", str, "a"),
    ("bool", bool, True),
    ("None", str | None, None),
    ("int", int, 2**63 - 1),
    ("float", float, 1.5),
    ("Decimal", Decimal, Decimal("1.10")),
    ("datetime", dt.datetime, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    ("date", dt.date, dt.date(2026, 1, 1)),
    ("time", dt.time, dt.time(1, 2)),
    ("timedelta", dt.timedelta, dt.timedelta(days=1, microseconds=1)),
    ("UUID", UUID, UUID(int=1)),
    ("bytes", bytes, b"\x00a"),
    ("Enum", Color, Color.RED),
    ("Literal", typing.Literal["a", "b"], "a"),
    ("list", list[int], [1]),
    ("tuple", tuple[int, str], (1, "a")),
    ("set", set[int], {1}),
    ("frozenset", frozenset[str], frozenset({"a"})),
    ("dict", dict[str, int], {"a": 1}),
    ("a dataclass", Point, Point(1)),
]
REFUSED = [
    ("NUL", str, "a\x00"),
    ("64 bits", int, 2**63),
    ("NaN", float, float("nan")),
    ("infinities", float, float("inf")),
    ("NaN", Decimal, Decimal("NaN")),
    ("a time without an offset", dt.datetime, dt.datetime(2026, 1, 1)),  # noqa: DTZ001
    ("a list is not a tuple", list[int], (1,)),
    ("`5` is not `5.0`", float, 5),
]


def store_of(annotation: object, value: object) -> object:
    """What an event with such a field reads back as."""
    types = EventTypes()
    kind = type("Sampled", (), {"__annotations__": {"value": annotation}})
    made = types.event("sample.taken")(kind)
    store = EventStore(MemoryEventLog(), types=types)
    store.append("sample-1", made(value))
    (found,) = store.read_stream("sample-1")
    return found.event.value


@pytest.mark.parametrize(("name", "annotation", "value"), STORED, ids=[one[0] for one in STORED])
def test_what_the_page_says_is_stored_reads_back(name, annotation, value):
    rows = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| ")]

    assert any(name in row for row in rows)
    assert value == store_of(annotation, value)


@pytest.mark.parametrize(("words", "annotation", "value"), REFUSED)
def test_what_the_page_says_is_refused_is(words, annotation, value):
    assert words.lower() in PAGE.lower()
    with pytest.raises(EventRefusedError):
        store_of(annotation, value)


def test_the_limits_are_those_of_the_code():
    numbers = re.sub(r"(?<=\d),(?=\d)", "", PAGE)

    assert f"{limits.EVENTS_MAX} events, {limits.APPEND_BYTES_MAX >> 20} MiB" in numbers
    assert f"{limits.STREAMS_MAX} streams" in numbers
    assert f"| a payload | {limits.EVENT_BYTES_MAX >> 20} MiB |" in numbers
    assert f"| an event's tags | {limits.TAGS_MAX} |" in numbers
    assert f"| a query | {ITEMS_MAX} items |" in numbers
    assert f"{DEPTH_MAX} levels deep" in numbers
