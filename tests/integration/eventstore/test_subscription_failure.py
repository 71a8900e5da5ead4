from __future__ import annotations

import threading
from contextlib import suppress

import psycopg
import pytest
from psycopg import errors as postgres
from structlog.testing import capture_logs

from eventstore.errors import SubscriptionError, WaitTimeoutError
from eventstore.model.token import Token
from eventstore.subscription import RetryPolicy, Start, Subscription
from eventstore.subscription import serving as running
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.handling import CONTENTION_MAX
from eventstore.subscription.runner import SubscriptionRunner
from tests.fix_subscription import RECORD, record
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

AT_ONCE = RetryPolicy(attempts_max=3, wait_initial_s=0.01, wait_max_s=0.05)


WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


class BrokenError(Exception):
    pass


class Flaky:
    """A handler that fails with chosen events until it is repaired."""

    def __init__(self, *streams, times=10**9, error=BrokenError):
        self.streams = set(streams)
        self.left = times
        self.calls = []
        self.error = error

    def __call__(self, event, delivery):
        record(event, delivery)
        if event.stream in self.streams and self.left > 0:
            self.left -= 1
            self.calls.append((event.global_position, delivery.attempt))
            raise self.error("with values of rows: 4711")


def view(handler=record, **options) -> Subscription:
    return Subscription(**{"name": "view", "handler": handler, "retry": AT_ONCE, **options})


@pytest.fixture
def control(ledger):
    with Subscriptions(ledger.dsn) as subscriptions:
        yield subscriptions


def parked_for_good(control, stream="order-3"):
    return any(one.stream == stream and one.state == "parked" for one in control.parked("view"))


def test_a_poison_event_parks_its_own_stream_and_all_others_flow(ledger, control):
    last = ledger.fill(70)
    flaky = Flaky("order-3")
    with SubscriptionRunner(ledger.dsn, view(flaky)):
        ledger.reaches(last)
        wait_until(lambda: parked_for_good(control))
        (parked,) = control.parked("view")
    first = ledger.query(
        "SELECT min(global_position) FROM eventstore.log WHERE stream = 'order-3'"
    )[0]
    others = ledger.query(
        "SELECT global_position FROM eventstore.log WHERE stream <> 'order-3' ORDER BY 1"
    )

    assert others == ledger.handled()
    assert ("order-3", first, 3, 9) == (
        parked.stream,
        parked.global_position,
        parked.attempts,
        parked.waiting,
    )
    assert {first} == {position for position, _ in flaky.calls}
    assert [1, 2, 3] == [attempt for _, attempt in flaky.calls]


def test_of_an_error_only_type_and_code_are_kept(ledger, control):
    ledger.append("order-3")
    with SubscriptionRunner(ledger.dsn, view(Flaky("order-3"))):
        wait_until(lambda: parked_for_good(control))
    kept = ledger.query("SELECT row_to_json(p)::text FROM eventstore.parked_events AS p")

    assert 1 == len(kept)
    assert "4711" not in kept[0]
    assert f"{BrokenError.__module__}.BrokenError" in kept[0]


def test_what_is_parked_is_delivered_in_order_once_it_is_retried(ledger, control):
    last = ledger.fill(70)
    flaky = Flaky("order-3")
    with SubscriptionRunner(ledger.dsn, view(flaky)) as runner:
        ledger.reaches(last)
        wait_until(lambda: parked_for_good(control))
        flaky.left = 0
        retried = control.retry("view", "order-3")
        ledger.append("order-3")
        wait_until(lambda: not control.parked("view"))
        runner.wait_for(ledger.token(), 30)

    assert retried
    assert ledger.logged() == ledger.handled()
    assert list(range(1, 12)) == ledger.orders()["order-3"]
    assert not control.retry("view", "order-3")


def test_what_is_parked_survives_its_runner_and_is_retried_by_the_next(ledger, control):
    last = ledger.fill(70)
    with SubscriptionRunner(ledger.dsn, view(Flaky("order-3"))):
        ledger.reaches(last)
        wait_until(lambda: parked_for_good(control))
    control.retry("view", "order-3")
    with SubscriptionRunner(ledger.dsn, view()):
        wait_until(lambda: not control.parked("view"))

    assert ledger.logged() == ledger.handled()
    assert list(range(1, 11)) == ledger.orders()["order-3"]


