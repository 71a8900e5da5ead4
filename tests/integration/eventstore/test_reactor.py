"""Reactors on a real database, with a real server as the outside."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from eventstore.async_store import AsyncEventStore
from eventstore.errors import SubscriptionError
from eventstore.postgres.async_log import AsyncPostgresEventLog
from eventstore.process import Dispatch
from eventstore.reactor import BreakerPolicy, Invoke, Reactor
from eventstore.reactor.async_runner import AsyncReactorRunner
from eventstore.reactor.control import Reactors
from eventstore.reactor.dry_run import dry_run
from eventstore.reactor.runner import ReactorRunner
from eventstore.subscription import RetryPolicy, Start, Subscription
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.rebuild import rebuild
from eventstore.subscription.runner import SubscriptionRunner
from tests.fix_reactor import ORDERS, Ordered, SendLetter, letters, place, posting, store_on
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parents[2] / "programs" / "react.py"
SOON = RetryPolicy(attempts_max=6, wait_initial_s=0.05, wait_max_s=0.1)
QUICK = BreakerPolicy(failures_max=4, open_s=0.1, open_max_s=0.2)


def reactor(react, **options) -> Reactor:
    given = {"start": Start.BEGINNING, "retry": SOON, "breaker": QUICK, **options}
    return Reactor(**{"name": "letters", "react": react, "query": ORDERS, **given})


def letters_of(store) -> Counter:
    return Counter(
        (found.event.order, found.event.number) for found in store.read_category("letter")
    )


def wanted(count: int, orders: int = 5) -> set[tuple[str, int]]:
    return {
        (str(order), number) for order in range(orders) for number in range(order, count, orders)
    }


@pytest.fixture
def control(store_dsn):
    with Reactors(store_dsn) as reactors:
        yield reactors


def status(control):
    (one,) = control.all()
    return one


def reaches(control, position):
    wait_until(
        lambda: [one.global_position for one in control.all()], accept=lambda now: now >= [position]
    )


def test_each_event_has_its_effect_under_a_key_of_its_own(store_dsn, orders, receiver):
    last = place(orders, 40)
    with ReactorRunner(store_dsn, reactor(posting(receiver.url, commands=True)), orders) as runner:
        runner.wait_for(orders.append("order-0", Ordered("0", 40)).token, 30)
        more = place(orders, 5, first=41)
        wait_until(lambda: len(receiver.came) == 46)
        wait_until(lambda: len(letters_of(orders)) == 46)

    assert last < more
    assert {1} == set(receiver.keys.values())
    assert {1} == set(letters_of(orders).values())
    assert all(key.startswith("letters:") for key in receiver.keys)
    assert all(numbers == sorted(numbers) for numbers in receiver.orders().values())


def test_a_new_reactor_has_no_effects_of_the_history(store_dsn, orders, receiver, control):
    place(orders, 10)
    made = Reactor(name="letters", react=posting(receiver.url), query=ORDERS)
    with ReactorRunner(store_dsn, made, orders):
        wait_until(control.all)
        place(orders, 2, first=100)
        wait_until(lambda: len(receiver.came) == 2)

    assert {100, 101} == {document["number"] for _, document in receiver.came}


@pytest.mark.fault
@pytest.mark.parametrize("members", [1, 2])
def test_killed_members_lose_no_effect_and_double_no_command(
    store_dsn, orders, receiver, run_seed, members
):
    place(orders, 150)
    chance = random.Random(run_seed)  # noqa: S311  # repeats with the run
    running: list[subprocess.Popen[bytes]] = []
    killed = []

    def kill(when: str, number: int) -> None:
        if number < 150 and chance.random() < 0.08 and when == chance.choice(["before", "after"]):
            victim = chance.choice(running)
            victim.kill()
            killed.append((when, number))

    receiver.before = lambda number: kill("before", number)
    receiver.after = lambda number: kill("after", number)

    def start() -> subprocess.Popen[bytes]:
        path = f"{PROGRAM.parents[1]}{os.pathsep}{PROGRAM.parents[2]}"
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), store_dsn, receiver.url, str(2 * members)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def done() -> bool:
        for place_, one in enumerate(running):
            if one.poll() is not None:
                assert -signal.SIGKILL == one.returncode
                running[place_] = start()
        return len(letters_of(orders)) == 150

    running += [start() for _ in range(members)]
    try:
        wait_until(done, timeout_s=150)
    finally:
        for one in running:
            one.kill()
            one.wait()

    assert killed
    assert wanted(150) == set.union(*receiver.documents().values())
    assert all(len(documents) == 1 for documents in receiver.documents().values())
    assert 150 == len(receiver.keys)
    assert {1} == set(letters_of(orders).values())
    assert all(numbers == sorted(numbers) for numbers in receiver.orders().values())


def test_an_effect_that_is_refused_parks_its_stream_and_keeps_the_order(
    store_dsn, orders, receiver, control
):
    place(orders, 30)
    receiver.refuse = lambda document: 422 if document["number"] == 8 else None
    with ReactorRunner(store_dsn, reactor(posting(receiver.url, commands=True)), orders):
        wait_until(lambda: len(receiver.came) == 25)
        wait_until(lambda: control.parked("letters"))
        (parked,) = control.parked("letters")
        wait_until(lambda: status(control).projection_lag_events == 0)
        before = status(control)
        assert not any(order == "3" and number > 8 for order, number in letters_of(orders))
        receiver.refuse = lambda _: None
        retried = control.retry_all("letters", error_type="EffectRefusedError")
        wait_until(lambda: len(letters_of(orders)) == 30)

    assert ("order-3", "parked", 1, "HW-E060", 4) == (
        *(parked.stream, parked.state, parked.attempts, parked.error_code),
        parked.waiting,
    )
    assert ("running", 0, 1) == (before.state, before.retrying_streams, before.parked_streams)
    assert 1 == retried
    assert all(numbers == sorted(numbers) for numbers in receiver.orders().values())
    assert {1} == set(letters_of(orders).values())


def test_while_the_dependency_is_away_all_wait_and_nothing_is_parked(
    store_dsn, orders, receiver, control
):
    receiver.status = 503
    place(orders, 60, orders=20)
    few = RetryPolicy(attempts_max=4, wait_initial_s=0.01, wait_max_s=0.02)
    with ReactorRunner(store_dsn, reactor(posting(receiver.url), retry=few), orders):
        wait_until(lambda: receiver.tried >= 20)  # far more than attempts, had they counted
        away = status(control)
        states = {one.state for one in control.parked("letters")}
        receiver.status = 200
        wait_until(lambda: len(receiver.came) == 60)
        wait_until(lambda: status(control).breaker_opened_at is None)
        back = status(control)

    assert "waiting" == away.state
    assert "eventstore.errors.DependencyAwayError" == away.breaker_error
    assert {"retrying"} == states
    assert ("running", None) == (back.state, back.breaker_error)
    assert {1} == set(receiver.keys.values())
    assert all(numbers == sorted(numbers) for numbers in receiver.orders().values())


def test_one_event_that_breaks_the_dependency_does_not_hold_the_others(
    store_dsn, orders, receiver, control
):
    place(orders, 60, orders=20)
    receiver.refuse = lambda document: 500 if document["order"] == "3" else None
    with ReactorRunner(store_dsn, reactor(posting(receiver.url)), orders):
        wait_until(lambda: len(receiver.came) == 57)
        place(orders, 40, orders=20, first=60)
        wait_until(lambda: len(receiver.came) == 95)

        (waiting,) = control.parked("letters")
    assert "order-3" == waiting.stream


def test_a_pause_holds_in_each_process_until_it_is_resumed(store_dsn, orders, receiver, control):
    place(orders, 400)
    made = reactor(posting(receiver.url), partitions=2)
    with (
        ReactorRunner(store_dsn, made, orders),
        ReactorRunner(store_dsn, made, orders) as second,
    ):
        wait_until(lambda: len(receiver.came) > 20 and second.ready)
        control.pause("letters")
        at_pause = receiver.tried
        place(orders, 5, first=400)
        paused = status(control)
        # each has looked at the log several times since
        wait_until(lambda: look_counts(store_dsn) >= 6)
        later = receiver.tried
        control.resume("letters")
        wait_until(lambda: len(receiver.keys) == 405)

    assert at_pause == later < 400
    assert "paused" == paused.state
    assert paused.paused_at is not None
    with pytest.raises(SubscriptionError, match="no reactor mail"):
        control.pause("mail")


def look_counts(dsn: str, seen: dict[str, int] = {}) -> int:  # noqa: B006  # counts over calls
    """How often the wait has seen the runners ask something new."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid::text || query_start::text FROM pg_stat_activity"
            " WHERE application_name = 'headwater subscription letters'"
        ).fetchall()
    for (row,) in rows:
        seen[dsn + row] = 1
    return sum(key.startswith(dsn) for key in seen)


