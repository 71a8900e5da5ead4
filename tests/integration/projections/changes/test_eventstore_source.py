"""Views of events hold every event of their types, typed, and nothing else, whatever moves."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable

from eventstore.model.event import AppendRequest, StreamAppend
from eventstore.model.event_id import new_event_id
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.serialization.codec import Codec
from projections.changes.quarantine import admin as quarantine_admin
from projections.definition.mirror import events, source
from projections.definition.views import EVENT_TABLES, OUTBOX, Store
from projections.stores.factory import open_sink
from projections.verification.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from eventstore.postgres.log import PostgresEventLog
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=2),
    pytest.mark.timeout(1800),
]

# a module of its own, because executors import it
SHOP = """
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from eventstore.privacy.personal import Personal
from eventstore.serialization.registry import EventTypes

types = EventTypes()

@types.event("order.placed", version=2, subject="customer")
@dataclass(frozen=True)
class OrderPlaced:
    order: str
    customer: str
    email: Personal[str]
    total: Decimal
    lines: list[dict[str, int]]
    placed_at: datetime | None


@OrderPlaced.upcast(from_version=1)
def total_is_exact(data):
    return data | {"total": str(data["total"])}


@types.event("order.paid")
@dataclass(frozen=True)
class OrderPaid:
    order: str
    total: Decimal


