"""The store on Postgres: races, lost connections, joined transactions and saved states."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
import structlog

from eventstore import (
    NO_STREAM,
    AsyncEventStore,
    ContentionError,
    EventStore,
    Redacted,
    WaitTimeoutError,
    WrongExpectedVersionError,
)
from eventstore.deciding.fold_identity import fold_name
from eventstore.postgres.async_log import AsyncPostgresEventLog
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.privacy.master_key import new_master_keys
from tests.fix_account import (
    Account,
    Deposit,
    Deposited,
    Empty,
    Open,
    Opened,
    Overdrawn,
    Withdraw,
    account,
    decide,
    types,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

STREAM = "account-a"
DEADLINE_S = 30.0


def a_store(log, *, ring=None, **fields):
    return EventStore(log, types=types, keyring=ring, deciders=[account(**fields)])


@pytest.fixture
def store(pg_log):
    return a_store(pg_log)


@pytest.fixture
def connection(store_dsn):
    """The caller's own, with a table of its own."""
    with psycopg.connect(store_dsn) as opened:
        opened.execute("CREATE TABLE note (text text)")
        opened.commit()
        yield opened


def events_of(store):
    return [found.event for found in store.read_stream(STREAM)]


def state_of(store, **when):
    return store.state(account(), "a", **when)


def test_a_command_becomes_events_and_a_state(store):
    first = store.handle(Deposit("a", 5, times=2), idempotency_key="k", expected_version=NO_STREAM)
    again = store.handle(Deposit("a", 5, times=2), idempotency_key="k")
    store.handle(Withdraw("a", 10))

    with pytest.raises(Overdrawn):
        store.handle(Withdraw("a", 1))
    assert (first.events, first.token, True) == (again.events, again.token, again.repeated)
    assert (Account(0, (5, 5, -10)), 3) == (state_of(store).value, state_of(store).version)
    assert [0, 5, 10, 0] == [state_of(store, at_version=v).value.balance for v in range(4)]
    assert ((), 3) == (store.handle(Empty("a")).events, store.handle(Empty("a")).version)


def test_a_command_without_events_has_its_key_recorded(store):
    first = store.handle(Empty("a"), idempotency_key="k")
    store.handle(Deposit("a", 1))
    again = store.handle(Empty("a"), idempotency_key="k")

    assert ((), 0, False) == (first.events, first.version, first.repeated)
    assert ((), 0, True) == (again.events, again.version, again.repeated)
    assert [Deposited("a", 1)] == events_of(store)


@pytest.mark.parametrize("snapshot_every", [None, 5], ids=["no snapshots", "snapshots"])
def test_eight_threads_on_one_stream_lose_nothing_and_overdraw_nothing(pg_log, snapshot_every):
    store = a_store(pg_log, snapshot_every=snapshot_every)
    store.handle(Deposit("a", 40))
    together = threading.Barrier(8)

    def work(_):
        together.wait(DEADLINE_S)
        outcomes = []
        for _ in range(10):
            try:
                outcomes.append(store.handle(Withdraw("a", 1), attempts_max=50).version)
            except (Overdrawn, ContentionError) as refused:
                outcomes.append(type(refused))
        return outcomes

    with ThreadPoolExecutor(8) as pool:
        outcomes = [each for done in pool.map(work, range(8)) for each in done]

    versions = sorted(each for each in outcomes if isinstance(each, int))
    assert list(range(2, 2 + len(versions))) == versions
    # whoever was refused for want of money was refused when there was none
    assert Overdrawn not in outcomes or 40 == len(versions)
    state = state_of(store)
    assert (40 - len(versions), 1 + len(versions)) == (state.value.balance, state.version)


def test_eight_threads_with_one_key_do_it_once(store):
    together = threading.Barrier(8)

    def work(_):
        together.wait(DEADLINE_S)
        return store.handle(Deposit("a", 5, times=3), idempotency_key="k")

    with ThreadPoolExecutor(8) as pool:
        handled = list(pool.map(work, range(8)))

    assert 1 == sum(not each.repeated for each in handled)
    assert 1 == len({(each.events, each.version, each.token) for each in handled})
    assert [Deposited("a", 5)] * 3 == events_of(store)


def test_a_connection_that_is_killed_in_an_append_is_asked_again_by_the_key(store, connection):
    connection.execute(
        "SELECT pg_advisory_xact_lock(1749232, hashtext(%s))", (f"default/{STREAM}",)
    )
    with ThreadPoolExecutor(1) as pool:
        handling = pool.submit(store.handle, Deposit("a", 5), idempotency_key="k")
        waiting = (  # a transaction keeps what it has seen of sessions, unless that is cleared
            "SELECT pid FROM pg_stat_activity, pg_stat_clear_snapshot()"
            " WHERE wait_event = 'advisory' AND datname = current_database()"
        )
        (pid,) = wait_until(lambda: connection.execute(waiting).fetchone())
        connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        connection.rollback()
        handled = handling.result(DEADLINE_S)

    assert ((Deposited("a", 5),), 1) == (handled.events, handled.version)
    assert [Deposited("a", 5)] == events_of(store)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
