"""Subscribers that are killed at the worst moments: the view equals the log in the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from eventstore.process.runner import ProcessRunner
from eventstore.subscription import RetryPolicy, Subscription
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.runner import SubscriptionRunner
from tests.fix_process import PlaceOrder, ReceivePayment, fulfilment, shop
from tests.fix_subscription import record
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.fault]

TESTS = Path(__file__).resolve().parents[1]
KILLS = 12

# where a subscriber may be killed
AFTER_VIEW_WRITE_BEFORE_CHECKPOINT = "after_view_write_before_checkpoint"
AFTER_CHECKPOINT_BEFORE_COMMIT = "after_checkpoint_before_commit"
BEFORE_VIEW_WRITE = "before_view_write"
FAILPOINTS = (AFTER_VIEW_WRITE_BEFORE_CHECKPOINT, AFTER_CHECKPOINT_BEFORE_COMMIT, BEFORE_VIEW_WRITE)

SUBSCRIBER = """
import sys
sys.path.insert(0, {tests!r})
from test_subscription_kill import {main}
{main}(*sys.argv[1:])
"""


class Fuse:
    """Kills this process at one of the failpoints, some way into its work."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311  # repeatable
        self.failpoint = chance.choice(FAILPOINTS)
        self.left = chance.randrange(1, 120)

    def pass_by(self, failpoint: str) -> None:
        if failpoint == self.failpoint:
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def view(handler, batch_size: int) -> Subscription:
    retry = RetryPolicy(attempts_max=50, wait_initial_s=0.001, wait_max_s=0.01)
    return Subscription(
        name="view", handler=handler, partitions=3, batch_size=batch_size, retry=retry
    )


def subscribe(dsn: str, seed: str, sent: str) -> None:
    """The child: records events, fails with some at first, and sends a line for each."""
    fuse, chance = Fuse(int(seed)), random.Random(int(seed))  # noqa: S311  # repeatable

    def handle(event, delivery):
        fuse.pass_by(BEFORE_VIEW_WRITE)
        record(event, delivery)
        fuse.pass_by(AFTER_VIEW_WRITE_BEFORE_CHECKPOINT)
        if event.global_position % 17 == 0 and delivery.attempt < 3:
            raise ValueError("fails twice")

        def send(key):
            with Path(sent).open("a") as lines:
                lines.write(f"{event.global_position} {key}\n")
            fuse.pass_by(AFTER_CHECKPOINT_BEFORE_COMMIT)

        delivery.effect(send)

    SubscriptionRunner(dsn, view(handle, chance.choice((1, 7, 50)))).run()


def manage(dsn: str, seed: str) -> None:
    """The child: runs the process manager, and is killed inside of a decision."""
    from eventstore.postgres.log import PostgresEventLog

    fuse = Fuse(int(seed))
    store = shop(PostgresEventLog(dsn))
    handle = store.handle

    def handled(command, **options):
        fuse.pass_by(BEFORE_VIEW_WRITE)
        result = handle(command, **options)
        fuse.pass_by(AFTER_VIEW_WRITE_BEFORE_CHECKPOINT)
        fuse.pass_by(AFTER_CHECKPOINT_BEFORE_COMMIT)
        return result

    store.handle = handled
    ProcessRunner(dsn, fulfilment(), store, partitions=2).run()


class Children:
    """Subscribers in processes of their own; one that was killed is followed by another."""

    def __init__(self, main: str, *arguments: str) -> None:
        self.script = SUBSCRIBER.format(tests=str(Path(__file__).parent), main=main)
        self.arguments = arguments
        self.kills = 0

    def run_until_killed(self, seed: int, count: int) -> None:
        running = [self.start(f"{seed}{number}") for number in range(count)]
        try:
            for child in running:
                assert -signal.SIGKILL == child.wait(60), child.stderr.read()
                self.kills += 1
        finally:
            for child in running:
                child.kill()
                child.wait()
                child.stderr.close()

    def start(self, seed: str) -> subprocess.Popen[bytes]:
        dsn, *others = self.arguments
        command = [sys.executable, "-c", self.script, dsn, seed, *others]
        return subprocess.Popen(
            command,
            cwd=TESTS.parent,
            env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )


@pytest.mark.rotating("seed", range(4))
def test_the_view_equals_the_log_however_often_subscribers_are_killed(ledger, tmp_path, seed):
    sent = tmp_path / "sent"
    children = Children("subscribe", ledger.dsn, str(sent))
    stop = threading.Event()

    def write():
        while not stop.is_set():
            ledger.fill(60, streams=13)
            stop.wait(0.1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for round_ in range(KILLS // 2):
            children.run_until_killed(seed * 100 + round_, count=2)
    finally:
        stop.set()
        writer.join()
    with (
        Subscriptions(ledger.dsn) as subscriptions,
        SubscriptionRunner(ledger.dsn, view(finish(sent), 50)) as runner,
    ):
        runner.wait_for(ledger.token(), 60)
        wait_until(lambda: not subscriptions.parked("view"))
    lines = [line.split() for line in sent.read_text().splitlines()]
    keys = Counter(key for _, key in lines)

    assert KILLS == children.kills
    assert ledger.logged() == ledger.handled()
    assert all(order == sorted(order) for order in ledger.orders().values())
    assert ledger.logged() == sorted({int(position) for position, _ in lines})
    assert len(keys) == len(ledger.logged()), "a repeated effect has the key of the first"


def finish(sent: Path):
    def handle(event, delivery):
        record(event, delivery)

        def send(key):
            with sent.open("a") as lines:
                lines.write(f"{event.global_position} {key}\n")

        delivery.effect(send)

    return handle


@pytest.mark.rotating("seed", range(3))
def test_processes_repeat_no_command_and_lose_none_however_often_their_manager_is_killed(
    ledger, seed
):
    orders = [str(number) for number in range(200)]
    store = shop(ledger.log)
    for order in orders:
        store.handle(PlaceOrder(order, 20))
        store.handle(ReceivePayment(order))
    children = Children("manage", ledger.dsn)
    for round_ in range(3):
        children.run_until_killed(seed * 100 + round_, count=1)
    with ProcessRunner(ledger.dsn, fulfilment(), store, partitions=2):
        wait_until(
            lambda: (
                [len(orders)]
                == ledger.query(
                    "SELECT count(*) FROM eventstore.processes WHERE completed_at IS NOT NULL"
                )
            ),
            timeout_s=60,
        )
    counts = dict(
        ledger.query("SELECT type, count(*) FROM eventstore.log GROUP BY type ORDER BY type")
    )

    assert 3 == children.kills
    assert {
        "order.placed": 200,
        "payment.received": 200,
        "payment.requested": 200,
        "shipment.sent": 200,
    } == counts
