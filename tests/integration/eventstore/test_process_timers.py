"""Timers of process managers whose reaction failed: listed, counted, told, retried, dropped."""

from __future__ import annotations

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from eventstore.errors import UndeclaredError, WrongKindError
from eventstore.model.query import Query
from eventstore.process import Complete, ProcessManager, Schedule
from eventstore.process.runner import ProcessRunner
from eventstore.subscription import RetryPolicy
from eventstore.subscription.control import Subscriptions
from tests.fix_process import OrderPlaced, PlaceOrder, fulfilment, shop
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

SOON = timedelta(milliseconds=20)
ONCE = RetryPolicy(attempts_max=1)
SECRET = "with values of rows: 4711"


class AwayError(ConnectionError):
    pass


@pytest.fixture
def control(ledger):
    with Subscriptions(ledger.dsn) as subscriptions:
        yield subscriptions


@pytest.fixture
def store(ledger):
    return shop(ledger.log)


def manager(broken: list[type[Exception]]) -> ProcessManager[object]:
    def react(state, taken):
        if isinstance(taken, OrderPlaced):
            return [Schedule("late", after=SOON)]
        if broken:
            raise broken[0](SECRET)
        return [Complete()]

    return ProcessManager(
        name="p",
        correlate=lambda recorded: getattr(recorded.event, "order_id", None),
        initial_state=dict,
        evolve=lambda state, _: state,
        react=react,
        query=Query(category="order"),
    )


def test_a_timer_that_failed_is_listed_counted_told_and_retried(ledger, store, control):
    broken, told = [AwayError], []
    store.handle(PlaceOrder("1", 20))
    with (
        capture_logs() as logged,
        ProcessRunner(ledger.dsn, manager(broken), store, retry=ONCE, on_failure=told.append),
    ):
        wait_until(lambda: [one for one in control.parked_timers("p") if one.state == "parked"])
        wait_until(lambda: told)
        (timer,) = control.parked_timers("p")
        (status,) = control.status("p")
        broken.clear()
        absent = control.retry_timer("p", "1", "another")
        done = control.retry_timer("p", "1", "late")
        wait_until(lambda: completed(ledger) == ["1"])
    (line,) = [one for one in logged if one["event"] == "timer failed, it is parked"]

    assert ("1", "late", 1, None) == (
        timer.process_id,
        timer.timer,
        timer.attempts,
        timer.retry_at,
    )
    assert timer.error_type.endswith("AwayError")
    assert timer.error_location.startswith("eventstore/test_process_timers.py:")
    assert (1, 0) == (status.parked_timers, status.parked_streams)
    assert ("1", "late", True) == (told[0].process_id, told[0].timer, told[0].parked)
    assert "in react" in line["traceback"]
    assert SECRET not in str(logged)
    assert (False, True) == (absent, done)
    assert [] == control.parked_timers("p")


def completed(ledger) -> list[str]:
    return ledger.query(
        "SELECT process_id FROM eventstore.processes WHERE completed_at IS NOT NULL ORDER BY 1"
    )


def test_timers_are_retried_with_all_the_rest_and_dropped(ledger, store, control):
    broken = [AwayError]
    for order in ("1", "2"):
        store.handle(PlaceOrder(order, 20))
    with ProcessRunner(ledger.dsn, manager(broken), store, retry=ONCE):
        wait_until(lambda: 2 == sum(t.state == "parked" for t in control.parked_timers("p")))
        broken.clear()
        dropped = control.drop_timer("p", "1", "late")
        counts = [control.retry_all("p", error_type="KeyError"), control.retry_all("p")]
        wait_until(lambda: completed(ledger) == ["2"])

    assert dropped
    assert [0, 1] == counts
    assert [] == ledger.query("SELECT name FROM eventstore.timers")


def test_a_timer_that_failed_as_undeclared_fires_again_after_a_deploy(ledger, store, control):
    broken = [UndeclaredError]
    store.handle(PlaceOrder("1", 20))
    with ProcessRunner(ledger.dsn, manager(broken), store):
        wait_until(lambda: [t for t in control.parked_timers("p") if t.state == "parked"])
    with ProcessRunner(ledger.dsn, manager([]), store):
        wait_until(lambda: completed(ledger) == ["1"])


def test_a_timer_that_is_not_overdue_is_neither_listed_nor_dropped(ledger, store, control):
    store.handle(PlaceOrder("1", 20))
    with ProcessRunner(ledger.dsn, fulfilment(), store) as runner:
        runner.wait_for(ledger.token(), 30)
        wait_until(lambda: ledger.query("SELECT name FROM eventstore.timers"))
        listed = control.parked_timers("fulfilment")
        dropped = control.drop_timer("fulfilment", "1", "payment")

    assert ([], False) == (listed, dropped)


async def asynchronous():
    raise AssertionError


@pytest.mark.parametrize("what", ["correlate", "react"])
def test_a_coroutine_that_a_process_manager_returns_parks_its_event(ledger, store, control, what):
    made = manager([])
    kept = {name: getattr(made, name) for name in ("correlate", "initial_state", "evolve", "react")}
    kept[what] = lambda *_: asynchronous()
    store.handle(PlaceOrder("1", 20))
    with ProcessRunner(ledger.dsn, ProcessManager(name="p", query=made.query, **kept), store):
        wait_until(lambda: control.parked("p"))
        (parked,) = control.parked("p")

    assert WrongKindError.code == parked.error_code
