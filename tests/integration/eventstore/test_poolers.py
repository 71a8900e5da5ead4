"""The event store behind a pooler that gives each transaction another session of the server."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest

from eventstore.errors import SubscriptionError
from eventstore.log import StateSnapshot
from eventstore.model.event import AppendRequest, Idempotency, NewEvent, StreamAppend
from eventstore.model.query import tagged
from eventstore.postgres.async_log import AsyncPostgresEventLog
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.postgres.log import PostgresEventLog
from eventstore.privacy.master_key import new_master_keys
from eventstore.subscription import Subscription, membership
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.runner import SubscriptionRunner
from tests.fix_pooler import SmallPooler
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

ROUNDS = 6
"""So that each statement meets each session, whatever it was used for before."""


def request(tenant: str, stream: str = "order-1", expected: int = -1, **more) -> AppendRequest:
    tags = more.pop("tags", ())
    event = NewEvent("note.made", b"{}", uuid4(), datetime.now(UTC), tags=tags)
    return AppendRequest((StreamAppend(stream, (event,), expected),), tenant=tenant, **more)


def answers(log: PostgresEventLog, tenant: str) -> tuple[int, ...]:
    return (
        len(list(log.read_stream(tenant, "order-1"))),
        log.stream_version(tenant, "order-1"),
        len(list(log.read_log(tenant))),
        len(log.read_boundary(tenant, tagged("t:1")).events),
    )


def test_each_read_and_append_acts_for_its_tenant(pooler):
    log = PostgresEventLog(pooler(), connections_max=2)
    seen = []
    for number in range(ROUNDS):
        for tenant in ("ann", "bob"):
            log.append(request(tenant, expected=2 * number))  # the plain INSERT
            log.append(request(tenant, tags=("t:1",)))
            seen.append(answers(log, tenant))
    key = Idempotency("k", b"d" * 32)
    done = [log.append(request("ann", idempotency=key)) for _ in range(2)]
    log.save_snapshot("ann", StateSnapshot("order-1", "f", 3, b"{}", b"d" * 32))
    saved = [log.snapshot("ann", "order-1", "f") for _ in range(ROUNDS)]
    known = [log.result_of("ann", "k") for _ in range(ROUNDS)]
    log.close()

    expected = [(2 * n, 2 * n, 2 * n, n) for n in range(1, ROUNDS + 1) for _ in ("ann", "bob")]
    assert expected == seen
    assert done[0].token == done[1].token
    assert all(saved)
    assert all(known)


def test_each_read_and_append_of_the_async_log_acts_for_its_tenant(pooler):
    dsn = pooler()

    async def run() -> list[tuple[int, int]]:
        log, seen = AsyncPostgresEventLog(dsn, connections_max=2), []
        for _ in range(ROUNDS):
            for tenant in ("ann", "bob"):
                await log.append(request(tenant))
                found = [event async for event in log.read_stream(tenant, "order-1")]
                seen.append((len(found), await log.stream_version(tenant, "order-1")))
        await log.close()
        return seen

    seen = asyncio.run(run())

    assert [(n, n) for n in range(1, ROUNDS + 1) for _ in ("ann", "bob")] == seen


def test_nothing_is_left_behind_in_the_sessions_of_others(pooler, store_dsn):
    dsn = pooler()
    log = PostgresEventLog(dsn, connections_max=2)
    for _ in range(ROUNDS):
        log.append(request("ann"))
        list(log.read_log("ann"))
    log.close()
    left = set()
    for _ in range(ROUNDS):
        with psycopg.connect(dsn, autocommit=True) as other:
            row = other.execute(
                "SELECT coalesce(current_setting('eventstore.tenant', true), ''),"
                " (SELECT count(*) FROM pg_settings WHERE source = 'session'"
                "   AND name IN ('default_transaction_isolation', 'tcp_keepalives_idle'))"
            ).fetchone()
            left.add(row)

    assert {("", 0)} == left


def test_keys_and_the_state_of_subscriptions_are_found(pooler, store_dsn, app_dsn):
    dsn = pooler()
    with SubscriptionRunner(app_dsn, Subscription(name="view", handler=print)) as runner:
        wait_until(lambda: runner.ready)
    ring = PostgresKeyRing(dsn, new_master_keys("k"), cache_s=0)
    keys = {ring.key_of("default", "ada", create=True) for _ in range(ROUNDS)}
    with Subscriptions(dsn) as subscriptions:
        names = [subscriptions.names() for _ in range(ROUNDS)]
    ring.close()

    assert 1 == len(keys)
    assert [["view"]] * ROUNDS == names


def test_a_runner_is_refused_where_sessions_change(pooler):
    runner = SubscriptionRunner(pooler(), Subscription(name="view", handler=print))

    with pytest.raises(SubscriptionError, match="session of its own") as caught:
        runner.run()
    assert "session mode" in (caught.value.hint or "")


def test_a_runner_works_where_it_has_a_session_of_its_own(pooler, app_dsn):
    log, seen = PostgresEventLog(app_dsn), []
    log.append(request("default"))
    subscription = Subscription(name="view", handler=lambda event, _: seen.append(event.stream))
    with SubscriptionRunner(pooler("session"), subscription):
        wait_until(lambda: seen)
    log.close()

    assert ["order-1"] == seen


def test_a_runner_whose_session_is_exchanged_later_stops(app_dsn, monkeypatch):
    """As long as nobody else uses the pooler, its sessions look like the runner's own."""
    pooler = SmallPooler(app_dsn, sessions=1)
    runner = SubscriptionRunner(pooler.dsn, Subscription(name="view", handler=print))
    monkeypatch.setattr(membership, "_PROBES", 0)  # as if nothing were noticed at the start
    runner.start()
    wait_until(lambda: runner.ready)
    with psycopg.connect(app_dsn, sslmode="disable") as other:
        pooler.add(other)
        wait_until(lambda: runner.failed)
        failed = runner.failed
    pooler.close()

    assert isinstance(failed, SubscriptionError)
    # the other text where the pooler has given the first session back by the time it is asked for
    assert re.search("session of its own|was removed while it ran", str(failed))