def test_a_command_joins_the_caller_s_transaction(store, store_dsn, connection, kind, end):
    if kind == "psycopg":
        connection.execute("INSERT INTO note VALUES ('x')")
        handled = [store.handle(Deposit("a", n), connection=connection) for n in (1, 2)]
        seen = state_of(store, connection=connection).value.balance
        getattr(connection, end)()
    else:
        engine = sqlalchemy.create_engine(
            store_dsn.replace("postgresql://", "postgresql+psycopg://")
        )
        with sqlalchemy.orm.Session(engine) as session:
            session.execute(sqlalchemy.text("INSERT INTO note VALUES ('x')"))
            handled = [store.handle(Deposit("a", n), connection=session) for n in (1, 2)]
            seen = state_of(store, connection=session).value.balance
            getattr(session, end)()
        engine.dispose()

    notes = connection.execute("SELECT count(*) FROM note").fetchone()[0]
    expected = (1, 2) if end == "commit" else (0, 0)
    assert ([1, 2], 3) == ([each.version for each in handled], seen)
    assert expected == (notes, len(events_of(store)))


def test_a_rejection_leaves_the_caller_s_transaction_as_it_was(store, connection):
    connection.execute("INSERT INTO note VALUES ('x')")
    with pytest.raises(Overdrawn):
        store.handle(Withdraw("a", 1), connection=connection)
    with pytest.raises(WrongExpectedVersionError):
        store.handle(Deposit("a", 1), connection=connection, expected_version=7)
    store.handle(Deposit("a", 1), connection=connection)
    connection.commit()

    assert ("x",) == connection.execute("SELECT text FROM note").fetchone()
    assert [Deposited("a", 1)] == events_of(store)


def test_a_command_in_the_caller_s_transaction_saves_no_state(pg_log, connection):
    """It may be rolled back."""
    store = a_store(pg_log, snapshot_every=1)
    decider = store._planner.decider_for(Deposit("a", 1))
    store.handle(Deposit("a", 1), connection=connection)
    connection.rollback()

    assert None is pg_log.snapshot("default", STREAM, fold_name(decider))
    store.handle(Deposit("a", 2))
    assert 1 == pg_log.snapshot("default", STREAM, fold_name(decider)).stream_position
    assert 2 == state_of(a_store(pg_log, snapshot_every=1)).value.balance


def test_what_breaks_the_caller_s_transaction_is_not_tried_again(pg_log, connection):
    decided = []

    def watched(command, state):
        decided.append(state.balance)
        return decide(command, state)

    store = a_store(pg_log, decide=watched)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT count(*) FROM note")
    a_store(pg_log).handle(Deposit("a", 1))

    with pytest.raises(ContentionError):
        store.handle(Deposit("a", 5), connection=connection)

    assert [0] == decided
    connection.rollback()
    assert [Deposited("a", 1)] == events_of(store)


def test_a_repeated_key_is_known_inside_the_transaction_that_used_it(store, connection):
    first = store.handle(Deposit("a", 5), idempotency_key="k", connection=connection)
    again = store.handle(Deposit("a", 5), idempotency_key="k", connection=connection)
    connection.commit()

    assert (first.events, first.version, True) == (again.events, again.version, again.repeated)


def test_saved_states_are_used_and_damaged_ones_ignored(pg_log, connection):
    store = a_store(pg_log, snapshot_every=5)
    store.handle(Deposit("a", 1, times=5))
    store.handle(Deposit("a", 1))
    decider = store._planner.decider_for(Deposit("a", 1))
    with structlog.testing.capture_logs() as logs:
        assert 6 == store.state(decider, "a").value.balance
    assert [] == logs

    connection.execute("UPDATE eventstore.snapshots SET state = convert_to('{}', 'UTF8')")
    connection.commit()
    with structlog.testing.capture_logs() as logs:
        assert 6 == store.state(decider, "a").value.balance
        assert 7 == store.handle(Deposit("a", 1)).version
    assert ["damaged, or of another history"] * 2 == [entry["reason"] for entry in logs]


@pytest.fixture
def ring(store_dsn):
    opened = PostgresKeyRing(store_dsn, new_master_keys("k1"))
    yield opened
    opened.close()


