"""Consumer groups: several runners share a subscription's partitions."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from eventstore.errors import SubscriptionError
from eventstore.subscription import Subscription, membership
from eventstore.subscription import serving as running
from eventstore.subscription.batch import Batch
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.handling import Handling
from eventstore.subscription.runner import SubscriptionRunner
from eventstore.subscription.session import BlockingSession, completed
from tests.fix_subscription import record
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PARTITIONS = 5


def view(**options) -> Subscription:
    return Subscription(**{"name": "view", "handler": record, "partitions": PARTITIONS, **options})


def join(connection, subscription) -> None:
    completed(membership.join(BlockingSession(connection), subscription))


def shares(ledger) -> list[int]:
    """How many partitions each member has, most first; those that nobody has are left out."""
    return ledger.query(
        "SELECT count(*) FROM eventstore.partition_owners WHERE owner IS NOT NULL"
        " GROUP BY owner ORDER BY 1 DESC"
    )


@pytest.fixture(autouse=True)
def _balance_often(monkeypatch):
    monkeypatch.setattr(running, "BALANCE_S", 0.05)


def test_streams_are_split_the_same_everywhere(ledger):
    streams = [f"order-{n}" for n in range(50)] + ["é-1"]
    in_python = [
        int.from_bytes(hashlib.sha256(f"acme/{stream}".encode()).digest()[:7]) % PARTITIONS
        for stream in streams
    ]
    in_sql = ledger.query(
        "SELECT eventstore.partition_of('acme', stream, %s)"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS s(stream, n) ORDER BY n",
        PARTITIONS,
        streams,
    )

    assert in_python == in_sql
    assert set(range(PARTITIONS)) == set(in_sql)


def test_members_share_the_work_and_each_stream_keeps_its_order(ledger):
    ledger.fill(700, streams=23)
    with ExitStack() as members:
        runners = [
            members.enter_context(SubscriptionRunner(ledger.dsn, view(batch_size=10)))
            for _ in range(3)
        ]
        wait_until(lambda: shares(ledger) == [2, 2, 1])
        ledger.fill(300, streams=23)
        runners[0].wait_for(ledger.token(), 60)

    assert ledger.logged() == ledger.handled()
    assert all(order == sorted(order) for order in ledger.orders().values())


def test_members_that_come_and_go_while_events_flow_double_and_lose_nothing(ledger):
    stop = threading.Event()

    def write():
        while not stop.is_set():
            ledger.fill(40, streams=11)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for count in (1, 3, 2, 5, 1):
            with ExitStack() as members:
                for _ in range(count):
                    members.enter_context(SubscriptionRunner(ledger.dsn, view(batch_size=5)))
                wait_until(lambda: sum(shares(ledger)) == PARTITIONS)
                wait_until(lambda: len(shares(ledger)) == min(count, PARTITIONS))  # noqa: B023
    finally:
        stop.set()
        writer.join()
    with SubscriptionRunner(ledger.dsn, view()) as runner:
        runner.wait_for(ledger.token(), 60)

    assert ledger.logged() == ledger.handled()
    assert all(order == sorted(order) for order in ledger.orders().values())


def test_a_new_member_gets_its_share_from_those_who_have_more(ledger):
    with SubscriptionRunner(ledger.dsn, view()):
        wait_until(lambda: shares(ledger) == [5])
        with SubscriptionRunner(ledger.dsn, view()):
            wait_until(lambda: shares(ledger) == [3, 2])
        wait_until(lambda: shares(ledger) == [5])

        assert [5] == shares(ledger)


def test_more_members_than_partitions_leaves_some_in_reserve(ledger):
    with ExitStack() as members:
        for _ in range(3):
            members.enter_context(SubscriptionRunner(ledger.dsn, view(partitions=2)))
        wait_until(lambda: shares(ledger) == [1, 1])
        ledger.fill(30)
        members.enter_context(Subscriptions(ledger.dsn)).wait_for("view", ledger.token(), 30)

    assert ledger.logged() == ledger.handled()


def test_a_dead_members_partitions_are_taken_over(ledger):
    dead = psycopg.connect(ledger.dsn, autocommit=True)
    with SubscriptionRunner(ledger.dsn, view()):
        wait_until(lambda: shares(ledger) == [5])
        dead.execute("SELECT eventstore.join_subscription('default', 'view', %s)", [PARTITIONS])
        wait_until(lambda: shares(ledger) in ([3], [2]))
        dead.execute("SELECT eventstore.claim_partitions('default', 'view')")
        wait_until(lambda: shares(ledger) == [3, 2])
        ledger.fill(60, streams=20)
        dead.close()
        with Subscriptions(ledger.dsn) as subscriptions:
            subscriptions.wait_for("view", ledger.token(), 30)

    assert ledger.logged() == ledger.handled()


def test_another_number_of_partitions_is_refused_while_members_run(ledger):
    with SubscriptionRunner(ledger.dsn, view()):
        wait_until(lambda: shares(ledger) == [5])
        with pytest.raises(SubscriptionError, match="runs with another number of partitions"):
            SubscriptionRunner(ledger.dsn, view(partitions=3)).run()


def test_members_who_start_at_once_with_a_new_number_all_become_members(ledger):
    """One of them splits the subscription; none takes another's start for a member that runs."""
    ledger.fill(20)
    for count in (5, 3, 8, 2, 7, 4):
        subscription = view(partitions=count)
        with ExitStack() as members, ThreadPoolExecutor(6) as starting:
            sessions = [
                members.enter_context(psycopg.connect(ledger.dsn, autocommit=True))
                for _ in range(6)
            ]
            joined = [starting.submit(join, one, subscription) for one in sessions]
            assert [None] * 6 == [one.result(timeout=30) for one in joined]
            assert [count] == ledger.query(
                "SELECT DISTINCT partitions FROM eventstore.subscriptions WHERE name = 'view'"
            )
            for session in sessions:
                completed(membership.leave(BlockingSession(session)))