@types.event("order.noted")
@dataclass(frozen=True)
class OrderNoted:
    text: str
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of events, for this process and for those that it starts."""
    name = "headwater_shop_of_this_test"
    (tmp_path / f"{name}.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield importlib.import_module(name)
    del sys.modules[name]


class Orders:
    """Writes events of orders to a log, and compacts them as compaction does."""

    def __init__(self, log: PostgresEventLog, dsn: str, shop: Any) -> None:
        self._log, self._dsn, self._shop = log, dsn, shop
        self._codec = Codec(shop.types, MemoryKeyRing())

    def write(self, number: int, count: int, tenant: str = "default") -> None:
        stream = f"order-{number}"
        made = [
            self._codec.encode(event, tenant=tenant, stream=stream, stream_position=1 + place)
            for place, event in enumerate(self._events(number, count))
        ]
        made[0] = replace(
            made[0],
            data=made[0].data.replace(b'"12.50"', b"12.5"),
            schema_version=1 if number % 2 else 2,
        )
        if not number % 2:
            made[0] = replace(made[0], data=made[0].data.replace(b":12.5,", b':"12.50",'))
        append = StreamAppend(stream, tuple(made), 0)
        self._log.append(AppendRequest((append,), tenant=tenant, correlation_id=f"flow {number}"))

    def _events(self, number: int, count: int) -> Iterator[object]:
        name = f"o{number}"
        yield self._shop.OrderPlaced(
            name, f"c{number}", f"canary-{number}@example.org", Decimal("12.50"), [{"n": 1}], None
        )
        for place in range(1, count):
            yield (
                self._shop.OrderPaid(name, Decimal(place) / 100)
                if place % 2
                else self._shop.OrderNoted("søster")
            )

    def compact(self, number: int, through: int) -> None:
        with psycopg.connect(self._dsn) as connection:
            connection.execute("SET LOCAL eventstore.compacting = 'on'")
            which = (f"order-{number}", through)
            connection.execute(
                "INSERT INTO eventstore.archived_events SELECT * FROM eventstore.events"
                " WHERE stream = %s AND stream_position <= %s AND type <> '$snapshot'",
                which,
            )
            connection.execute(
                "WITH gone AS (DELETE FROM eventstore.events"
                "  WHERE stream = %s AND stream_position <= %s RETURNING *)"
                "INSERT INTO eventstore.events (global_position, tenant, stream, stream_position,"
                "  type, schema_version, event_id, data, occurred_at)"
                "SELECT global_position, tenant, stream, stream_position, '$snapshot', 1, %s, '{}',"
                "  occurred_at FROM gone ORDER BY stream_position DESC LIMIT 1",
                (*which, new_event_id()),
            )

    def drop(self, number: int) -> None:
        with psycopg.connect(self._dsn) as connection:
            connection.execute("SET LOCAL eventstore.compacting = 'on'")
            connection.execute(
                "DELETE FROM eventstore.archived_events WHERE stream = %s", (f"order-{number}",)
            )


@pytest.fixture
def orders(pg_log: PostgresEventLog, store_dsn: str, shop: Any) -> Orders:
    return Orders(pg_log, store_dsn, shop)


def test_views_of_events_equal_the_log_through_compaction_and_upcasting(
    store_dsn: str,
    orders: Orders,
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    shop: Any,
) -> None:
    for number in range(6):
        orders.write(number, 5)
    orders.compact(0, 3)
    orders.compact(1, 5)
    captured = capture(*map(str, EVENT_TABLES), dsn=store_dsn, outbox=OUTBOX)
    name = captured.spec.name
    log = source(name, eventstore=True)
    views = [
        events(
            f"{name}_placed",
            log.events(shop.OrderPlaced, registry=shop.types),
            times={"committed_at": "commit", "received_at": "broker", "applied_at": "processing"},
        ),
        events(
            f"{name}_money",
            log.events("order.placed", "order.paid", registry=shop.types),
            to=["table", "cache"],
        ),
    ]
    job = view_job(captured, views=views, code=(Path(shop.__file__).parent,))
    job.start()
    assert job.catch_up() == []
    assert [6, 18] == rows_of(job)

    orders.write(6, 4, tenant="acme")
    orders.write(7, 300)
    assert job.catch_up() == []
    came = times_of(job)
    orders.compact(2, 1)
    orders.compact(2, 4)
    orders.compact(7, 299)
    orders.compact(1, 5)  # a snapshot alone is folded again
    orders.drop(1)

    assert job.catch_up() == []
    assert [7, 17 + 3 - 2 + 151] == rows_of(job)
    placed = DeltaTable(str(job.spec.config.addresses.tables / views[0].name)).to_pyarrow_table()
    by_order = {row["order"]: row for row in placed.to_pylist()}
    assert {"o0", "o2", "o3", "o4", "o5", "o6", "o7"} == set(by_order)
    assert ("12.50", None, '[{"n":1}]', "acme", "flow 6") == tuple(
        by_order["o6"][column] for column in ("total", "email", "lines", "tenant", "correlation_id")
    )
    assert "12.5" == by_order["o7"]["total"]  # version 1, through its upcaster
    assert {o: times for o, times in came.items() if o != "o1"} == times_of(job)  # one was dropped
    assert (None, True) == (came["o2"][0], came["o2"][1] < came["o2"][2])  # read, not streamed
    row, (committed, received, applied) = by_order["o6"], came["o6"]
    assert row["occurred_at"] <= row["recorded_at"] <= committed <= received <= applied
    _damage(job)
    found = [
        (report.view, report.store, report.missing, report.different)
        for report in verify(job.spec)
        if not report.equal
    ]
    assert [(views[0].name, Store.TABLE, 1, 0)] == found
    assert job.stop() == 0


def rows_of(job: ViewJob) -> list[int]:
    tables = job.spec.config.addresses.tables
    return [
        DeltaTable(str(tables / plan.name)).to_pyarrow_table().num_rows for plan in job.spec.plans
    ]


def times_of(job: ViewJob) -> dict[str, tuple[datetime, ...]]:
    """When each order came: to its commit, to the broker, and into the table."""
    table = DeltaTable(
        str(job.spec.config.addresses.tables / job.spec.plans[0].name)
    ).to_pyarrow_table()
    names = ("committed_at", "received_at", "applied_at")
    return {row["order"]: tuple(row[name] for name in names) for row in table.to_pylist()}


def _damage(job: ViewJob) -> None:
    job.wait(lambda said: said["state"] == "ready")
    DeltaTable(str(job.spec.config.addresses.tables / job.spec.plans[0].name)).delete(
        "\"order\" = 'o3'"
    )


def test_an_event_of_a_later_version_waits_by_name_and_the_others_flow(
    store_dsn: str,
    orders: Orders,
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    shop: Any,
) -> None:
    orders.write(0, 3)
    captured = capture(*map(str, EVENT_TABLES), dsn=store_dsn)
    name = captured.spec.name
    log = source(name, eventstore=True)
    job = view_job(
        captured,
        views=[events(f"{name}_paid", log.events("order.paid", registry=shop.types), to=["cache"])],
    )
    job.start()
    assert job.catch_up() == []

    with psycopg.connect(store_dsn) as connection:
        connection.execute(
            "SELECT eventstore.append_event('default', 'order-9', 0, 'order.noted', 99::smallint,"
            " gen_random_uuid(), '{}', NULL, now(), NULL, NULL, NULL)"
        )
    assert job.catch_up() == []  # not one of the view's types
    with psycopg.connect(store_dsn) as connection:
        connection.execute(
            "SELECT eventstore.append_event('default', 'order-8', 0, 'order.paid', 99::smallint,"
            " gen_random_uuid(), '{}', NULL, now(), NULL, NULL, NULL)"
        )

    orders.write(1, 3)
    with psycopg.connect(store_dsn) as connection:
        job.wait(lambda _: _waiting(connection, name) != [])
        job.wait(lambda _: _rows_in_cache(job) == 2)
        (waits,) = _waiting(connection, name)
    assert ("HW-P027", 1) == (waits.code, waits.records)
    assert "99" in waits.message
    assert job.stop() == 0


def _waiting(
    connection: psycopg.Connection[Any], name: str
) -> list[quarantine_admin.QuarantinedKey]:
    found = quarantine_admin.keys(connection, name, quarantine_admin.KeySelection())
    connection.rollback()
    return found


def _rows_in_cache(job: ViewJob) -> int:
    return sum(
        1 for _ in open_sink(Store.CACHE, job.spec.config.addresses).documents(job.spec.plans[0])
    )
