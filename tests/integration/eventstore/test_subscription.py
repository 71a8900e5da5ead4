from __future__ import annotations

import threading

import psycopg
import pytest

from eventstore.errors import (
    CheckpointBeyondHeadError,
    SubscriptionError,
    UndeclaredError,
    WaitTimeoutError,
)
from eventstore.model.event import AppendRequest, StreamAppend
from eventstore.model.query import Query, QueryItem
from eventstore.model.token import Token
from eventstore.model.unknown import UnknownPolicy
from eventstore.postgres.log import PostgresEventLog
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventTypes
from eventstore.subscription import Start, Subscription
from eventstore.subscription import serving as running
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.runner import SubscriptionRunner
from tests.fix_subscription import RECORD, new_event, record
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


def view(**options) -> Subscription:
    return Subscription(**{"name": "view", "handler": record, **options})


def test_history_comes_first_and_then_each_event_as_it_is_appended(ledger):
    ledger.fill(430)
    with SubscriptionRunner(ledger.dsn, view(batch_size=50)) as runner:
        runner.wait_for(ledger.token(), 30)
        ledger.fill(20)
        runner.wait_for(ledger.token(), 30)

    assert ledger.logged() == ledger.handled()
    assert all(order == sorted(order) for order in ledger.orders().values())


def test_only_the_events_of_the_query_are_handled_and_the_checkpoint_passes_the_others(ledger):
    wanted = ledger.append("order-1", new_event("order.paid"))
    ledger.fill(120)
    wanted = [wanted, ledger.append("order-2", new_event("order.paid"))]
    ledger.fill(20)
    paid = Query((QueryItem(frozenset({"order.paid"})),))
    with SubscriptionRunner(ledger.dsn, view(query=paid, batch_size=10)) as runner:
        runner.wait_for(ledger.token(), 30)

    assert wanted == ledger.handled()


@pytest.mark.parametrize("start", [Start.END, 25], ids=["end", "position"])
def test_a_subscription_may_begin_later_than_at_the_first_event(ledger, start):
    ledger.fill(40)
    skipped = 25 if start == 25 else 40
    with SubscriptionRunner(ledger.dsn, view(start=start)) as runner:
        wait_until(lambda: ledger.position() >= skipped)
        ledger.fill(10)
        runner.wait_for(ledger.token(), 30)

    assert ledger.logged()[skipped:] == ledger.handled()


def test_a_subscription_goes_on_where_it_was_when_it_runs_again(ledger):
    for _ in range(3):
        ledger.fill(30)
        with SubscriptionRunner(ledger.dsn, view()) as runner:
            runner.wait_for(ledger.token(), 30)

    assert ledger.logged() == ledger.handled()


def test_stop_ends_a_batch_of_slow_handlers_early_and_keeps_what_is_done(ledger):
    ledger.fill(100)
    reached, go_on = threading.Event(), threading.Event()

    def slow(event, delivery):
        record(event, delivery)
        if event.global_position == ledger.logged()[9]:
            reached.set()
            assert go_on.wait(30)

    runner = SubscriptionRunner(ledger.dsn, view(handler=slow))
    runner.start()
    assert reached.wait(30)
    runner.stop()
    go_on.set()

    assert runner.join(30)
    assert ledger.logged()[:10] == ledger.handled()
    assert ledger.logged()[9] == ledger.position()


def test_a_batch_commits_what_it_has_when_its_time_is_up(ledger):
    last = ledger.fill(20)
    committed = []

    def look_back(event, delivery):
        committed.append(len(ledger.handled()))
        record(event, delivery)

    with SubscriptionRunner(ledger.dsn, view(handler=look_back, batch_s_max=0.0)):
        ledger.reaches(last)

    assert list(range(20)) == committed


def test_stop_before_run_runs_nothing(ledger):
    ledger.fill(10)
    runner = SubscriptionRunner(ledger.dsn, view())
    runner.stop()
    runner.run()

    assert [] == ledger.handled()


def test_a_quiet_runner_is_woken_by_the_next_append(ledger, monkeypatch):
    """The guarantee, looking every so often, is taken away: only the notification is left."""
    monkeypatch.setattr(running, "BUSY_S", 0.0)
    monkeypatch.setattr(running, "IDLE_POLL_S", 60.0)
    monkeypatch.setattr(running, "BALANCE_S", 60.0)
    ledger.fill(10)
    with SubscriptionRunner(ledger.dsn, view()) as runner:
        runner.wait_for(ledger.token(), 30)
        for _ in range(5):
            wait_until(
                lambda: ledger.query("SELECT pg_sequence_last_value('eventstore.wake_wanted') = 1")[
                    0
                ]
            )
            ledger.append("order-1")
            runner.wait_for(ledger.token(), 20)

    assert ledger.logged() == ledger.handled()


