from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from eventstore.deciding.context import Context
from eventstore.errors import Rejected
from eventstore.process import Complete, Dispatch, Schedule
from eventstore.process.runner import ProcessRunner
from eventstore.subscription import RetryPolicy, Start
from eventstore.subscription.control import Subscriptions
from tests.fix_process import (
    OrderPlaced,
    PaymentReceived,
    PlaceOrder,
    ReceivePayment,
    fulfilment,
    shop,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

SOON = timedelta(milliseconds=50)


@pytest.fixture
def store(ledger):
    return shop(ledger.log)


def types_of(ledger, order_id: str) -> list[str]:
    """What happened to an order, over its three streams."""
    return ledger.query(
        "SELECT type FROM eventstore.log WHERE stream LIKE %s ORDER BY global_position",
        f"%-{order_id}",
    )


def completed(ledger) -> list[str]:
    return ledger.query(
        "SELECT process_id FROM eventstore.processes WHERE completed_at IS NOT NULL ORDER BY 1"
    )


def inputs(ledger) -> list[tuple[str, str]]:
    return ledger.query(
        "SELECT kind, coalesce(name, type) FROM eventstore.process_inputs"
        " LEFT JOIN eventstore.log USING (global_position) ORDER BY process_id, number"
    )


def test_an_order_is_paid_and_shipped(ledger, store):
    with ProcessRunner(ledger.dsn, fulfilment(), store):
        store.handle(PlaceOrder("1", 20))
        wait_until(lambda: "payment.requested" in types_of(ledger, "1"))
        store.handle(ReceivePayment("1"))
        wait_until(lambda: completed(ledger) == ["1"])

    assert [
        "order.placed",
        "payment.requested",
        "payment.received",
        "shipment.sent",
    ] == types_of(ledger, "1")
    assert [] == ledger.query("SELECT name FROM eventstore.timers")


def test_what_a_process_causes_says_so(ledger, store):
    placed = store.handle(PlaceOrder("1", 20))
    with ProcessRunner(ledger.dsn, fulfilment(), store):
        wait_until(lambda: "payment.requested" in types_of(ledger, "1"))
    cause, effect = store.read_all()

    assert placed.token.global_position == cause.global_position
    assert ("1", str(cause.event_id), "fulfilment") == (
        effect.correlation_id,
        effect.causation_id,
        effect.actor,
    )


def test_an_order_that_is_not_paid_in_time_is_cancelled(ledger, store):
    with ProcessRunner(ledger.dsn, fulfilment(SOON), store):
        store.handle(PlaceOrder("1", 20))
        wait_until(lambda: completed(ledger) == ["1"])

    assert ["order.placed", "payment.requested", "order.cancelled"] == types_of(ledger, "1")
    assert ("timeout", "payment") in inputs(ledger)


def test_a_refused_command_comes_back_and_what_was_done_is_compensated(ledger, store):
    with ProcessRunner(ledger.dsn, fulfilment(), store):
        store.handle(PlaceOrder("far-1", 20))
        wait_until(lambda: "payment.requested" in types_of(ledger, "far-1"))
        store.handle(ReceivePayment("far-1"))
        wait_until(lambda: completed(ledger) == ["far-1"])

    assert [
        "order.placed",
        "payment.requested",
        "payment.received",
        "payment.refunded",
        "order.cancelled",
    ] == types_of(ledger, "far-1")
    assert ["NoRouteError"] == ledger.query(
        "SELECT reason FROM eventstore.process_inputs WHERE kind = 'refusal'"
    )


def test_a_command_that_is_refused_at_the_first_step_ends_the_order(ledger, store):
    with ProcessRunner(ledger.dsn, fulfilment(), store):
        store.handle(PlaceOrder("1", 5000))
        wait_until(lambda: completed(ledger) == ["1"])

    assert ["order.placed", "order.cancelled"] == types_of(ledger, "1")


def test_timers_outlive_the_runner_that_set_them(ledger, store):
    placed = store.handle(PlaceOrder("1", 20))
    with ProcessRunner(ledger.dsn, fulfilment(), store) as runner:
        runner.wait_for(placed.token, 30)
    ledger.connection.execute("UPDATE eventstore.timers SET fires_at = due_at - interval '2 hours'")
    with ProcessRunner(ledger.dsn, fulfilment(), store):
        wait_until(lambda: completed(ledger) == ["1"])

    assert ["order.placed", "payment.requested", "order.cancelled"] == types_of(ledger, "1")


def test_each_timer_fires_once_however_many_runners_there_are(ledger, store):
    orders = [str(number) for number in range(30)]
    with ExitStack() as runners:
        for _ in range(3):
            runners.enter_context(ProcessRunner(ledger.dsn, fulfilment(SOON), store, partitions=4))
        for order in orders:
            store.handle(PlaceOrder(order, 20))
        wait_until(lambda: len(completed(ledger)) == len(orders), timeout_s=60)
    timeouts = ledger.query(
        "SELECT process_id FROM eventstore.process_inputs WHERE kind = 'timeout'"
    )
    cancelled = ledger.query("SELECT stream FROM eventstore.log WHERE type = 'order.cancelled'")

    assert sorted(orders) == sorted(timeouts)
    assert sorted(f"order-{order}" for order in orders) == sorted(cancelled)


def test_an_event_that_comes_again_is_taken_in_once(ledger, store):
    with (
        ProcessRunner(ledger.dsn, fulfilment(), store) as runner,
        Subscriptions(ledger.dsn) as subscriptions,
    ):
        placed = store.handle(PlaceOrder("1", 20))
        wait_until(lambda: "payment.requested" in types_of(ledger, "1"))
        runner.wait_for(ledger.token(), 30)
        subscriptions.replay("fulfilment", 0)
        runner.wait_for(placed.token, 30)
        wait_until(lambda: ledger.position("fulfilment") >= ledger.token().global_position)

    assert [("event", "order.placed"), ("event", "payment.requested")] == inputs(ledger)
    assert ["order.placed", "payment.requested"] == types_of(ledger, "1")


def test_history_before_effects_from_is_remembered_and_causes_nothing(ledger, store):
    store.handle(PlaceOrder("far-1", 20))
    with ProcessRunner(ledger.dsn, fulfilment(), store, effects_from=Start.END) as runner:
        runner.wait_for(ledger.token(), 30)
        before = types_of(ledger, "far-1")
        store.handle(ReceivePayment("far-1"))
        wait_until(lambda: completed(ledger) == ["far-1"])

    assert ["order.placed"] == before
    assert [
        "order.placed",
        "payment.received",
        "payment.refunded",
        "order.cancelled",
    ] == types_of(ledger, "far-1")


def test_a_connection_that_breaks_between_a_command_and_the_commit_doubles_nothing(ledger, store):
    cut = [True]

    def break_once(state, taken):
        yield from fulfilment().react(state, taken)
        if isinstance(taken, PaymentReceived) and cut:
            cut.pop()
            ledger.query(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE '%%subscription%%'"
            )

    with ProcessRunner(ledger.dsn, manager(react=break_once), store):
        store.handle(PlaceOrder("1", 20))
        wait_until(lambda: "payment.requested" in types_of(ledger, "1"))
        store.handle(ReceivePayment("1"))
        wait_until(lambda: completed(ledger) == ["1"])

    assert [] == cut
    assert 1 == types_of(ledger, "1").count("shipment.sent")


def manager(**changes):
    made = fulfilment()
    kept = {name: getattr(made, name) for name in ("correlate", "initial_state", "evolve", "query")}
    return type(made)(**{"name": "fulfilment", "react": made.react, **kept, **changes})


def test_a_reaction_that_fails_holds_up_only_the_events_stream(ledger, store):
    broken = [True]

    def fail(state, taken):
        if isinstance(taken, OrderPlaced) and taken.order_id == "2" and broken:
            raise ValueError(taken)
        return fulfilment().react(state, taken)

    never = RetryPolicy(attempts_max=1)
    with (
        ProcessRunner(ledger.dsn, manager(react=fail), store, retry=never),
        Subscriptions(ledger.dsn) as subscriptions,
    ):
        for order in ("1", "2", "3"):
            store.handle(PlaceOrder(order, 20))
        wait_until(lambda: "payment.requested" in types_of(ledger, "3"))
        meanwhile = types_of(ledger, "2")
        broken.clear()
        subscriptions.retry("fulfilment", "order-2")
        wait_until(lambda: "payment.requested" in types_of(ledger, "2"))

    assert ["order.placed"] == meanwhile


def test_a_timer_that_fails_is_tried_again_and_then_waits_for_somebody(ledger, store):
    def fail(state, taken):
        if isinstance(taken, OrderPlaced):
            return [Schedule("payment", after=SOON)]
        raise ValueError(taken)

    twice = RetryPolicy(attempts_max=2, wait_initial_s=0.01)
    with ProcessRunner(ledger.dsn, manager(react=fail), store, retry=twice):
        store.handle(PlaceOrder("1", 20))
        wait_until(
            lambda: (
                [2]
                == ledger.query(
                    "SELECT attempts FROM eventstore.timers WHERE fires_at = 'infinity'"
                )
            )
        )
    kept = ledger.query("SELECT error_type FROM eventstore.timers")

    assert ["builtins.ValueError"] == kept
    assert [("event", "order.placed")] == inputs(ledger)


def test_a_timer_at_an_instant_of_the_past_fires_at_once(ledger, store):
    def react(state, taken):
        if isinstance(taken, OrderPlaced):
            return [Schedule("late", at=datetime(2020, 1, 1, tzinfo=UTC))]
        return [Complete()]

    with ProcessRunner(ledger.dsn, manager(react=react), store):
        store.handle(PlaceOrder("1", 20))
        wait_until(lambda: completed(ledger) == ["1"])

    assert [("event", "order.placed"), ("timeout", "late")] == inputs(ledger)


def test_a_process_that_reacts_to_its_refusals_without_end_is_stopped(ledger, store):
    def react(state, taken):
        return [Dispatch(PlaceOrderAgain("1"))]

    class PlaceOrderAgain:
        def __init__(self, order_id):
            self.order_id = order_id

    class Refusing:
        tenant, unknown, codec = store.tenant, store.unknown, store.codec

        def handle(self, *_, **__):
            raise Rejected("never")

    store.handle(PlaceOrder("1", 20))
    with (
        ProcessRunner(ledger.dsn, manager(react=react), Refusing()),
        Subscriptions(ledger.dsn) as subscriptions,
    ):
        wait_until(lambda: subscriptions.parked("fulfilment"))
        (parked,) = subscriptions.parked("fulfilment")

    assert "HW-E032" == parked.error_code
    assert [] == inputs(ledger)


def test_processes_of_one_tenant_do_not_see_another(ledger):
    acme, other = shop(ledger.log, "acme"), shop(ledger.log, "other")
    acme.handle(PlaceOrder("1", 20))
    other.handle(PlaceOrder("1", 20), context=Context(actor="somebody"))
    with ProcessRunner(ledger.dsn, fulfilment(), acme):
        wait_until(lambda: "payment.requested" in types_of(ledger, "1"))

    assert ["acme"] == ledger.query(
        "SELECT tenant FROM eventstore.log WHERE type = 'payment.requested'"
    )
    assert ["acme"] == ledger.query("SELECT DISTINCT tenant FROM eventstore.processes")


def test_two_events_of_one_process_at_once_are_taken_in_one_after_another(ledger, store):
    """They lie in two streams, so two runners may have them at the same moment."""
    store.handle(PlaceOrder("1", 20))
    with psycopg.connect(ledger.dsn) as first:
        first.execute(
            "INSERT INTO eventstore.processes (tenant, manager, process_id)"
            " VALUES ('default', 'fulfilment', '1')"
        )
        with ProcessRunner(ledger.dsn, fulfilment(), store):
            wait_until(
                lambda: (
                    [1]
                    == ledger.query(
                        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                        " AND datname = current_database()"
                    )
                )
            )
            meanwhile = types_of(ledger, "1")
            first.commit()
            wait_until(lambda: "payment.requested" in types_of(ledger, "1"))

    assert ["order.placed"] == meanwhile
