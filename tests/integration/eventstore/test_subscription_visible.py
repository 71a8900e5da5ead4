"""What fails in a subscription or a process is logged, told, listed, counted and retried."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg.rows import dict_row
from structlog.testing import capture_logs

from eventstore.errors import SubscriptionError, UndeclaredError, WrongKindError
from eventstore.model.query import Query
from eventstore.model.unknown import UnknownPolicy
from eventstore.process import ProcessManager
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventTypes
from eventstore.subscription import RetryPolicy, Subscription
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.runner import SubscriptionRunner
from eventstore.subscription.trace import location_of, traceback_of
from tests.fix_process import PlaceOrder, shop
from tests.fix_subscription import new_event, record
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


# A runner that ends


def fails_at_once(runner: SubscriptionRunner) -> BaseException:
    with capture_logs() as logged:
        runner.start()
        wait_until(lambda: runner.failed)
        wait_until(lambda: [one for one in logged if one["event"] == "runner failed"])
    (line,) = [one for one in logged if one["event"] == "runner failed"]
    assert "error" == line["log_level"]
    assert type(runner.failed).__name__ in line["traceback"]
    assert "batch.py" in line["traceback"]
    return runner.failed


def test_a_runner_that_fails_says_so_in_the_log_and_to_on_stop(ledger):
    ledger.append("order-1")
    told, codec = [], Codec(EventTypes())
    runner = SubscriptionRunner(
        ledger.dsn, Subscription(name="view", handler=record), codec=codec, on_stop=told.append
    )
    failed = fails_at_once(runner)
    wait_until(lambda: told)

    assert isinstance(failed, UndeclaredError)
    assert [failed] == told
    assert not runner.ready
    with pytest.raises(UndeclaredError):
        runner.join(30)
    assert failed is runner.failed


def test_a_runner_that_is_stopped_has_not_failed_and_says_that_it_stopped(ledger):
    told: list[object] = []
    with SubscriptionRunner(
        ledger.dsn, Subscription(name="view", handler=record), on_stop=told.append
    ) as runner:
        wait_until(lambda: runner.ready)
        meanwhile = list(told)

    assert ([], [None], None, False) == (meanwhile, told, runner.failed, runner.ready)


def test_an_on_stop_that_fails_does_not_hide_why_the_run_ended(ledger):
    ledger.append("order-1")

    def broken(_):
        raise ValueError(SECRET)

    runner = SubscriptionRunner(
        ledger.dsn,
        Subscription(name="view", handler=record),
        codec=Codec(EventTypes()),
        on_stop=broken,
    )
    with capture_logs() as logged, pytest.raises(UndeclaredError):
        runner.run()

    assert "on_stop failed" in [one["event"] for one in logged]
    assert SECRET not in str(logged)


def test_a_runner_is_not_ready_while_it_has_no_connection(ledger, monkeypatch):
    def refuse(*_, **__):
        raise psycopg.OperationalError("away")

    with SubscriptionRunner(ledger.dsn, Subscription(name="view", handler=record)) as runner:
        wait_until(lambda: runner.ready)
        with monkeypatch.context() as patch:
            patch.setattr(psycopg, "connect", refuse)
            ledger.connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE"
                " datname = current_database() AND application_name LIKE '%subscription%'"
            )
            wait_until(lambda: not runner.ready)
        wait_until(lambda: runner.ready)


# What a handler raised


def test_a_failure_is_logged_with_its_traceback_and_told_with_its_error(ledger, control):
    told = []

    def inner(event):
        raise KeyError(SECRET)

    def handler(event, delivery):
        try:
            inner(event)
        except KeyError as error:
            raise AwayError(SECRET) from error

    subscription = Subscription(name="view", handler=handler, retry=ONCE, on_failure=told.append)
    ledger.append("order-1")
    with capture_logs() as logged, SubscriptionRunner(ledger.dsn, subscription):
        wait_until(lambda: told)
        (parked,) = control.parked("view")
    (line,) = [one for one in logged if "it is parked" in one["event"]]
    here = "eventstore/test_subscription_visible.py:"

    assert "error" == line["log_level"]
    assert "in inner" in line["traceback"]
    assert f"{AwayError.__module__}.AwayError" in line["traceback"]
    assert "builtins.KeyError" in line["traceback"]
    assert SECRET not in str(logged)
    assert parked.error_location.startswith(here)
    assert line["error_location"] == parked.error_location == told[0].error_location
    assert ("view", "default", "order-1", 1, True) == (
        told[0].subscription,
        told[0].tenant,
        told[0].stream,
        told[0].attempts,
        told[0].parked,
    )
    assert isinstance(told[0].error, AwayError)


def test_each_attempt_is_told_and_an_on_failure_that_fails_stops_nothing(ledger, control):
    attempts = []

    def tell(failure):
        attempts.append((failure.attempts, failure.parked))
        raise ValueError(SECRET)

    def handler(event, delivery):
        raise AwayError

    retry = RetryPolicy(attempts_max=4, wait_initial_s=0.01, wait_max_s=0.01)
    ledger.append("order-1")
    with (
        capture_logs() as logged,
        SubscriptionRunner(
            ledger.dsn,
            Subscription(name="view", handler=handler, retry=retry, on_failure=tell),
        ) as runner,
    ):
        wait_until(lambda: attempts and attempts[-1][1])

    assert [(2, False), (3, False), (4, True)] == attempts
    assert runner.failed is None
    assert SECRET not in str(logged)


def test_the_location_is_the_user_s_own_line_below_a_library_s():
    def broken():
        raise ValueError

    try:
        sorted([1], key=lambda _: broken())
    except ValueError as error:
        location, traceback = location_of(error), traceback_of(error)
    deep = RecursionError()
    try:
        EventTypes().named("absent")
    except UndeclaredError as error:
        own = traceback_of(error)
        fallback = location_of(error)

    assert location.startswith("eventstore/test_subscription_visible.py:")
    assert "in broken" in traceback
    assert "absent" in own
    assert fallback.startswith("eventstore/test_subscription_visible.py:")
    assert location_of(deep) is None


# Retries


def test_the_default_retries_last_for_minutes():
    policy = RetryPolicy(jitter=0)
    waits = [policy.wait_s(attempts) for attempts in range(1, policy.attempts_max)]

    assert policy.wait_s(policy.attempts_max) is None
    assert 600 < sum(waits) < 900
    assert 60 == max(waits)


def test_a_dependency_that_is_away_parks_nothing_for_good_and_is_not_hammered(ledger, control):
    """Of more streams than may wait, some are tried again; the rest wait in the log."""
    away, calls = [True], []

    def handler(event, delivery):
        calls.append(event.stream)
        if away:
            raise AwayError
        record(event, delivery)

    for number in range(12):
        ledger.append(f"order-{number}")
    retry = RetryPolicy(attempts_max=50, wait_initial_s=0.05, wait_max_s=0.3)
    subscription = Subscription(name="view", handler=handler, retry=retry, parked_streams_max=5)
    with SubscriptionRunner(ledger.dsn, subscription) as runner:
        wait_until(lambda: len(calls) > 40)
        waiting = control.parked("view")
        called = set(calls)
        away.clear()
        wait_until(lambda: ledger.handled() == ledger.logged())

    assert runner.failed is None
    assert {"retrying"} == {one.state for one in waiting}
    assert 5 == len(waiting)
    assert 6 >= len(called)


def test_everything_that_waits_is_retried_at_once_or_by_error(ledger, control):
    broken = {"order-1": KeyError, "order-2": AwayError, "order-3": AwayError}

    def handler(event, delivery):
        if event.stream in broken:
            raise broken[event.stream]
        record(event, delivery)

    for number in range(5):
        ledger.append(f"order-{number}")
    subscription = Subscription(name="view", handler=handler, retry=ONCE)
    with SubscriptionRunner(ledger.dsn, subscription):
        wait_until(lambda: 3 == sum(one.state == "parked" for one in control.parked("view")))
        broken.clear()
        counts = [
            control.retry_all("view", error_type="ValueError"),
            control.retry_all("view", error_type="AwayError"),
        ]
        wait_until(lambda: ["order-1"] == [one.stream for one in control.parked("view")])
        counts.append(control.retry_all("view", error_type="builtins.KeyError"))
        wait_until(lambda: not control.parked("view"))
        counts.append(control.retry_all("view"))

    assert [0, 2, 1, 0] == counts
    assert ledger.logged() == ledger.handled()


def test_an_event_that_was_unknown_is_tried_again_by_the_program_that_knows_it(ledger, control):
    known, unknown = EventTypes(), EventTypes()
    known.untyped("order.placed")
    seen = []
    ledger.append("order-1")
    ledger.append("order-2", new_event("never.declared"))

    def subscription():
        return Subscription(
            name="view",
            handler=lambda event, _: seen.append(event.stream),
            unknown=UnknownPolicy.PARK,
        )

    with SubscriptionRunner(ledger.dsn, subscription(), codec=Codec(unknown)):
        wait_until(lambda: 2 == len(control.parked("view")))
    with SubscriptionRunner(ledger.dsn, subscription(), codec=Codec(unknown)) as runner:
        wait_until(lambda: runner.ready)
    still = [one.state for one in control.parked("view")]
    with SubscriptionRunner(ledger.dsn, subscription(), codec=Codec(known)):
        wait_until(lambda: seen)
        wait_until(lambda: 1 == len(control.parked("view")))

    assert ["parked", "parked"] == still
    assert ["order-1"] == seen
    assert [("order-2", "parked")] == [(p.stream, p.state) for p in control.parked("view")]


# Tenants


def test_a_subscription_takes_its_store_s_tenant(ledger):
    acme, seen = shop(ledger.log, "acme"), []
    subscription = Subscription(name="view", handler=lambda event, _: seen.append(event.tenant))
    with SubscriptionRunner(ledger.dsn, subscription, store=acme) as runner:
        done = acme.handle(PlaceOrder("1", 20))
        runner.wait_for(done.token, 30)

    assert ["acme"] == seen
    assert "acme" == runner.subscription.tenant


def test_a_subscription_of_another_tenant_than_its_store_is_refused(ledger):
    subscription = Subscription(name="view", handler=record, tenant="other")

    with pytest.raises(SubscriptionError, match="another tenant"):
        SubscriptionRunner(ledger.dsn, subscription, store=shop(ledger.log, "acme"))


def test_to_wait_for_an_append_of_another_tenant_is_refused(ledger):
    acme = shop(ledger.log, "acme")
    subscription = Subscription(name="view", handler=record)
    with SubscriptionRunner(ledger.dsn, subscription, codec=acme.codec) as runner:
        done = acme.handle(PlaceOrder("1", 20))
        with pytest.raises(SubscriptionError, match="another tenant"):
            runner.wait_for(done.token, 30)


# Functions that nothing awaits


class AsyncView:
    name, query = "v", Query()

    async def apply(self, *_):
        raise AssertionError


async def asynchronous(*_):
    raise AssertionError


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Subscription.of(AsyncView()),
        lambda: Subscription.of(AsyncView),
        lambda: Subscription(name="v", handler=asynchronous),
        lambda: Subscription(name="v", handler=None),
        lambda: Subscription(name="v", handler=record, on_failure=asynchronous),
        *(
            lambda what=what: ProcessManager(
                **{
                    "name": "p",
                    "correlate": str,
                    "initial_state": dict,
                    "evolve": max,
                    "react": max,
                    what: asynchronous,
                }
            )
            for what in ("correlate", "initial_state", "evolve", "react")
        ),
        lambda: SubscriptionRunner(
            "", Subscription(name="v", handler=record), on_stop=asynchronous
        ),
    ],
)
def test_async_functions_and_classes_are_refused_where_they_are_declared(declare):
    with pytest.raises(WrongKindError):
        declare()


@pytest.mark.parametrize(
    "handler",
    [
        lambda *_: asynchronous(),
        lambda _, delivery: delivery.effect(asynchronous),
        lambda _, delivery: delivery.effect(lambda _: asynchronous()),
    ],
    ids=["result", "effect", "result of an effect"],
)
def test_what_shows_only_when_it_is_called_parks_its_event(ledger, control, handler):
    ledger.append("order-1")
    with SubscriptionRunner(ledger.dsn, Subscription(name="view", handler=handler)):
        wait_until(lambda: control.parked("view"))
        (parked,) = control.parked("view")

    assert (WrongKindError.code, "parked") == (parked.error_code, parked.state)


# Connections that are lent


def test_what_a_handler_sets_on_its_connection_ends_with_the_call(ledger):
    seen = []

    def handler(event, delivery):
        delivery.connection.row_factory = dict_row
        record(event, delivery)
        seen.append(delivery.connection.execute("SELECT 1 AS one").fetchone())
        delivery.effect(lambda _: setattr(delivery.connection, "row_factory", dict_row))

    last = ledger.fill(28)
    with SubscriptionRunner(ledger.dsn, Subscription(name="view", handler=handler)) as runner:
        ledger.reaches(last)
        later = ledger.append("order-1")
        ledger.reaches(later)

    assert runner.failed is None
    assert ledger.logged() == ledger.handled()
    assert [{"one": 1}] * 29 == seen