def test_a_writer_who_did_not_see_that_somebody_waits_is_seen_by_who_waits(ledger, monkeypatch):
    monkeypatch.setattr(running, "BUSY_S", 0.0)
    monkeypatch.setattr(running, "IDLE_POLL_S", 60.0)
    monkeypatch.setattr(running, "BALANCE_S", 60.0)
    with psycopg.connect(ledger.dsn) as writer:
        ledger.append("order-1", connection=writer)  # nobody waits yet
        with SubscriptionRunner(ledger.dsn, view()) as runner:
            wait_until(lambda: ledger.query(HAS_LOOKED))
            writer.commit()
            runner.wait_for(ledger.token(), 20)

    assert ledger.logged() == ledger.handled()


# its last statement gave up an empty batch, or asked to be woken
HAS_LOOKED = """
SELECT 1 FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'headwater subscription view'
   AND state = 'idle' AND query ~ 'ROLLBACK|want_wake'
"""


def test_an_append_that_nobody_waits_for_notifies_nobody(ledger):
    """NOTIFY makes commits wait for each other, so appends send it only when asked to."""
    with psycopg.connect(ledger.dsn, autocommit=True) as listener:
        listener.execute("LISTEN eventstore")
        ledger.query("SELECT eventstore.want_wake()")
        for _ in range(20):
            ledger.append("order-1")
        heard = list(listener.notifies(timeout=0.5))

    assert 1 == len(heard)


def test_wait_for_says_how_far_a_subscription_is_when_it_is_late(ledger):
    ledger.fill(10)
    with Subscriptions(ledger.dsn) as subscriptions:
        with SubscriptionRunner(ledger.dsn, view()) as runner:
            runner.wait_for(ledger.token(), 30)
        reached = ledger.position()
        ledger.fill(5)
        with pytest.raises(WaitTimeoutError) as late:
            subscriptions.wait_for("view", ledger.token(), 0.05)

    assert f"it is at {reached}, 5 positions short" in str(late.value.detail)


def test_wait_for_a_subscription_that_never_ran_says_so(ledger):
    with (
        Subscriptions(ledger.dsn) as subscriptions,
        pytest.raises(SubscriptionError, match="there is no subscription view"),
    ):
        subscriptions.wait_for("view", Token(1), 0.05)


def test_wait_for_raises_what_the_runner_died_of(ledger):
    ledger.append("order-1")
    codec = Codec(EventTypes())
    runner = SubscriptionRunner(ledger.dsn, view(), codec=codec)
    runner.start()
    with pytest.raises(UndeclaredError):
        runner.wait_for(ledger.token(), 30)


def test_status_tells_position_lag_owner_and_parked_streams(ledger):
    def fail(event, delivery):
        if event.stream == "order-3":
            raise ValueError("no")

    last = ledger.fill(20)
    runner = SubscriptionRunner(ledger.dsn, view(handler=fail))
    with runner, Subscriptions(ledger.dsn) as subscriptions:
        ledger.reaches(last)
        (running_now,) = subscriptions.status("view")
        runner.stop()
        wait_until(lambda: subscriptions.status("view")[0].owner_pid is None)
        ledger.fill(8)
        (stopped,) = subscriptions.status("view")
        names = subscriptions.names()

    assert (["view"], 1, 0, last) == (
        names,
        running_now.parked_streams,
        running_now.projection_lag_events,
        running_now.global_position,
    )
    assert running_now.owner_pid is not None
    assert 8 == stopped.projection_lag_events


def test_a_checkpoint_beyond_the_end_of_the_log_is_refused(ledger):
    ledger.fill(10)
    with SubscriptionRunner(ledger.dsn, view()) as runner:
        runner.wait_for(ledger.token(), 30)
    ledger.query("SELECT setval('eventstore.global_position', 5)")

    with pytest.raises(CheckpointBeyondHeadError, match="ahead of the log"):
        SubscriptionRunner(ledger.dsn, view()).run()


def test_a_start_beyond_the_end_of_the_log_is_refused_and_leaves_no_checkpoint(ledger):
    last = ledger.fill(10)

    with pytest.raises(CheckpointBeyondHeadError):
        SubscriptionRunner(ledger.dsn, view(start=last + 1)).run()
    assert -1 == ledger.position()