def test_persons_are_sealed_and_forgotten(pg_log, ring):
    store = a_store(pg_log, ring=ring, snapshot_every=2)
    decider = store._planner.decider_for(Deposit("a", 1))
    store.append(STREAM, [Deposited("a", 1), Opened("a", "Ada")])
    store.handle(Open("a", "Bob"), idempotency_key="k")
    store.handle(Deposit("a", 1))

    assert "Bob" == store.state(decider, "a").value.owner
    assert ("a",) == pg_log.snapshot("default", STREAM, fold_name(decider)).subjects
    ring.shred("default", "a")
    assert Redacted("a") == store.state(decider, "a").value.owner
    assert 5 == store.handle(Deposit("a", 1)).version


def test_appends_with_persons_find_their_places_beside_each_other(pg_log, ring):
    store = a_store(pg_log, ring=ring)
    together = threading.Barrier(4)

    def work(number):
        together.wait(DEADLINE_S)
        for place in range(5):
            store.append(STREAM, [Opened("a", f"{number}-{place}"), Opened("a", "same")])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))

    owners = [event.owner for event in events_of(store)]
    assert {f"{n}-{p}" for n in range(4) for p in range(5)} == set(owners[::2])
    assert ["same"] * 20 == owners[1::2]


def test_a_token_is_waited_for_until_older_transactions_have_ended(store, connection):
    store.append("account-open", Deposited("open", 1), connection=connection)
    token = store.handle(Deposit("a", 1)).token

    with pytest.raises(WaitTimeoutError):
        store.wait_for(token, timeout_s=0.05)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.wait_for, token, DEADLINE_S)
        connection.commit()
        assert None is waiting.result(DEADLINE_S)
    assert 2 == len(list(store.read_all()))


def test_eight_tasks_on_one_stream_lose_nothing(store_dsn):
    async def work():
        log = AsyncPostgresEventLog(store_dsn)
        async with AsyncEventStore(log, types=types, deciders=[account()]) as store:
            handled = await asyncio.gather(
                *(store.handle(Deposit("a", 1), attempts_max=50) for _ in range(8))
            )
            events = [found.event async for found in store.read_stream(STREAM)]
            state = await store.state(account(), "a")
            repeated = [await store.handle(Deposit("a", 9), idempotency_key="k") for _ in range(2)]
            await store.wait_for(repeated[0].token, DEADLINE_S)
            return handled, events, state, repeated

    handled, events, state, repeated = asyncio.run(work())

    assert list(range(1, 9)) == sorted(each.version for each in handled)
    assert [Deposited("a", 1)] * 8 == events
    assert (8, 8) == (state.value.balance, state.version)
    assert [False, True] == [each.repeated for each in repeated]


class CountingLog(AsyncPostgresEventLog):
    """Counts what it is asked to append."""

    appends = 0

    async def append(self, *args, **options):
        self.appends += 1
        return await super().append(*args, **options)


def test_three_hundred_commands_on_twenty_streams_take_one_append_each(store_dsn):
    async def work():
        log = CountingLog(store_dsn)
        async with AsyncEventStore(log, types=types, deciders=[account()]) as store:
            handled = await asyncio.gather(
                *(store.handle(Deposit(f"s{number % 20}", 1)) for number in range(300))
            )
            return log.appends, [each.version for each in handled]

    appends, versions = asyncio.run(work())

    assert 300 == appends
    assert [1 + number // 20 for number in range(300)] == versions


def test_persons_are_sealed_for_asyncio_too(store_dsn, ring):
    async def work():
        log = AsyncPostgresEventLog(store_dsn)
        async with AsyncEventStore(log, types=types, deciders=[account()], keyring=ring) as store:
            commands = [Open("a", f"Ada {number}") for number in range(4)]
            await asyncio.gather(
                *(store.handle(each, idempotency_key=each.owner) for each in commands)
            )
            events = [found.event async for found in store.read_stream(STREAM)]
            return events, (await store.state(account(), "a")).value.owner

    events, owner = asyncio.run(work())

    assert {Opened("a", f"Ada {number}") for number in range(4)} == set(events)
    assert owner == events[-1].owner


def test_a_task_that_is_cancelled_leaves_nothing_half_done(store_dsn, connection, store):
    connection.execute(
        "SELECT pg_advisory_xact_lock(1749232, hashtext(%s))", (f"default/{STREAM}",)
    )

    async def work():
        log = AsyncPostgresEventLog(store_dsn)
        async with AsyncEventStore(log, types=types, deciders=[account()]) as waiting:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiting.handle(Deposit("a", 1, times=3)), 0.3)

    asyncio.run(work())
    connection.rollback()

    version = store.handle(Deposit("a", 1)).version
    assert version in (1, 4)
    assert version == len(events_of(store))
