"""A rule across streams on Postgres: many at once, and inside transactions of the caller's."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from eventstore import (
    AsyncEventStore,
    EventStore,
    EventTypes,
    IsolationRefusedError,
    Rejected,
    aggregate,
    evolves,
    handles,
    tagged,
)
from eventstore.postgres.async_log import AsyncPostgresEventLog

pytestmark = pytest.mark.integration
types = EventTypes()
A = tagged("email:a@x")


@types.event("user.registered", tags=lambda e: [f"email:{e.email}"])
@dataclass(frozen=True)
class Registered:
    user: int
    email: str


@dataclass(frozen=True)
class Register:
    user: int
    email: str = "a@x"


class EmailTaken(Rejected):
    """Another user has the address."""


@aggregate("user", identity="user")
class User:
    @handles
    def register(self, command: Register, seen: tuple[Any, ...]) -> Registered:
        if seen:
            raise EmailTaken(command.email)
        return Registered(command.user, command.email)

    @evolves
    def _registered(self, event: Registered) -> None:
        """Its address is not needed."""


@pytest.fixture
def store(pg_log):
    return EventStore(pg_log, types=types, deciders=[User])


def won(store: EventStore, user: int) -> bool:
    try:
        store.handle(Register(user), boundary=A, idempotency_key=f"register-{user}")
    except EmailTaken:
        return False
    return True


def test_of_many_at_once_one_gets_the_address_and_its_retry_the_first_answer(store):
    with ThreadPoolExecutor(8) as threads:
        winners = [
            user for user, w in enumerate(threads.map(lambda n: won(store, n), range(8))) if w
        ]

    assert 1 == len(winners) == len(list(store.read(A)))
    assert won(store, winners[0])
    assert 1 == len(list(store.read(A)))


def test_of_many_tasks_at_once_one_gets_the_address(store_dsn):
    async def run() -> tuple[int, int]:
        log = AsyncPostgresEventLog(store_dsn)
        async with AsyncEventStore(log, types=types, deciders=[User]) as store:
            tasks = [store.handle(Register(user), boundary=A) for user in range(8)]
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            lost = sum(isinstance(answer, EmailTaken) for answer in answers)
            return lost, len([event async for event in store.read(A)])

    assert (7, 1) == asyncio.run(run())


def test_a_transaction_of_the_caller_s_sees_its_own_events_and_holds_others_back(store, store_dsn):
    with psycopg.connect(store_dsn) as mine, ThreadPoolExecutor(1) as thread:
        store.handle(Register(1), boundary=A, connection=mine)
        with pytest.raises(EmailTaken):
            store.handle(Register(2), boundary=A, connection=mine)
        rival = thread.submit(won, store, 3)
        mine.commit()

        assert rival.result(30) is False
    assert 1 == len(list(store.read(A)))


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_in_a_transaction_that_keeps_one_snapshot_it_is_refused(store, store_dsn, level):
    with psycopg.connect(store_dsn) as mine:
        mine.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        mine.execute("SELECT 1 FROM eventstore.events")
        store.handle(Register(1), boundary=A)
        with pytest.raises(IsolationRefusedError):
            store.handle(Register(2), boundary=A, connection=mine)

    assert 1 == len(list(store.read(A)))