def test_a_passing_failure_heals_by_itself(ledger, control):
    ledger.fill(70)
    patient = RetryPolicy(attempts_max=10, wait_initial_s=0.01, wait_max_s=0.05)
    with SubscriptionRunner(ledger.dsn, view(Flaky("order-3", times=6), retry=patient)) as runner:
        runner.wait_for(ledger.token(), 30)
        wait_until(lambda: not control.parked("view"))

    assert ledger.logged() == ledger.handled()
    assert list(range(1, 11)) == ledger.orders()["order-3"]


def test_a_clock_that_was_set_back_does_not_hold_a_retry(ledger, control):
    last = ledger.fill(70)
    slow = RetryPolicy(attempts_max=9, wait_initial_s=30, wait_max_s=30)
    with SubscriptionRunner(ledger.dsn, view(Flaky("order-3", times=2), retry=slow)):
        ledger.reaches(last)
        wait_until(lambda: control.parked("view"))
        # what a step back by an hour amounts to
        ledger.connection.execute(
            "UPDATE eventstore.parked_events SET retry_at = retry_at + interval '1 hour'"
            " WHERE state = 'retrying'"
        )
        wait_until(lambda: not control.parked("view"))

    assert ledger.logged() == ledger.handled()


def test_dropping_gives_up_one_event_and_delivers_those_behind_it(ledger, control):
    last = ledger.fill(70)
    with SubscriptionRunner(ledger.dsn, view(Flaky("order-3", times=3))):
        ledger.reaches(last)
        wait_until(lambda: parked_for_good(control))
        dropped = control.drop("view", "order-3")
        wait_until(lambda: not control.parked("view"))

    assert 1 == dropped
    assert list(range(2, 11)) == ledger.orders()["order-3"]


def test_dropping_everything_frees_the_stream_for_what_comes(ledger, control):
    last = ledger.fill(70)
    with SubscriptionRunner(ledger.dsn, view(Flaky("order-3", times=3))) as runner:
        ledger.reaches(last)
        wait_until(lambda: parked_for_good(control))
        dropped = control.drop("view", "order-3", everything=True)
        ledger.append("order-3")
        runner.wait_for(ledger.token(), 30)

    assert 10 == dropped
    assert [11] == ledger.orders()["order-3"]


def test_wait_for_an_event_that_is_parked_says_so(ledger, control):
    last = ledger.append("order-3")
    with SubscriptionRunner(ledger.dsn, view(Flaky("order-3"))) as runner:
        ledger.reaches(last)
        with pytest.raises(WaitTimeoutError, match="has parked the event"):
            runner.wait_for(Token(last), 0.05)


def test_a_handler_that_fails_with_everything_stops_instead_of_parking_the_log(ledger, control):
    for stream in range(12):
        ledger.append(f"order-{stream}")

    # those that are parked are retried first
    with capture_logs() as logged, pytest.raises(SubscriptionError, match="parked too many"):
        SubscriptionRunner(
            ledger.dsn, view(Flaky(*(f"order-{n}" for n in range(12))), parked_streams_max=5)
        ).run()
    assert ["parked"] * 5 == [one.state for one in control.parked("view")]
    assert ["HW-E032", "runner failed"] == [
        said for line in logged[-1:] for said in (line["error_code"], line["event"])
    ]


def test_a_database_error_that_the_handler_swallows_is_a_failure_of_that_event(ledger, control):
    def swallow(event, delivery):
        record(event, delivery)
        if event.stream == "order-3":
            with suppress(psycopg.Error):
                delivery.connection.execute("SELECT 1 / 0")

    last = ledger.fill(28)
    with SubscriptionRunner(ledger.dsn, view(swallow)):
        ledger.reaches(last)
        wait_until(lambda: parked_for_good(control))
        (parked,) = control.parked("view")

    assert "order-3" not in ledger.orders()
    assert 24 == len(ledger.handled())
    assert "order-3" == parked.stream