def test_a_high_water_mark_that_falls_back_is_no_restore(ledger):
    """A writer that took its lock late holds the mark below a checkpoint."""
    ledger.fill(10)
    with psycopg.connect(ledger.dsn) as writer, psycopg.connect(ledger.dsn) as late:
        writer.execute("SELECT eventstore.hold_mark()")
        late.execute("SELECT FROM eventstore.events WHERE false")
        late.execute("SELECT pg_advisory_xact_lock_shared(1749231, 3)")
        with SubscriptionRunner(ledger.dsn, view(start=8)) as runner:
            ledger.reaches(8)
            late.rollback()
            writer.rollback()
            runner.wait_for(ledger.token(), 30)

    assert ledger.logged()[8:] == ledger.handled()


@pytest.mark.parametrize(
    ("type_", "version"), [("order.unheard", 1), ("order.placed", 2)], ids=["type", "version"]
)
def test_an_unknown_event_halts_the_subscription_after_what_came_before_it(ledger, type_, version):
    types = declared()
    before = ledger.append("order-1", new_event(data=b'{"order_id": "1"}'))
    ledger.append("order-2", new_event(type_, b'{"order_id": "2"}', version))
    ledger.append("order-3", new_event(data=b'{"order_id": "3"}'))

    with pytest.raises(UndeclaredError):
        SubscriptionRunner(ledger.dsn, view(), codec=Codec(types)).run()
    assert ([before], before) == (ledger.handled(), ledger.position())


def test_an_unknown_event_parks_its_stream_if_the_policy_says_so(ledger):
    ledger.append("order-1", new_event("order.unheard"))
    ledger.append("order-1", new_event(data=b'{"order_id": "1"}'))
    flows = ledger.append("order-2", new_event(data=b'{"order_id": "2"}'))
    options = view(unknown=UnknownPolicy.PARK)
    with (
        SubscriptionRunner(ledger.dsn, options, codec=Codec(declared())),
        Subscriptions(ledger.dsn) as subscriptions,
    ):
        ledger.reaches(flows)
        (parked,) = subscriptions.parked("view")

    assert [flows] == ledger.handled()
    assert ("order-1", "parked", "HW-E020", 1, 1) == (
        parked.stream,
        parked.state,
        parked.error_code,
        parked.attempts,
        parked.waiting,
    )


def declared() -> EventTypes:
    types = EventTypes()

    @types.event("order.placed", version=1)
    class OrderPlaced:
        order_id: str

    return types


def test_a_handler_that_ends_the_transaction_is_stopped(ledger):
    ledger.append("order-1")

    def commit(event, delivery):
        record(event, delivery)
        delivery.connection.execute("COMMIT")

    with pytest.raises(SubscriptionError, match="ended the transaction"):
        SubscriptionRunner(ledger.dsn, view(handler=commit)).run()


def test_a_projection_is_a_name_a_query_and_what_to_do(ledger):
    class Counts:
        name = "counts"
        query = Query(category="order")

        def apply(self, event, connection):
            connection.execute(
                RECORD, ("counts", event.stream, event.stream_position, event.global_position, True)
            )

    ledger.fill(10)
    ledger.append("customer-1")
    with SubscriptionRunner(ledger.dsn, Subscription.of(Counts(), batch_size=3)) as runner:
        runner.wait_for(ledger.token(), 30)

    assert ledger.logged()[:10] == ledger.handled("counts")


def append_as(dsn: str, stream: str, tenant: str) -> int:
    log = PostgresEventLog(dsn)
    try:
        request = AppendRequest((StreamAppend(stream, (new_event(),)),), tenant)
        return log.append(request).token.global_position
    finally:
        log.close()


def test_a_role_that_owns_nothing_runs_subscriptions_of_its_own_tenant_only(ledger):
    role = "app_" + ledger.query("SELECT current_database()")[0]
    ledger.connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'made-up'")
    try:
        ledger.query("SELECT 1 FROM eventstore.grant_use(%s)", role)
        ledger.query("SELECT 1 FROM eventstore.grant_subscriptions(%s)", role)
        ledger.connection.execute(f"GRANT ALL ON effects, effects_place_seq TO {role}")
        mine = [ledger.append("order-1", tenant="acme"), ledger.append("order-2", tenant="acme")]
        ledger.append("order-1", tenant="other")
        dsn = psycopg.conninfo.make_conninfo(ledger.dsn, user=role, password="made-up")
        with SubscriptionRunner(dsn, view(tenant="acme", partitions=2)) as runner:
            runner.wait_for(Token(mine[-1]), 30)
            ledger.query("SELECT eventstore.want_wake()")
            mine += [append_as(dsn, "order-3", "acme")]
            runner.wait_for(Token(mine[-1]), 30)
        with Subscriptions(dsn, tenant="other") as others:
            seen_by_others = others.names()
    finally:
        ledger.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert mine == ledger.handled()
    assert [] == seen_by_others
