"""Processes in an event loop: commands, timers, cancellation."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from eventstore import AsyncEventStore
from eventstore.errors import WrongKindError
from eventstore.postgres.async_log import AsyncPostgresEventLog
from eventstore.process.async_runner import AsyncProcessRunner
from eventstore.process.runner import ProcessRunner
from eventstore.subscription import Start
from tests.fix_process import PlaceOrder, ReceivePayment, deciders, fulfilment, types
from tests.fix_process import shop as blocking_shop
from tests.support.async_waiting import WAIT_S, until

pytestmark = pytest.mark.integration


@asynccontextmanager
async def shop(ledger):
    log = AsyncPostgresEventLog(ledger.dsn)
    async with AsyncEventStore(log, types=types, deciders=deciders()) as store:
        yield store


def types_of(ledger, order_id: str) -> list[str]:
    return ledger.query(
        "SELECT type FROM eventstore.log WHERE stream LIKE %s ORDER BY global_position",
        f"%-{order_id}",
    )


def completed_processes(ledger) -> list[str]:
    return ledger.query(
        "SELECT process_id FROM eventstore.processes WHERE completed_at IS NOT NULL ORDER BY 1"
    )


def test_a_process_runs_its_commands_in_the_batch_s_transaction(ledger):
    async def main():
        async with (
            shop(ledger) as store,
            AsyncProcessRunner(ledger.dsn, fulfilment(), store),
        ):
            await store.handle(PlaceOrder("1", 20))
            await until(lambda: "payment.requested" in types_of(ledger, "1"))
            await store.handle(ReceivePayment("1"))
            await until(lambda: completed_processes(ledger) == ["1"])

    asyncio.run(main())
    assert [
        "order.placed",
        "payment.requested",
        "payment.received",
        "shipment.sent",
    ] == types_of(ledger, "1")


def test_a_refused_command_comes_back_and_a_timer_fires(ledger):
    async def main():
        async with (
            shop(ledger) as store,
            AsyncProcessRunner(ledger.dsn, fulfilment(timedelta(milliseconds=50)), store),
        ):
            await store.handle(PlaceOrder("dear", 2000))
            await store.handle(PlaceOrder("late", 20))
            await until(lambda: completed_processes(ledger) == ["dear", "late"])

    asyncio.run(main())
    assert ["order.placed", "order.cancelled"] == types_of(ledger, "dear")
    assert ["order.placed", "payment.requested", "order.cancelled"] == types_of(ledger, "late")


def test_a_process_cancelled_amid_its_reaction_reacts_once(ledger):
    """The commands that it had handled are rolled back with what it took in."""
    entered = []

    def hanging(store):
        handle = store.handle

        async def late(command, **options):
            answer = await handle(command, **options)
            entered.append(command)
            await asyncio.Event().wait()
            return answer

        store.handle = late
        return store

    async def main():
        async with shop(ledger) as store:
            await store.handle(PlaceOrder("1", 20))
        async with shop(ledger) as store:
            runner = AsyncProcessRunner(ledger.dsn, fulfilment(), hanging(store))
            task = asyncio.create_task(runner.run())
            await until(lambda: entered)
            task.cancel()
            await asyncio.wait({task})
        assert types_of(ledger, "1") == ["order.placed"]
        async with (
            shop(ledger) as store,
            AsyncProcessRunner(ledger.dsn, fulfilment(), store),
        ):
            await until(lambda: len(types_of(ledger, "1")) == 2)

    asyncio.run(main())
    assert ["order.placed", "payment.requested"] == types_of(ledger, "1")
    assert 1 == len(ledger.query("SELECT name FROM eventstore.timers"))


def test_history_is_taken_in_without_reactions(ledger):
    async def main():
        async with shop(ledger) as store:
            await store.handle(PlaceOrder("1", 20))
            options = {"effects_from": Start.END}
            async with AsyncProcessRunner(ledger.dsn, fulfilment(), store, **options) as runner:
                await runner.wait_for(ledger.token(), WAIT_S)

    asyncio.run(main())
    assert ["order.placed"] == types_of(ledger, "1")


def test_a_process_runner_takes_a_store_of_its_own_kind(ledger):
    async def main():
        async with shop(ledger) as store:
            with pytest.raises(WrongKindError, match="is async"):
                ProcessRunner(ledger.dsn, fulfilment(), store)
        with pytest.raises(WrongKindError, match="is not async"):
            AsyncProcessRunner(ledger.dsn, fulfilment(), blocking_shop(ledger.log))

    asyncio.run(main())
