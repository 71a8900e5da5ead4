"""Runners in an event loop: what a blocking runner does, and cancellation, besides."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from eventstore.errors import SubscriptionError, UndeclaredError, WrongKindError
from eventstore.model.query import EVERYTHING
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventTypes
from eventstore.subscription import AsyncSubscription, RetryPolicy, Subscription, serving
from eventstore.subscription.async_control import AsyncSubscriptions
from eventstore.subscription.async_runner import AsyncSubscriptionRunner
from eventstore.subscription.runner import SubscriptionRunner
from tests.fix_subscription import RECORD
from tests.support.async_waiting import WAIT_S, until

pytestmark = pytest.mark.integration


async def record(event, delivery) -> None:
    """`fix_subscription.record` for asyncio."""
    await delivery.connection.execute(
        RECORD,
        (
            delivery.subscription,
            event.stream,
            event.stream_position,
            event.global_position,
            delivery.live,
        ),
    )


def view(**options) -> AsyncSubscription:
    return AsyncSubscription(**{"name": "view", "handler": record, **options})


def stop_quickly(ledger) -> None:
    ledger.connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE"
        " datname = current_database() AND application_name LIKE '%subscription%'"
    )


def test_history_comes_first_and_then_each_event_as_it_is_appended(ledger):
    async def main():
        ledger.fill(430)
        async with AsyncSubscriptionRunner(ledger.dsn, view(batch_size=50)) as runner:
            await runner.wait_for(ledger.token(), WAIT_S)
            ledger.fill(20)
            async with AsyncSubscriptions(ledger.dsn) as subscriptions:
                await subscriptions.wait_for("view", ledger.token(), WAIT_S)

    asyncio.run(main())
    assert ledger.logged() == ledger.handled()
    assert all(order == sorted(order) for order in ledger.orders().values())


def test_a_quiet_runner_is_woken_by_the_next_append(ledger, monkeypatch):
    """Only the notification is left, and the loop is free meanwhile."""
    monkeypatch.setattr(serving, "BUSY_S", 0.0)
    monkeypatch.setattr(serving, "IDLE_POLL_S", 60.0)
    monkeypatch.setattr(serving, "BALANCE_S", 60.0)
    wanted = "SELECT pg_sequence_last_value('eventstore.wake_wanted') = 1"

    async def main():
        async with AsyncSubscriptionRunner(ledger.dsn, view()) as runner:
            for _ in range(5):
                await until(lambda: runner.ready and ledger.query(wanted)[0])
                ledger.append("order-1")
                await runner.wait_for(ledger.token(), 20)

    asyncio.run(main())
    assert ledger.logged() == ledger.handled()


def test_two_runners_of_one_loop_share_the_partitions(ledger, monkeypatch):
    monkeypatch.setattr(serving, "BALANCE_S", 0.05)
    owners = "SELECT count(DISTINCT owner) FROM eventstore.partition_owners WHERE owner IS NOT NULL"

    async def main():
        async with (
            AsyncSubscriptionRunner(ledger.dsn, view(partitions=4)) as runner,
            AsyncSubscriptionRunner(ledger.dsn, view(partitions=4)),
        ):
            await until(lambda: ledger.query(owners) == [2])
            ledger.fill(200)
            await runner.wait_for(ledger.token(), WAIT_S)

    asyncio.run(main())
    assert ledger.logged() == ledger.handled()


def test_a_cancelled_batch_is_rolled_back_and_delivered_again(ledger):
    """Whatever a handler wrote before the task was cancelled is taken back with the checkpoint."""
    ledger.fill(30)
    seen, stopped = [], []

    async def main():
        reached = asyncio.Event()

        async def hang(event, delivery):
            await record(event, delivery)
            if event.global_position == ledger.logged()[9]:
                reached.set()
                await asyncio.Event().wait()

        runner = AsyncSubscriptionRunner(ledger.dsn, view(handler=hang), on_stop=stopped.append)
        task = asyncio.create_task(runner.run())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert runner.failed is None
        assert not runner.ready
        seen.append(ledger.handled())
        async with AsyncSubscriptionRunner(ledger.dsn, view()) as again:
            await again.wait_for(ledger.token(), WAIT_S)

    asyncio.run(main())
    assert [[]] == seen
    assert [None] == stopped
    assert ledger.logged() == ledger.handled()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34])
def test_a_runner_cancelled_at_any_await_leaves_no_session_and_loses_nothing(ledger, turns):
    ledger.fill(40)
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE '%%subscription%%'"
    )

    async def main():
        runner = AsyncSubscriptionRunner(ledger.dsn, view(batch_size=3))
        task = asyncio.create_task(runner.run())
        await asyncio.wait({task}, timeout=turns * 0.002)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await until(lambda: ledger.query(sessions) == [0])
        async with AsyncSubscriptionRunner(ledger.dsn, view()) as again:
            await again.wait_for(ledger.token(), WAIT_S)

    asyncio.run(main())
    assert ledger.logged() == ledger.handled()


def test_a_body_that_is_cancelled_while_a_handler_hangs_ends_both(ledger):
    ledger.fill(3)
    entered, left = [], asyncio.Event()

    async def hang(event, delivery):
        entered.append(event)
        await asyncio.Event().wait()

    async def body():
        async with AsyncSubscriptionRunner(ledger.dsn, view(handler=hang)):
            await until(lambda: entered)
            left.set()

    async def main():
        task = asyncio.create_task(body())
        await left.wait()  # the block is left, and its end waits for the handler
        task.cancel()
        await asyncio.wait({task}, timeout=WAIT_S)
        assert task.cancelled()
        assert [asyncio.current_task()] == list(asyncio.all_tasks())

    asyncio.run(main())


def test_stop_from_another_thread_keeps_what_is_done(ledger):
    ledger.fill(100)

    async def main():
        runner = AsyncSubscriptionRunner(ledger.dsn, view(handler=slow))
        reached, go_on = asyncio.Event(), asyncio.Event()
        places.update(reached=reached, go_on=go_on, tenth=ledger.logged()[9])
        runner.start()
        await reached.wait()
        thread = threading.Thread(target=runner.stop)
        thread.start()
        await asyncio.to_thread(thread.join)
        go_on.set()
        assert await runner.join(WAIT_S)

    places = {}

    async def slow(event, delivery):
        await record(event, delivery)
        if event.global_position == places["tenth"]:
            places["reached"].set()
            await places["go_on"].wait()

    asyncio.run(main())
    assert ledger.logged()[:10] == ledger.handled()
    assert ledger.logged()[9] == ledger.position()


def test_stop_wakes_a_runner_that_waits_for_nothing(ledger, monkeypatch):
    monkeypatch.setattr(serving, "BUSY_S", 0.0)
    monkeypatch.setattr(serving, "IDLE_POLL_S", 600.0)
    monkeypatch.setattr(serving, "BALANCE_S", 600.0)

    async def main():
        runner = AsyncSubscriptionRunner(ledger.dsn, view())
        runner.start()
        await until(lambda: runner.ready)
        assert not await runner.join(0.3)
        runner.stop()
        assert await runner.join(WAIT_S)

    asyncio.run(main())


def test_a_runner_connects_anew_when_its_session_is_ended(ledger):
    ledger.fill(50)

    async def main():
        async with AsyncSubscriptionRunner(ledger.dsn, view(batch_size=5)) as runner:
            await runner.wait_for(ledger.token(), WAIT_S)
            stop_quickly(ledger)
            ledger.fill(50)
            await runner.wait_for(ledger.token(), WAIT_S)

    asyncio.run(main())
    assert ledger.logged() == ledger.handled()


def test_a_handler_that_fails_is_retried_and_costs_only_its_stream(ledger):
    ledger.fill(21, streams=3)
    failures, calls = [], []

    async def handler(event, delivery):
        await record(event, delivery)
        if event.stream == "order-1" and len(calls) < 2:
            calls.append(delivery.attempt)
            raise KeyError("away")

    async def told(failure):
        await asyncio.to_thread(int)
        failures.append(failure.error_type)

    async def main():
        retry = RetryPolicy(wait_initial_s=0.01, jitter=0.0)
        subscription = view(handler=handler, retry=retry, on_failure=told)
        async with AsyncSubscriptionRunner(ledger.dsn, subscription):
            await until(lambda: len(ledger.handled()) == 21)

    asyncio.run(main())
    assert ledger.logged() == ledger.handled()
    assert all(order == sorted(order) for order in ledger.orders().values())
    assert ["builtins.KeyError"] == sorted(set(failures))


def test_an_effect_may_be_async_and_happens_once(ledger):
    ledger.fill(5)
    done = []

    async def send(key):
        await asyncio.to_thread(int)
        done.append(key)

    async def handler(event, delivery):
        delivery.effect(send)
        delivery.effect(done.append)

    async def main():
        async with AsyncSubscriptionRunner(ledger.dsn, view(handler=handler)) as runner:
            await runner.wait_for(ledger.token(), WAIT_S)

    asyncio.run(main())
    assert 10 == len(done) == len(set(done))


def test_the_end_of_a_runner_that_fails_is_told(ledger):
    ledger.fill(1)
    ended = []

    async def on_stop(error):
        await asyncio.to_thread(int)
        ended.append(error)

    async def main():
        runner = AsyncSubscriptionRunner(
            ledger.dsn, view(), codec=Codec(EventTypes()), on_stop=on_stop
        )
        runner.start()
        with pytest.raises(UndeclaredError):
            await runner.join(WAIT_S)
        assert isinstance(runner.failed, UndeclaredError)
        assert ended == [runner.failed]

    asyncio.run(main())


def test_a_handler_of_the_wrong_kind_is_refused(ledger):
    def plain(event, delivery):
        delivery.connection.execute("SELECT 1")

    class View:
        name, query = "view", EVERYTHING

        def apply(self, event, connection):
            """Would give a coroutine that nothing awaits."""

    with pytest.raises(WrongKindError, match="is not async"):
        view(handler=plain)
    with pytest.raises(WrongKindError, match="is not async"):
        AsyncSubscription.of(View())
    with pytest.raises(WrongKindError, match="nothing awaits its handler"):
        SubscriptionRunner(ledger.dsn, view())
    with pytest.raises(WrongKindError, match="runs an AsyncSubscription"):
        AsyncSubscriptionRunner(ledger.dsn, Subscription(name="view", handler=plain))


def test_a_handler_that_returns_a_coroutine_is_a_failure(ledger):
    ledger.append("order-1")
    failures = []

    async def nested(event, delivery):
        return record(event, delivery)

    async def main():
        subscription = view(handler=nested, on_failure=failures.append)
        async with AsyncSubscriptionRunner(ledger.dsn, subscription):
            await until(lambda: failures)

    asyncio.run(main())
    assert isinstance(failures[0].error, WrongKindError)


def test_a_view_with_an_async_apply_is_kept(ledger):
    class View:
        name, query = "view", EVERYTHING

        async def apply(self, stored, connection):
            await connection.execute(
                RECORD,
                ("view", stored.stream, stored.stream_position, stored.global_position, True),
            )

    ledger.fill(10)

    async def main():
        subscription = AsyncSubscription.of(View())
        async with AsyncSubscriptionRunner(ledger.dsn, subscription) as runner:
            await runner.wait_for(ledger.token(), WAIT_S)

    asyncio.run(main())
    assert ledger.logged() == ledger.handled()


def test_a_handler_that_ends_the_transaction_stops_the_runner(ledger):
    ledger.append("order-1")

    async def commit(event, delivery):
        await delivery.connection.execute("COMMIT")

    async def main():
        runner = AsyncSubscriptionRunner(ledger.dsn, view(handler=commit))
        runner.start()
        with pytest.raises(SubscriptionError, match="ended the transaction"):
            await runner.join(WAIT_S)

    asyncio.run(main())
