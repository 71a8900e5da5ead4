"""What users test with: scenarios of processes and projections, a clock, a simulation."""

from __future__ import annotations

import gc
import warnings
from datetime import UTC, datetime, timedelta

import pytest

from eventstore import AsyncEventStore, Query
from eventstore.deciding.scenario import ForgottenExpectation
from eventstore.errors import EventStoreError, SubscriptionError, WrongKindError
from eventstore.memory import AsyncMemoryEventLog, MemoryEventLog
from eventstore.model.query import EVERYTHING
from eventstore.process import (
    Cancel,
    CommandRejected,
    Dispatch,
    ProcessManager,
    Schedule,
    TimedOut,
)
from eventstore.testing import (
    MovedClock,
    ProcessSimulation,
    process_scenario,
    projection_scenario,
)
from tests.fix_process import (
    CancelOrder,
    Fulfilment,
    OrderPlaced,
    PaymentReceived,
    PlaceOrder,
    ReceivePayment,
    RefundPayment,
    RequestPayment,
    SendShipment,
    fulfilment,
    shop,
    types,
)

HOUR = timedelta(hours=1)
PLACED = OrderPlaced("1", 20)
LATE = TimedOut("payment", datetime(2026, 1, 1, tzinfo=UTC))


# Process managers


def test_a_process_reacts():
    (
        process_scenario(fulfilment())
        .when(PLACED)
        .then(Dispatch(RequestPayment("1", 20)), Schedule("payment", after=HOUR))
        .when(PaymentReceived("1"))
        .then(Cancel("payment"), Dispatch(SendShipment("1")))
        .when(CommandRejected("SendShipment", "NoRouteError"))
        .then(Dispatch(RefundPayment("1")), Dispatch(CancelOrder("1")))
    )


def test_a_process_has_a_state():
    process_scenario(fulfilment()).given(PLACED).then_state(Fulfilment("1"))
    process_scenario(fulfilment()).given(PLACED).when(PaymentReceived("1")).then_state(
        Fulfilment("1", paid=True)
    )
    process_scenario(fulfilment()).given(PLACED).when(object()).then_nothing()


def test_a_scenario_of_a_process_fails_and_says_why():
    given = process_scenario(fulfilment()).given(PLACED)
    with pytest.raises(AssertionError, match=r"reacts otherwise[\s\S]*\+ .*CancelOrder"):
        given.when(LATE).then_nothing()
    with pytest.raises(AssertionError, match="the state is another"):
        given.then_state(Fulfilment("2"))
    with pytest.raises(AssertionError, match="cannot be used"):
        assert given
    with pytest.raises(WrongKindError):
        process_scenario(ProcessManager)


def test_a_reaction_that_changes_the_state_fails():
    def react(state, taken):
        state.append(taken)

    manager = ProcessManager(
        name="p",
        correlate=lambda _: "1",
        initial_state=list,
        evolve=lambda state, _: list(state),
        react=react,
    )
    with pytest.raises(AssertionError, match="react changed the state"):
        process_scenario(manager).when(PLACED).then_nothing()


def test_an_expectation_that_is_forgotten_is_told():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        process_scenario(fulfilment()).when(PLACED)
        gc.collect()

    assert [ForgottenExpectation] == [one.category for one in said]
    assert __file__ == said[0].filename


# The clock and the simulation


def simulated(manager=None):
    clock = MovedClock()
    store = shop(MemoryEventLog(clock=clock))
    return store, ProcessSimulation(manager or fulfilment(), store, clock), clock


def types_of(store) -> list[str]:
    return [one.type for one in store.read_all()]


def test_a_timer_fires_when_the_test_moves_the_clock():
    store, simulation, clock = simulated()
    store.handle(PlaceOrder("1", 20))
    simulation.run()
    due = {("1", "payment"): clock() + HOUR}
    assert due == simulation.timers
    simulation.move(HOUR - timedelta(seconds=1))
    assert ["order.placed", "payment.requested"] == types_of(store)
    simulation.move(timedelta(seconds=1))

    assert ["order.placed", "payment.requested", "order.cancelled"] == types_of(store)
    assert {"1"} == simulation.completed
    assert {} == simulation.timers
    assert clock() == list(store.read_all())[-1].recorded_at


