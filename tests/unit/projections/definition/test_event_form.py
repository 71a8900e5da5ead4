"""Events become typed rows: every field in its kind, every version in the latest."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NewType
from uuid import UUID

import orjson
import pytest

from cdc.table import Column, ColumnKind
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.privacy.personal import Personal  # noqa: TC001  # read when the class is declared
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventTypes
from projections.definition.event_rows import ENVELOPE, EventForm
from projections.errors import EventUnreadableError, PlanError

types = EventTypes()
MOMENT = datetime(2026, 3, 1, 12, 30, 0, 1, tzinfo=UTC)
EVENT_ID = "0191d0a0-0000-7000-8000-000000000001"
CustomerId = NewType("CustomerId", str)


class Channel(Enum):
    WEB = "web"
    SHOP = "shop"


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal


@types.event("order.placed", version=3, subject="customer")
@dataclass(frozen=True)
class OrderPlaced:
    customer: CustomerId
    email: Personal[str]
    total: Decimal
    weight: float
    lines: list[Line]
    channel: Channel
    paid: bool
    count: int | None
    placed_at: datetime
    due: date
    at_time: time
    took: timedelta
    token: UUID
    blob: bytes
    kind: Literal["new", "again"]
    actor: str
    note: str = "none"


@types.upcaster("order.placed", 1)
def with_count(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"count": data.pop("number")}


@types.upcaster("order.placed", 2)
def with_channel(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"channel": "web"}


@types.event("order.paid")
@dataclass(frozen=True)
class OrderPaid:
    total: Decimal
    method: str | None = None


@types.event("order.weighed")
@dataclass(frozen=True)
class OrderWeighed:
    total: float


types.untyped("order.noted")

PLACED = OrderPlaced(
    customer=CustomerId("c1"),
    email="a@example.org",
    total=Decimal("12.50"),
    weight=1.5,
    lines=[Line("søster", Decimal("1.10"))],
    channel=Channel.SHOP,
    paid=True,
    count=None,
    placed_at=MOMENT.astimezone(timezone(timedelta(hours=2))),
    due=date(2026, 3, 2),
    at_time=time(23, 59, 59, 1),
    took=timedelta(seconds=90),
    token=UUID(EVENT_ID),
    blob=b"\x00\xff",
    kind="new",
    actor="clerk",
)


def stored(type_: str, data: bytes, version: int = 1) -> dict[str, Any]:
    """An event's columns in the log, as they are decoded."""
    return {
        "global_position": 7,
        "tenant": "acme",
        "stream": "order-1",
        "stream_position": 3,
        "type": type_,
        "schema_version": version,
        "event_id": EVENT_ID,
        "data": data.decode(),
        "occurred_at": MOMENT,
        "recorded_at": MOMENT,
        "correlation_id": "flow",
        "causation_id": None,
        "actor": "u1",
    }


def placed() -> bytes:
    codec = Codec(types, MemoryKeyRing())
    return codec.encode(PLACED, tenant="acme", stream="order-1", stream_position=3).data


def test_each_field_has_a_column_of_its_kind() -> None:
    columns = EventForm(types, ["order.placed"]).columns

    assert ENVELOPE == columns[: len(ENVELOPE)]
    assert {
        "customer": ColumnKind.TEXT,
        "email": ColumnKind.TEXT,
        "total": ColumnKind.NUMERIC,
        "weight": ColumnKind.FLOAT,
        "lines": ColumnKind.JSON,
        "channel": ColumnKind.TEXT,
        "paid": ColumnKind.BOOLEAN,
        "count": ColumnKind.INTEGER,
        "placed_at": ColumnKind.TIMESTAMPTZ,
        "due": ColumnKind.DATE,
        "at_time": ColumnKind.TIME,
        "took": ColumnKind.TEXT,
        "token": ColumnKind.UUID,
        "blob": ColumnKind.BYTES,
        "kind": ColumnKind.TEXT,
        "data_actor": ColumnKind.TEXT,
        "note": ColumnKind.TEXT,
    } == {column.name: column.kind for column in columns[len(ENVELOPE) :]}


