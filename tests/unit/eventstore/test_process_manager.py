from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from eventstore.errors import (
    BatchRefusedError,
    NameRefusedError,
    SubscriptionError,
    WrongKindError,
)
from eventstore.process import CommandRejected, Dispatch, ProcessManager, Schedule, TimedOut
from tests.fix_process import (
    CancelOrder,
    Fulfilment,
    OrderPlaced,
    PaymentReceived,
    RefundPayment,
    RequestPayment,
    fulfilment,
)


def test_a_process_manager_is_tested_without_a_store():
    manager = fulfilment(timedelta(minutes=5))
    placed = OrderPlaced("1", 20)
    state = manager.state([placed])

    assert Fulfilment("1") == state
    assert [
        Dispatch(RequestPayment("1", 20)),
        Schedule("payment", after=timedelta(minutes=5)),
    ] == list(manager.react(state, placed))


def test_what_is_compensated_depends_on_how_far_the_process_is():
    manager = fulfilment()
    paid = manager.state([OrderPlaced("1", 20), PaymentReceived("1")])
    refused = CommandRejected("SendShipment", "NoRouteError")
    late = TimedOut("payment", datetime(2026, 1, 1, tzinfo=UTC))

    assert [Dispatch(RefundPayment("1")), Dispatch(CancelOrder("1"))] == list(
        manager.react(paid, refused)
    )
    assert [Dispatch(CancelOrder("1"))] == list(manager.react(paid, late))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, SubscriptionError),
        ({"after": timedelta(1), "at": datetime(2026, 1, 1, tzinfo=UTC)}, SubscriptionError),
        ({"at": datetime(2026, 1, 1)}, BatchRefusedError),  # noqa: DTZ001
        ({"after": timedelta(1), "name": ""}, NameRefusedError),
        ({"after": 60}, WrongKindError),
        ({"after": "1 hour"}, WrongKindError),
        ({"at": "2026-01-01"}, WrongKindError),
    ],
    ids=["neither", "both", "naive", "nameless", "a number", "a text", "a date as text"],
)
def test_a_timer_that_makes_no_sense_is_refused(options, error):
    with pytest.raises(error):
        Schedule(**{"name": "payment", **options})


def test_a_process_manager_is_named_like_a_subscription():
    manager = fulfilment()

    with pytest.raises(NameRefusedError):
        ProcessManager(
            name="no name",
            correlate=manager.correlate,
            initial_state=manager.initial_state,
            evolve=manager.evolve,
            react=manager.react,
        )