def test_serialization_failures_repeat_the_transaction_and_are_no_attempt(ledger, control):
    last = ledger.fill(28)
    flaky = Flaky("order-3", times=CONTENTION_MAX - 1, error=postgres.SerializationFailure)
    with SubscriptionRunner(ledger.dsn, view(flaky)):
        ledger.reaches(last)

    assert ledger.logged() == ledger.handled()
    assert {1} == {attempt for _, attempt in flaky.calls}


def test_serialization_failures_without_end_are_a_failure_of_the_event(ledger, control):
    ledger.fill(28)
    flaky = Flaky("order-3", error=postgres.SerializationFailure)
    with SubscriptionRunner(ledger.dsn, view(flaky)):
        wait_until(lambda: parked_for_good(control))
        (parked,) = control.parked("view")

    assert "40001" == parked.error_code
    assert 24 == len(ledger.handled())


def test_a_connection_that_breaks_in_the_handler_is_made_anew_and_nothing_is_double(ledger):
    last = ledger.fill(70)
    broken = []

    def cut(event, delivery):
        record(event, delivery)
        if len(broken) < 3 and event.stream == "order-3":
            broken.append(delivery.connection.info.backend_pid)
            ledger.query("SELECT pg_terminate_backend(%s, 5000)", broken[-1])

    with SubscriptionRunner(ledger.dsn, view(cut, batch_size=9)):
        ledger.reaches(last)

    assert 3 == len(set(broken))
    assert ledger.logged() == ledger.handled()


def test_a_replay_delivers_again_in_silence_and_then_goes_on_live(ledger, control):
    sent = []

    def send(event, delivery):
        delivery.connection.execute(
            RECORD + " ON CONFLICT (subscription, global_position) DO UPDATE SET live = false",
            ("view", event.stream, event.stream_position, event.global_position, delivery.live),
        )
        delivery.effect(lambda key: sent.append((event.global_position, key)))

    last = ledger.fill(70)
    with SubscriptionRunner(ledger.dsn, view(send)) as runner:
        runner.wait_for(ledger.token(), 30)
        control.replay("view", 0)
        new = ledger.append("order-1")
        runner.wait_for(ledger.token(), 30)
    silent = ledger.query("SELECT global_position FROM effects WHERE NOT live ORDER BY 1")

    assert ledger.logged() == [position for position, _ in sent]
    assert len(sent) == len({key for _, key in sent})
    assert [position for position in ledger.logged() if position <= last] == silent
    assert new == ledger.logged()[-1]


def test_a_replay_of_a_part_ends_there_and_goes_on_where_it_was(ledger, control):
    calls = []

    def note(event, delivery):
        calls.append((event.global_position, delivery.live))

    ledger.fill(70)
    logged = ledger.logged()
    with SubscriptionRunner(ledger.dsn, view(note, batch_size=8)) as runner:
        runner.wait_for(ledger.token(), 30)
        calls.clear()
        control.replay("view", logged[9], through=logged[29])
        wait_until(lambda: ledger.position() == logged[-1])
        ledger.append("order-1")
        runner.wait_for(ledger.token(), 30)

    assert [
        *((position, False) for position in logged[10:30]),
        (ledger.logged()[-1], True),
    ] == calls


def test_a_replay_within_a_replay_never_loses_what_was_not_yet_delivered(ledger, control):
    """The first position that was reached counts, not where the replay happens to be."""
    ledger.fill(70)
    logged = ledger.logged()
    with SubscriptionRunner(ledger.dsn, view(lambda *_: None)) as runner:
        runner.wait_for(ledger.token(), 30)
    control.replay("view", 0, through=logged[20])
    control.replay("view", 0)
    ledger.append("order-1")
    with SubscriptionRunner(ledger.dsn, view()) as runner:
        runner.wait_for(ledger.token(), 30)
    live = ledger.query("SELECT global_position FROM effects WHERE live")

    assert ledger.logged() == ledger.handled()
    assert ledger.logged()[-1:] == live


@pytest.mark.parametrize(
    ("place", "refusal"),
    [
        ((200, None), "has not reached that position"),
        ((5, 5), "must end after it begins"),
    ],
    ids=["ahead", "empty"],
)
def test_a_replay_of_nothing_is_refused(ledger, control, place, refusal):
    ledger.fill(20)
    with SubscriptionRunner(ledger.dsn, view()) as runner:
        runner.wait_for(ledger.token(), 30)

    with pytest.raises(SubscriptionError, match=refusal):
        control.replay("view", place[0], through=place[1])