def test_a_row_has_every_value_exactly_and_no_personal_one() -> None:
    form = EventForm(types, ["order.placed"])

    row = form.row(stored("order.placed", placed(), 3))

    assert {
        **{column.name: stored("order.placed", b"")[column.name] for column in ENVELOPE},
        "customer": "c1",
        "email": None,
        "total": Decimal("12.50"),
        "weight": 1.5,
        "lines": '[{"sku":"søster","price":"1.10"}]',
        "channel": "shop",
        "paid": True,
        "count": None,
        "placed_at": MOMENT,
        "due": date(2026, 3, 2),
        "at_time": time(23, 59, 59, 1),
        "took": "PT90S",
        "token": EVENT_ID,
        "blob": b"\x00\xff",
        "kind": "new",
        "data_actor": "clerk",
        "note": "none",
    } == row
    assert [column.name for column in form.columns] == list(row)


def test_an_old_event_is_read_as_the_latest_version_also_in_another_process() -> None:
    form = EventForm(types, ["order.placed"])
    old = orjson.loads(placed())
    old["number"] = 5
    del old["count"], old["channel"], old["note"]

    there = pickle.loads(pickle.dumps(form))  # noqa: S301

    for each in (form, there):
        row = each.row(stored("order.placed", orjson.dumps(old), 1))
        assert (5, "web", "none", None) == tuple(
            row[name] for name in ("count", "channel", "note", "email")
        )
    assert form.columns == there.columns
    assert form.names == there.names


def test_a_view_of_an_older_definition_keeps_the_columns_that_its_events_had() -> None:
    now = EventForm(types, ["order.paid"])
    had = (
        Column("method", ColumnKind.TEXT, "text"),  # as it is
        Column("total", ColumnKind.TEXT, "text"),  # of another kind by now
        Column("till", ColumnKind.INTEGER, "bigint"),  # gone
    )
    form = EventForm(types, ["order.paid"], had)
    there = pickle.loads(pickle.dumps(form))  # noqa: S301
    event = stored("order.paid", b'{"total":"1.0","method":"cash"}')

    assert (*ENVELOPE, *had) == form.columns == there.columns
    for each in (form, there):
        row = each.row(event)
        assert [column.name for column in form.columns] == list(row)
        assert ("cash", None, None) == tuple(row[column.name] for column in had)
        # what rows have there was made by another program, and is nothing to be compared with
        assert {"total", "till"} == each.unmade
    assert frozenset() == now.unmade
    same = EventForm(types, ["order.paid"], now.columns[len(ENVELOPE) :])
    assert now.row(event) == same.row(event)


def test_events_of_several_types_share_columns_and_lack_those_of_others() -> None:
    form = EventForm(types, ["order.paid", "order.noted"])

    paid = form.row(stored("order.paid", b'{"total":"1.0","method":null}'))
    noted = form.row(stored("order.noted", b'{"b":[1, 2.50], "a":null}'))

    assert ("order.paid", Decimal("1.0"), None, None) == tuple(
        paid[name] for name in ("type", "total", "method", "data")
    )
    assert (None, '{"a":null,"b":[1,2.5]}') == (noted["total"], noted["data"])


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (stored("order.paid", b'{"total":"1.0"}', 2), "HW-E020"),
        (stored("order.paid", b'{"total":[]}'), "HW-E021"),
        (stored("order.paid", b"{}"), "HW-E021"),
        (stored("order.placed", b"{}", 1), "HW-E021"),
        (stored("order.placed", b'{"email":"plain"}', 3), "HW-E02"),
    ],
    ids=["future version", "other kind", "no field", "upcaster fails", "not sealed"],
)
def test_an_event_that_cannot_be_read_is_refused_and_its_payload_not_told(
    event: dict[str, Any], code: str
) -> None:
    form = EventForm(types, ["order.paid", "order.placed"])

    with pytest.raises(EventUnreadableError) as refused:
        form.row(event)

    assert ("HW-P027", False) == (refused.value.code, refused.value.retriable)
    assert code in (refused.value.detail or "")
    assert "plain" not in f"{refused.value}{refused.value.detail}{refused.value.hint}"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["order.placd"], "unknown type order.placd"),
        (["order.paid", "order.weighed"], "different types for column total"),
    ],
)
def test_types_that_cannot_be_one_view_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        EventForm(types, names)


def test_a_gap_in_the_upcasters_refuses_only_events_before_it() -> None:
    gap = EventTypes()
    gap.untyped("a.b", version=3)
    gap.upcaster("a.b", 2)(lambda data: data | {"three": True})
    form = EventForm(gap, ["a.b"])

    assert '{"three":true}' == form.row(stored("a.b", b"{}", 2))["data"]
    with pytest.raises(EventUnreadableError):
        form.row(stored("a.b", b"{}", 1))
