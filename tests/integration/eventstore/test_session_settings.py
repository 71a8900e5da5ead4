"""The event store in a database whose settings are not Postgres' defaults."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from eventstore import AsyncEventStore, EventStore, Occurrence, Personal
from eventstore.errors import BatchRefusedError
from eventstore.postgres.async_log import AsyncPostgresEventLog
from eventstore.postgres.audit import PostgresAudit
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.postgres.log import PostgresEventLog
from eventstore.postgres.retention import PostgresRetention
from eventstore.privacy.master_key import new_master_keys
from eventstore.process import ProcessManager, Schedule, TimedOut
from eventstore.process.runner import ProcessRunner
from eventstore.reactor import Reactor
from eventstore.reactor.control import Reactors
from eventstore.reactor.runner import ReactorRunner
from eventstore.serialization.registry import EventTypes
from eventstore.subscription import AsyncSubscription, Subscription
from eventstore.subscription.async_runner import AsyncSubscriptionRunner
from eventstore.subscription.control import Subscriptions
from eventstore.subscription.runner import SubscriptionRunner
from eventstore.upkeep.retention import RetentionRule
from headwater.operations.events import log_status
from headwater.platform.database import Database
from headwater.project.settings.model import EventStoreSettings
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

types = EventTypes()
TEXT = "Zoë, Жанна, 佐藤, \N{GRINNING FACE} \\ ' \" \u2028"
# 1 February in UTC, 2 February where the database is
OCCURRED_AT = datetime(2026, 2, 1, 22, 0, tzinfo=UTC)
WAIT_S = 20.0


@types.event("note.made", subject="author", tags=lambda note: [f"author:{note.author}"])
@dataclass(frozen=True)
class NoteMade:
    author: str
    text: str
    name: Personal[str]


NOTE = NoteMade("zoë", TEXT, TEXT)

SETTINGS = (
    "client_encoding = 'latin1'",
    "client_encoding = 'sql_ascii'",
    "TimeZone = 'Asia/Kathmandu'",
    "DateStyle = 'SQL, DMY'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_isolation = 'repeatable read'",
)


@pytest.fixture
def set_dsn(request: pytest.FixtureRequest, store_dsn: str) -> str:
    """DSN of an event store; new sessions have the setting that the test asks for."""
    with psycopg.connect(store_dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET {request.param}".encode())
    return store_dsn


@pytest.fixture
def store(set_dsn: str) -> Iterator[EventStore]:
    keyring = PostgresKeyRing(set_dsn, new_master_keys("1"))
    with EventStore(PostgresEventLog(set_dsn), types=types, keyring=keyring) as made:
        yield made


@pytest.mark.parametrize("set_dsn", SETTINGS, indirect=True)
def test_events_read_back_as_they_were_appended_and_the_log_is_sealed(set_dsn, store):
    store.append("note-佐藤", NOTE, expected_version=0)
    store.append("note-佐藤", [NOTE, NOTE])

    assert [NOTE] * 3 == [found.event for found in store.read_stream("note-佐藤")]
    assert [("author:zoë",)] * 3 == [found.tags for found in store.read_all()]
    audit = PostgresAudit(set_dsn)
    assert audit.verify(audit.seal()).clean


@pytest.mark.parametrize("set_dsn", ["TimeZone = 'Asia/Kathmandu'"], indirect=True)
def test_each_reader_gets_instants_in_utc(set_dsn, store):
    seen: dict[str, list[Any]] = {"subscription": [], "in a loop": []}
    token = store.append("note-1", Occurrence(NOTE, occurred_at=OCCURRED_AT)).token
    seen["store"] = list(store.read_all())
    with psycopg.connect(set_dsn) as mine:
        seen["joined"] = list(store.read_stream("note-1", connection=mine))

    def handle(event, delivery) -> None:
        seen["subscription"].append(event)

    async def handle_in_loop(event, delivery) -> None:
        seen["in a loop"].append(event)

    with SubscriptionRunner(
        set_dsn, Subscription(name="view", handler=handle), store=store
    ) as runner:
        runner.wait_for(token, WAIT_S)

    async def main() -> None:
        view = AsyncSubscription(name="other", handler=handle_in_loop)
        async with AsyncSubscriptionRunner(set_dsn, view, codec=store.codec) as runner:
            await runner.wait_for(token, WAIT_S)
        log = AsyncPostgresEventLog(set_dsn)
        async with AsyncEventStore(log, types=types, keyring=store.codec.keyring) as other:
            seen["asyncio"] = [event async for event in other.read_stream("note-1")]
            async with await psycopg.AsyncConnection.connect(set_dsn) as mine:
                found = other.read_stream("note-1", connection=mine)
                seen["joined in a loop"] = [event async for event in found]

    asyncio.run(main())
    instants = {
        reader: [(found.occurred_at.isoformat(), found.recorded_at.utcoffset()) for found in events]
        for reader, events in seen.items()
    }
    expected = [("2026-02-01T22:00:00+00:00", timedelta(0))]
    assert dict.fromkeys(seen, expected) == instants


@pytest.mark.parametrize(
    "set_dsn", ["client_encoding = 'latin1'", "client_encoding = 'sql_ascii'"], indirect=True
)
def test_a_connection_of_another_encoding_is_not_joined(set_dsn, store):
    with psycopg.connect(set_dsn) as mine:
        with pytest.raises(BatchRefusedError) as refused:
            store.append("note-1", NOTE, connection=mine)
        with pytest.raises(BatchRefusedError):
            next(store.read_stream("note-1", connection=mine), None)

    assert "client_encoding" in refused.value.message
    assert refused.value.hint

    with psycopg.connect(set_dsn, client_encoding="utf8") as mine:
        store.append("note-1", NOTE, connection=mine)
    assert [NOTE] == [found.event for found in store.read_stream("note-1")]


@pytest.mark.parametrize(
    "set_dsn", ["TimeZone = 'Asia/Kathmandu'", "DateStyle = 'SQL, DMY'"], indirect=True
)
def test_timers_and_status_do_not_depend_on_zone_and_form_of_dates(set_dsn, store):
    inputs: list[Any] = []

    def react(_: Any, taken: Any) -> list[Schedule]:
        inputs.append(taken)
        return [Schedule("reminder", after=timedelta(0))] if isinstance(taken, NoteMade) else []

    manager = ProcessManager(
        name="reminders",
        correlate=lambda recorded: recorded.stream,
        initial_state=lambda: (),
        evolve=lambda state, taken: (*state, taken),
        react=react,
    )
    with ProcessRunner(set_dsn, manager, store) as runner:
        token = store.append("note-1", NOTE).token
        runner.wait_for(token, WAIT_S)
        wait_until(lambda: len(inputs) > 1, timeout_s=WAIT_S)
        store.append("note-1", NOTE)  # reads the timeout again, from the process's inputs
        wait_until(lambda: len(inputs) > 3, timeout_s=WAIT_S)
    subscriptions = Subscriptions(set_dsn)
    (partition,) = subscriptions.status("reminders")
    statuses = subscriptions.parked("reminders"), subscriptions.parked_timers("reminders")
    subscriptions.close()

    timeouts = [taken for taken in inputs if isinstance(taken, TimedOut)]
    assert {timedelta(0)} == {taken.due_at.utcoffset() for taken in timeouts}
    assert timedelta(0) == partition.updated_at.utcoffset()
    assert ([], []) == statuses
    report = PostgresRetention(set_dsn).apply(
        RetentionRule("note", frozenset({"note.made"}), compact_closed_after=timedelta(0)),
        tenant="default",
    )
    assert 1 == report.streams


@pytest.mark.parametrize("set_dsn", ["DateStyle = 'SQL, DMY'"], indirect=True)
def test_the_status_of_the_log_and_of_reactors_is_read_in_every_form_of_dates(set_dsn, store):
    reactor = Reactor(name="mail", react=lambda _: None)
    with ReactorRunner(set_dsn, reactor, store) as runner, psycopg.connect(set_dsn) as mine:
        store.append("note-1", NOTE, connection=mine)
        status = log_status(Database(set_dsn, EventStoreSettings(), Path()))
        mine.commit()
        wait_until(lambda: runner.ready, timeout_s=WAIT_S)
        reactors = Reactors(set_dsn)
        reactors.pause("mail")
        (found,) = reactors.all()
        reactors.close()

    assert timedelta(0) == found.paused_at.utcoffset()
    assert [timedelta(0)] == [row["started_at"].utcoffset() for row in status.writers]


@pytest.mark.parametrize("set_dsn", SETTINGS, indirect=True)
def test_the_status_of_the_log_is_read(set_dsn, store):
    store.append("note-1", [NOTE])

    status = log_status(Database(set_dsn, EventStoreSettings(), Path.cwd()))

    assert (1, 1, ()) == (status.head, status.mark, status.writers)