def uneven(ledger, chosen: int) -> None:
    """Lets one partition alone go on, by the hand of a member that reads only that one."""
    with psycopg.connect(ledger.dsn, autocommit=True) as member:
        total = ledger.query("SELECT partitions FROM eventstore.subscriptions LIMIT 1")[0]
        subscription = view(partitions=total)
        session = BlockingSession(member)
        batch = Batch(session, subscription, Handling(session, subscription, None), lambda: False)
        while completed(batch.run([chosen])).behind:
            pass


@pytest.mark.parametrize(
    "counts", [(5, 3, 8), (2, 1, 4), (1, 6, 2)], ids=lambda counts: "-".join(map(str, counts))
)
def test_after_another_split_every_event_is_handled_once_however_uneven_the_old_parts_were(
    ledger, counts
):
    """Split anew twice, each time with partitions that are at different places."""
    for count in counts:
        ledger.fill(60, streams=20)
        with psycopg.connect(ledger.dsn, autocommit=True) as member:
            join(member, view(partitions=count))
        uneven(ledger, count // 2)
    with SubscriptionRunner(ledger.dsn, view(partitions=counts[-1])) as runner:
        runner.wait_for(ledger.token(), 30)

    assert ledger.logged() == ledger.handled()
    assert all(order == sorted(order) for order in ledger.orders().values())
    assert [None] * counts[-1] == ledger.query("SELECT earlier FROM eventstore.subscriptions")


def test_a_split_during_a_replay_is_refused(ledger):
    ledger.fill(30)
    with SubscriptionRunner(ledger.dsn, view()) as runner:
        runner.wait_for(ledger.token(), 30)
    with Subscriptions(ledger.dsn) as subscriptions:
        subscriptions.replay("view", 0)

    with pytest.raises(SubscriptionError, match="replays"):
        SubscriptionRunner(ledger.dsn, view(partitions=2)).run()


def test_parked_streams_are_retried_by_whoever_has_their_partition_after_a_split(ledger):
    def fail(event, delivery):
        if event.stream == "order-3":
            raise ValueError

    last = ledger.fill(70)
    with SubscriptionRunner(ledger.dsn, view(handler=fail)):
        ledger.reaches(last)
    with Subscriptions(ledger.dsn) as subscriptions, ExitStack() as members:
        subscriptions.retry("view", "order-3")
        for _ in range(2):
            members.enter_context(SubscriptionRunner(ledger.dsn, view(partitions=3)))
        wait_until(lambda: not subscriptions.parked("view"))

    assert list(range(1, 11)) == ledger.orders()["order-3"]
    assert [True] == ledger.query("SELECT DISTINCT live FROM effects")