def test_a_replay_over_parked_events_is_refused(ledger, control):
    last = ledger.fill(20)
    with SubscriptionRunner(ledger.dsn, view(Flaky("order-3"))):
        ledger.reaches(last)

    with pytest.raises(SubscriptionError, match="parked streams"):
        control.replay("view", 0)


def test_effects_from_the_end_are_silent_for_the_history_that_is_there(ledger):
    sent = []

    def send(event, delivery):
        record(event, delivery)
        delivery.effect(lambda _: sent.append(event.global_position))

    ledger.fill(70)
    with SubscriptionRunner(ledger.dsn, view(send, effects_from=Start.END)) as runner:
        runner.wait_for(ledger.token(), 30)
        new = [ledger.append("order-1"), ledger.append("order-2")]
        runner.wait_for(ledger.token(), 30)

    assert ledger.logged() == ledger.handled()
    assert new == sent


def test_an_effect_that_fails_is_tried_again_and_those_that_were_done_are_not(ledger, control):
    sent, refuse = [], [True]

    def send(event, delivery):
        record(event, delivery)

        def mail(key):
            if event.stream == "order-3" and refuse:
                refuse.pop()
                raise BrokenError
            sent.append(event.global_position)

        delivery.effect(mail)

    ledger.fill(28)
    with SubscriptionRunner(ledger.dsn, view(send)) as runner:
        runner.wait_for(ledger.token(), 30)
        wait_until(lambda: not control.parked("view"))

    assert ledger.logged() == sorted(sent)
    assert ledger.logged() == ledger.handled()


def test_effects_happen_only_when_everything_else_of_the_transaction_has_succeeded(ledger):
    sent, cut = [], [True]

    def send(event, delivery):
        record(event, delivery)
        delivery.effect(lambda _: sent.append(event.global_position))
        if event.stream_position == 4 and cut:
            cut.pop()
            assert [] == sent
            ledger.query(
                "SELECT pg_terminate_backend(%s, 5000)", delivery.connection.info.backend_pid
            )

    ledger.fill(28)
    with SubscriptionRunner(ledger.dsn, view(send)) as runner:
        runner.wait_for(ledger.token(), 30)

    assert ledger.logged() == sent


def test_a_subscription_is_removed_only_when_nobody_runs_it(ledger, control):
    last = ledger.fill(20)
    with SubscriptionRunner(ledger.dsn, view()):
        ledger.reaches(last)
        with pytest.raises(SubscriptionError, match="is running"):
            control.remove("view")
    control.remove("view")
    ledger.connection.execute("DELETE FROM effects")
    with SubscriptionRunner(ledger.dsn, view()) as runner:
        runner.wait_for(ledger.token(), 30)

    assert ledger.logged() == ledger.handled()


def test_an_operator_waits_for_the_batch_that_is_under_way(ledger, control, monkeypatch):
    """A replay that moved the checkpoint under a batch would be undone by it."""
    monkeypatch.setattr(running, "IDLE_POLL_S", 0.01)
    inside, go_on = threading.Event(), threading.Event()
    ledger.fill(20)
    logged = ledger.logged()

    def hold(event, delivery):
        delivery.connection.execute(
            RECORD + " ON CONFLICT (subscription, global_position) DO UPDATE SET live = false",
            ("view", event.stream, event.stream_position, event.global_position, delivery.live),
        )
        if not inside.is_set() and event.global_position == logged[-1]:
            inside.set()
            assert go_on.wait(30)

    with SubscriptionRunner(ledger.dsn, view(hold)):
        assert inside.wait(30)
        replay = threading.Thread(target=control.replay, args=("view", 0))
        replay.start()
        wait_until(lambda: ledger.query(WAITING) == [1])
        go_on.set()
        replay.join(30)
        wait_until(lambda: [20] == ledger.query("SELECT count(*) FROM effects WHERE NOT live"))

    assert logged == ledger.handled()