def test_timers_fire_in_their_order_each_at_its_own_time():
    fired = []

    def react(state, taken):
        if isinstance(taken, TimedOut):
            fired.append((taken.name, clock() - begin))
            return [Schedule("third", after=HOUR)] if taken.name == "first" else None
        return [Schedule("second", after=3 * HOUR), Schedule("first", after=HOUR)]

    manager = ProcessManager(
        name="p",
        correlate=lambda _: "1",
        initial_state=dict,
        evolve=lambda state, _: state,
        react=react,
    )
    store, simulation, clock = simulated(manager)
    begin = clock()
    store.handle(PlaceOrder("1", 20))
    simulation.move(5 * HOUR)

    assert [("first", HOUR), ("third", 2 * HOUR), ("second", 3 * HOUR)] == fired
    assert begin + 5 * HOUR == clock()


def test_a_refused_command_comes_back_to_the_process():
    store, simulation, _ = simulated()
    store.handle(PlaceOrder("1", 2000))
    store.handle(PlaceOrder("far", 20))
    simulation.run()
    store.handle(ReceivePayment("far"))
    simulation.run()

    assert {"1", "far"} == simulation.completed
    assert "payment.refunded" in types_of(store)


def test_what_a_reaction_raises_comes_out():
    def react(state, taken):
        raise KeyError("no such")

    manager = ProcessManager(
        name="p",
        correlate=lambda _: "1",
        initial_state=dict,
        evolve=lambda state, _: state,
        react=react,
    )
    store, simulation, _ = simulated(manager)
    store.handle(PlaceOrder("1", 20))
    with pytest.raises(KeyError):
        simulation.run()


def test_a_clock_never_goes_back_and_a_store_is_of_the_right_kind():
    with pytest.raises(EventStoreError, match="forward"):
        MovedClock().move(-HOUR)
    store = AsyncEventStore(AsyncMemoryEventLog(), types=types)
    with pytest.raises(WrongKindError):
        ProcessSimulation(fulfilment(), store, MovedClock())


# Projections


class Table(list):
    """Stands for a connection: keeps what it is given."""

    def execute(self, query):
        assert query == "SELECT"
        return self

    def fetchall(self):
        return self


class Placed:
    name = "placed"
    query = Query(category="order")

    def apply(self, recorded, connection):
        connection.append((recorded.stream, recorded.event.total))


def test_a_projection_sees_what_its_query_means():
    (
        projection_scenario(Placed(), Table(), types=types)
        .given("order-1", PLACED)
        .given("payment-1", PaymentReceived("1"))
        .given("order-2", OrderPlaced("2", 5))
        .then_rows("SELECT", [("order-1", 20), ("order-2", 5)])
    )


def test_a_scenario_of_a_projection_fails_and_says_why():
    given = projection_scenario(Placed(), Table(), types=types).given("order-1", PLACED)
    with pytest.raises(AssertionError, match=r"other rows[\s\S]*- \('order-1', 21\)"):
        given.then_rows("SELECT", [("order-1", 21)])
    with pytest.raises(AssertionError, match="cannot be used"):
        assert given
    with pytest.raises(WrongKindError):
        projection_scenario(Placed)


def test_a_projection_that_is_async_is_refused():
    class Async(Placed):
        query = EVERYTHING

        async def apply(self, recorded, connection):
            """Nothing awaits it."""

    with pytest.raises(WrongKindError, match="is async"):
        projection_scenario(Async())


def test_a_simulation_asks_no_database():
    _, simulation, _ = simulated()
    with pytest.raises(SubscriptionError, match="no database"):
        simulation._session.rows("SELECT 1").send(None)
