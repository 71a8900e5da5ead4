"""A simulated process manager does what the real runners do: the same stories, the same events."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from eventstore import AsyncEventStore
from eventstore.memory import MemoryEventLog
from eventstore.postgres.async_log import AsyncPostgresEventLog
from eventstore.process.async_runner import AsyncProcessRunner
from eventstore.process.runner import ProcessRunner
from eventstore.testing import MovedClock, ProcessSimulation
from tests.fix_process import (
    CancelOrder,
    PlaceOrder,
    ReceivePayment,
    deciders,
    fulfilment,
    shop,
    types,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=50)
STORIES = {
    "paid": [PlaceOrder("a", 20), ReceivePayment("a")],
    "refused": [PlaceOrder("b", 2_000)],
    "late": [PlaceOrder("c", 20)],
    "no-route": [PlaceOrder("far", 20), ReceivePayment("far")],
    "cancelled": [PlaceOrder("d", 20), CancelOrder("d")],
}


def story(events) -> list[tuple]:
    """What happened, and why; ids of events are replaced by their places."""
    found = list(events)
    places = {str(one.event_id): f"event {number}" for number, one in enumerate(found)}
    return [
        (
            one.stream,
            one.type,
            one.stored.actor,
            one.stored.correlation_id,
            places.get(one.stored.causation_id, one.stored.causation_id),
        )
        for one in found
    ]


def simulated(commands, *, late: bool) -> list[tuple]:
    clock = MovedClock()
    store = shop(MemoryEventLog(clock=clock))
    simulation = ProcessSimulation(fulfilment(HOUR), store, clock)
    for command in commands:
        store.handle(command)
        simulation.run()
    if late:
        simulation.move(HOUR)
    return story(store.read_all())


def settled(ledger, count: int) -> None:
    """Waits until the runner has seen every event, and there are so many."""
    wait_until(
        lambda: (
            ledger.query("SELECT count(*) FROM eventstore.log") == [count]
            and ledger.position("fulfilment") >= ledger.token().global_position
        )
    )


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize("name", STORIES)
def test_a_simulation_and_a_runner_come_to_the_same(ledger, name, kind):
    commands, late = STORIES[name], name == "late"
    expected = [simulated(commands[:n], late=False) for n in range(1, len(commands) + 1)]
    last = simulated(commands, late=late)
    manager = fulfilment(SOON if late else HOUR)
    store = shop(ledger.log)

    def tell() -> None:
        for command, after in zip(commands, expected, strict=True):
            store.handle(command)
            if not late:
                settled(ledger, len(after))
        settled(ledger, len(last))

    async def run() -> None:
        log = AsyncPostgresEventLog(ledger.dsn)
        async with (
            AsyncEventStore(log, types=types, deciders=deciders()) as own,
            AsyncProcessRunner(ledger.dsn, manager, own),
        ):
            await asyncio.to_thread(tell)

    if kind == "asyncio":
        asyncio.run(run())
    else:
        with ProcessRunner(ledger.dsn, manager, store):
            tell()

    assert last == story(store.read_all())
