"""The log's order as subscribers see it, with gaps, late commits and changing subscribers."""

from __future__ import annotations

import psycopg
import pytest

from eventstore.subscription import Subscription
from eventstore.subscription.runner import SubscriptionRunner
from tests.fix_subscription import record
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


def view(**options) -> Subscription:
    return Subscription(**{"name": "view", "handler": record, **options})


def seen_in_order(ledger) -> list[int]:
    return ledger.query("SELECT global_position FROM effects ORDER BY place")


def test_a_subscriber_replaced_while_a_writer_is_paused_loses_nothing(ledger):
    before = ledger.append("order-1")
    with psycopg.connect(ledger.dsn) as writer:
        late = ledger.append("order-2", connection=writer)
        after = ledger.append("order-3")
        with SubscriptionRunner(ledger.dsn, view()):
            ledger.reaches(before)
            again = ledger.append("order-4")
        with SubscriptionRunner(ledger.dsn, view()) as second:
            ledger.reaches(before)
            seen_meanwhile = seen_in_order(ledger)
            writer.commit()
            second.wait_for(ledger.token(), 30)

    assert [before] == seen_meanwhile
    assert before < late < after < again
    assert [before, late, after, again] == seen_in_order(ledger)


def test_the_same_with_a_subscriber_that_dies_of_a_lost_connection(ledger):
    before = ledger.append("order-1")
    with psycopg.connect(ledger.dsn) as writer:
        late = ledger.append("order-2", connection=writer)
        after = ledger.append("order-3")
        with SubscriptionRunner(ledger.dsn, view()) as runner:
            ledger.reaches(before)
            killed = ledger.query(
                "SELECT pg_terminate_backend(owner, 5000) FROM eventstore.partition_owners"
            )
            writer.commit()
            runner.wait_for(ledger.token(), 30)

    assert [True] == killed
    assert [before, late, after] == seen_in_order(ledger)


def test_positions_that_were_rolled_back_hold_up_nothing(ledger):
    before = ledger.append("order-1")
    with SubscriptionRunner(ledger.dsn, view()) as runner:
        for _ in range(3):
            with psycopg.connect(ledger.dsn) as writer:
                ledger.append("order-2", connection=writer)
                writer.rollback()
        after = ledger.append("order-3")
        runner.wait_for(ledger.token(), 30)

    assert after == before + 4
    assert [before, after] == seen_in_order(ledger)


def test_a_killed_writers_gap_is_passed(ledger):
    writer = psycopg.connect(ledger.dsn)
    with SubscriptionRunner(ledger.dsn, view()) as runner:
        ledger.append("order-1", connection=writer)
        after = ledger.append("order-2")
        ledger.reaches(0)
        seen_meanwhile = ledger.handled()
        ledger.query("SELECT pg_terminate_backend(%s, 5000)", writer.info.backend_pid)
        runner.wait_for(ledger.token(), 30)
    writer.close()

    assert [] == seen_meanwhile
    assert [after] == seen_in_order(ledger)


def test_a_transaction_that_has_nothing_to_do_with_events_holds_up_nothing(ledger):
    with psycopg.connect(ledger.dsn) as idle:
        idle.execute("CREATE TABLE elsewhere (id integer)")
        idle.execute("SELECT pg_current_xact_id()")
        with SubscriptionRunner(ledger.dsn, view()) as runner:
            ledger.fill(20)
            runner.wait_for(ledger.token(), 30)

    assert ledger.logged() == seen_in_order(ledger)


def test_a_paused_writer_holds_up_what_is_above_its_floor_and_nothing_below(ledger):
    below = ledger.fill(20)
    with psycopg.connect(ledger.dsn) as writer:
        ledger.append("payment-1", connection=writer)
        ledger.fill(20)
        with SubscriptionRunner(ledger.dsn, view()):
            wait_until(lambda: ledger.position() == below)
            handled = ledger.handled()
            writer.rollback()

    assert ledger.logged()[:20] == handled


def test_events_appended_by_a_handler_commit_with_its_checkpoint(ledger):
    def follow(event, delivery):
        record(event, delivery)
        if event.category == "order":
            ledger.append(f"payment-{event.global_position}", connection=delivery.connection)

    ledger.fill(30)
    with SubscriptionRunner(ledger.dsn, view(handler=follow, batch_size=7)) as runner:
        wait_until(lambda: len(ledger.logged()) == 60)
        runner.wait_for(ledger.token(), 30)

    assert ledger.logged() == ledger.handled()