def test_a_pause_outlives_a_restart_and_a_new_number_of_partitions(
    store_dsn, orders, receiver, control
):
    place(orders, 3)
    with ReactorRunner(store_dsn, reactor(posting(receiver.url)), orders):
        wait_until(lambda: len(receiver.came) == 3)
        wait_until(lambda: status(control).projection_lag_events == 0)
        control.pause("letters")
    place(orders, 5, first=3)
    made = reactor(posting(receiver.url), partitions=3)
    with ReactorRunner(store_dsn, made, orders) as runner:
        wait_until(lambda: runner.ready and status(control).state == "paused")
        wait_until(lambda: look_counts(store_dsn) >= 3)
        held = len(receiver.came)
        control.resume("letters")
        wait_until(lambda: len(receiver.came) == 8)

    assert 3 == held
    assert {1} == set(receiver.keys.values())


class Totals:
    """A view with its own table, whose handler asks for effects as well."""

    name = "totals"
    query = ORDERS
    tables = ("totals",)


def test_a_rebuild_of_ten_thousand_events_under_a_reactor_makes_no_effect(
    store_dsn, orders, receiver, control
):
    calls = []

    def total(event, delivery):
        delivery.effect(calls.append)
        delivery.connection.execute(
            "INSERT INTO totals VALUES (%s, 1) ON CONFLICT (stream)"
            " DO UPDATE SET events = totals.events + 1",
            (event.stream,),
        )

    with psycopg.connect(store_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE totals (stream text PRIMARY KEY, events bigint)")
    for first in range(0, 10_000, 500):
        last = place(orders, 500, first=first)
    view = Subscription(
        name="totals", handler=total, query=ORDERS, tables=("totals",), effects_from=Start.END
    )
    reacting = Reactor(name="letters", react=posting(receiver.url, commands=True), query=ORDERS)
    with (
        ReactorRunner(store_dsn, reacting, orders),
        SubscriptionRunner(store_dsn, view, store=orders),
        Subscriptions(store_dsn) as subscriptions,
    ):
        wait_until(control.all)
        wait_until(lambda: subscriptions.names() == ["letters", "totals"])
        wait_until(
            lambda: min(one.global_position for one in subscriptions.status("totals")) >= last
        )
        place(orders, 1, orders=1, first=10_000)
        wait_until(lambda: len(receiver.came) == 1 and len(calls) == 1)
        wait_until(lambda: len(letters_of(orders)) == 1)
        with psycopg.connect(store_dsn, autocommit=True) as connection:
            connection.execute("UPDATE totals SET events = 0")
        position = status(control).global_position
        done = rebuild(store_dsn, view, store=orders)
        for name, match in (("letters", "never repeated"), ("totals", "twice")):
            with pytest.raises(SubscriptionError, match=match):
                subscriptions.replay(name, 0)
        place(orders, 1, orders=1, first=10_001)
        wait_until(lambda: len(receiver.came) == 2 and len(calls) == 2)

    assert (10_001, 5, 5) == (done.events, done.removed, done.added)
    assert [10_000, 10_001] == [document["number"] for _, document in receiver.came]
    assert position > 0


def test_a_dry_run_lists_what_would_be_done_and_does_nothing(store_dsn, orders, receiver, control):
    last = place(orders, 10)
    invoked = []

    def react(recorded):
        if recorded.event.number == 4:
            raise KeyError("with values of rows: 4711")
        effects = posting(receiver.url, commands=True)(recorded)
        return [*effects, Invoke(invoked.append)]

    planned = list(dry_run(orders, reactor(react)))
    part = list(dry_run(orders, reactor(react), after=2, through=4))
    (failed,) = [one for one in planned if one.key is None]

    assert (0, [], {}) == (receiver.tried, invoked, letters_of(orders))
    assert [] == control.all()
    assert 9 * 3 + 1 == len(planned)
    assert "builtins.KeyError" == failed.error_type
    assert "POST to 127.0.0.1" == planned[0].effect
    assert "dispatch SendLetter" == planned[1].effect
    assert {3, 4} == {one.global_position for one in part}
    assert last == planned[-1].global_position
    with ReactorRunner(store_dsn, reactor(posting(receiver.url)), orders):
        wait_until(lambda: len(receiver.came) == 10)
    would = {one.key for one in planned if one.effect == "POST to 127.0.0.1"}
    assert would < set(receiver.keys)


def test_a_command_that_the_domain_refuses_waits_and_is_dropped(store_dsn, orders, control):
    place(orders, 2, orders=2)

    def react(recorded):
        number = -1 if recorded.event.order == "1" else 1
        return Dispatch(SendLetter(recorded.event.order, number))

    with ReactorRunner(store_dsn, reactor(react), orders):
        wait_until(lambda: control.parked("letters"))
        (parked,) = control.parked("letters")
        dropped = control.drop("letters", parked.stream)
        wait_until(lambda: letters_of(orders) == {("0", 1): 1})

    assert ("order-1", "HW-E013", "parked") == (parked.stream, parked.error_code, parked.state)
    assert 1 == dropped


def test_a_rate_holds_over_all_members(store_dsn, orders, receiver):
    place(orders, 40, orders=20)
    made = reactor(posting(receiver.url), partitions=4, rate_per_s=20.0)
    times = []

    receiver.after = lambda _: times.append(time.monotonic())
    with ReactorRunner(store_dsn, made, orders), ReactorRunner(store_dsn, made, orders):
        wait_until(lambda: len(receiver.came) == 40)

    # at first one member has the whole rate, and each may have one effect at once
    assert times[-1] - times[0] > 1.4
    assert {1} == set(receiver.keys.values())


def test_the_asynchronous_runner_does_the_same(store_dsn, receiver, orders, control):
    place(orders, 20)
    invoked = []
    done = asyncio.Event()

    async def note(key, number):
        await asyncio.to_thread(threading.get_ident)
        invoked.append((key, number))
        if len(invoked) == 20:
            done.set()

    def react(recorded):
        effects = posting(receiver.url, commands=True)(recorded)
        return [*effects, Invoke(note, recorded.event.number)]

    async def run():
        log = AsyncPostgresEventLog(store_dsn)
        store = AsyncEventStore(log, types=orders.codec.types, deciders=[letters])
        async with AsyncReactorRunner(store_dsn, reactor(react), store):
            await asyncio.wait_for(done.wait(), 30)
        await store.close()

    asyncio.run(run())
    assert {1} == set(receiver.keys.values())
    assert 20 == len(letters_of(orders)) == len(receiver.came)
    assert {1} == set(letters_of(orders).values())
    assert set(range(20)) == {number for _, number in invoked}
    assert all(key.endswith(":3") for key, _ in invoked)


def test_an_async_function_fails_where_nothing_awaits_it(store_dsn, orders, control):
    async def note(key):
        raise AssertionError

    place(orders, 1)
    with ReactorRunner(store_dsn, reactor(lambda _: Invoke(note)), orders):
        wait_until(lambda: control.parked("letters"))
        (parked,) = control.parked("letters")

    assert ("HW-E023", "parked") == (parked.error_code, parked.state)


def test_a_reactor_of_a_module_runs_in_a_forked_process(store_dsn, orders, receiver):
    place(orders, 10)
    made = reactor(posting(receiver.url, commands=True))
    assert [] == list(orders.read_category("letter"))  # its pool is in use before the fork
    with SubscriptionRunner(store_dsn, Subscription(name="other", handler=lambda *_: None)):
        child = os.fork()
        if child == 0:
            try:
                with ReactorRunner(store_dsn, made, orders):
                    wait_until(lambda: len(letters_of(orders)) == 10, timeout_s=30)
                os._exit(0)
            finally:
                os._exit(1)
        _, code = os.waitpid(child, 0)

    assert 0 == code
    assert {1} == set(receiver.keys.values())
    assert 10 == len(letters_of(orders))


def test_a_plain_subscription_is_no_reactor(store_dsn, orders, control):
    done = threading.Event()
    plain = Subscription(name="plain", handler=lambda *_: done.set(), query=ORDERS)
    place(orders, 1)
    with SubscriptionRunner(store_dsn, plain, store=store_on(orders.log)):
        assert done.wait(30)

    assert [] == control.all()
    with pytest.raises(SubscriptionError, match="no reactor plain"):
        control.pause("plain")


def test_a_batch_that_is_rolled_back_does_its_commands_again(store_dsn, orders, receiver, control):
    place(orders, 30, orders=6)
    failed = set()

    def refuse(document):
        number = document["number"]
        if number % 4 == 3 and number not in failed:
            failed.add(number)
            return 500
        return None

    receiver.refuse = refuse
    made = reactor(posting(receiver.url, commands=True), batch_size=5)
    with ReactorRunner(store_dsn, made, orders):
        wait_until(lambda: len(letters_of(orders)) == 30)
        wait_until(lambda: not control.parked("letters"))

    assert failed
    assert {1} == set(letters_of(orders).values())
    assert {1} == set(receiver.keys.values())
    assert all(numbers == sorted(numbers) for numbers in receiver.orders().values())
