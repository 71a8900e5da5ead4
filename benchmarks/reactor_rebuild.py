"""A view of a million rows is rebuilt from the log while a reactor runs: how many effects are made.

The reactor reads the same events as the view. After the rebuild one more event comes in: its effect
shows that the reactor ran all the while, so that none was missing for another reason.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from benchmarks.result import Report, at_most
from benchmarks.streaming import say
from eventstore import EventStore, Query, event
from eventstore.postgres.log import PostgresEventLog
from eventstore.postgres.schema import upgrade
from eventstore.reactor import Invoke, Reactor
from eventstore.reactor.runner import ReactorRunner
from eventstore.subscription import Delivery, Subscription
from eventstore.subscription.rebuild import rebuild
from eventstore.subscription.runner import SubscriptionRunner
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned

if TYPE_CHECKING:
    from eventstore.serialization.recorded import RecordedEvent

_ROWS: Final = 1_000_000
_ROWS_QUICK: Final = 20_000
_TIMEOUT_S: Final = 7_200.0

# Straight into the table: appending is not what is measured.
_FILL: Final = """
INSERT INTO eventstore.events (global_position, tenant, stream, stream_position, type,
                               schema_version, event_id, data, occurred_at)
SELECT nextval('eventstore.global_position'), 'default', 'item-' || n, 1, 'item.listed', 1,
       gen_random_uuid(), json_build_object('item', n), clock_timestamp()
  FROM generate_series(1, %s) AS n
"""


@event("item.listed", version=1)
class ItemListed:
    """An item is for sale."""

    item: int


def run(quick: bool) -> Report:
    """Measures; `quick` takes a fiftieth of the rows."""
    rows = _ROWS_QUICK if quick else _ROWS
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        services = {ServiceName.POSTGRES: Spawned()}
        endpoints = runtime.up(RuntimeSpec(home=home, services=services, lifeline=True))
        try:
            made, checked = _measured(endpoints.postgres_dsn or "", rows)
        finally:
            runtime.down(home)
    found = at_most(f"effects of a rebuild of {rows:,} rows under a reactor", ours=made, target=0)
    return Report("reactor_rebuild", checked, (found,))


def _measured(dsn: str, rows: int) -> tuple[int, bool]:
    """Returns the effects of a rebuild, and whether everything else was as it should be."""
    upgrade(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (item bigint PRIMARY KEY)")
        connection.execute(_FILL, (rows,))
    effects: list[str] = []
    told = threading.Event()

    def tell(key: str) -> None:
        effects.append(key)
        told.set()

    def show(recorded: RecordedEvent, delivery: Delivery) -> None:
        connection: Any = delivery.connection
        connection.execute("INSERT INTO items VALUES (%s)", (recorded.event.item,))

    query = Query(category="item")
    reactor = Reactor(name="tell", react=lambda _: Invoke(tell), query=query)
    view = Subscription(name="items", handler=show, query=query, tables=("items",))
    with EventStore(PostgresEventLog(dsn)) as store:  # noqa: SIM117  # closed last
        with (
            ReactorRunner(dsn, reactor, store) as reacting,
            SubscriptionRunner(dsn, view, store=store) as showing,
        ):
            first = store.append("item-0", ItemListed(0)).token
            showing.wait_for(first, _TIMEOUT_S)
            reacting.wait_for(first, _TIMEOUT_S)
            before = len(effects)
            say(f"the view has {rows:,} rows, {before} effects were made")
            done = rebuild(dsn, view, store=store)
            made = len(effects) - before
            told.clear()
            last = store.append("item--1", ItemListed(-1)).token
            reacting.wait_for(last, _TIMEOUT_S)
            runs = told.wait(_TIMEOUT_S)
    say(f"rebuilt from {done.events:,} events, {made} effects were made")
    return made, runs and done.events == rows + 1 and len(effects) == before + made + 1
