"""Appends inside a transaction of the caller's: state and events commit together, or neither."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from eventstore.errors import BatchRefusedError, ContentionError, WrongExpectedVersionError
from eventstore.event import AppendRequest, Idempotency, NewEvent, StreamAppend
from eventstore.expected_version import ANY
from eventstore.postgres.async_log import AsyncPostgresEventLog

pytestmark = pytest.mark.integration


def request(stream: str, expected: int = ANY, key: str | None = None) -> AppendRequest:
    event = NewEvent("note.made", b"{}", uuid4(), datetime.now(UTC))
    idempotency = None if key is None else Idempotency(key, b"d" * 32)
    return AppendRequest((StreamAppend(stream, (event,), expected),), idempotency=idempotency)


@pytest.fixture
def engine(store_dsn):
    made = sqlalchemy.create_engine(store_dsn.replace("postgresql:", "postgresql+psycopg:"))
    with made.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE stock (sku text)"))
    yield made
    made.dispose()


def rows(dsn: str, table: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("commits", [True, False])
def test_events_share_the_fate_of_a_psycopg_transaction(pg_log, store_dsn, commits):
    with psycopg.connect(store_dsn) as mine:
        mine.execute("CREATE TABLE stock (sku text)")
        done = pg_log.append(request("order-1"), connection=mine)
        within = list(pg_log.read_stream("default", "order-1", connection=mine))
        (mine.commit if commits else mine.rollback)()

    assert (1, 1) == (done.version, len(within))
    assert int(commits) == pg_log.stream_version("default", "order-1")


def test_a_cursor_stands_for_its_connection(pg_log, store_dsn):
    with (
        psycopg.connect(store_dsn, autocommit=True) as mine,
        mine.transaction(),
        mine.cursor() as cursor,
    ):
        pg_log.append(request("order-1"), connection=cursor)

    assert 1 == pg_log.stream_version("default", "order-1")


@pytest.mark.parametrize("commits", [True, False])
def test_events_share_the_fate_of_an_sqlalchemy_session(pg_log, store_dsn, engine, commits):
    with Session(engine) as session:
        session.execute(sqlalchemy.text("INSERT INTO stock VALUES ('tea')"))
        pg_log.append(request("order-1"), connection=session)
        (session.commit if commits else session.rollback)()

    assert (int(commits), int(commits)) == (
        rows(store_dsn, "stock"),
        pg_log.stream_version("default", "order-1"),
    )


def test_events_share_the_fate_of_an_sqlalchemy_connection(pg_log, engine):
    with engine.connect() as connection:
        pg_log.append(request("order-1"), connection=connection)
        connection.commit()
        pg_log.append(request("order-1"), connection=connection)
        connection.rollback()

    assert 1 == pg_log.stream_version("default", "order-1")


def test_events_share_the_fate_of_an_sqlalchemy_transaction_for_asyncio(store_dsn):
    async def run() -> tuple[int, int]:
        log = AsyncPostgresEventLog(store_dsn)
        engine = create_async_engine(store_dsn.replace("postgresql:", "postgresql+psycopg:"))
        async with engine.connect() as connection:
            await log.append(request("order-1"), connection=connection)
            await connection.commit()
            await log.append(request("order-1"), connection=connection)
            await connection.rollback()
        version = await log.stream_version("default", "order-1")
        async with await psycopg.AsyncConnection.connect(store_dsn) as mine:
            inside = (await log.append(request("order-1"), connection=mine)).version
            await mine.rollback()
        await engine.dispose()
        await log.close()
        return version, inside

    assert (1, 2) == asyncio.run(run())


def test_a_refused_append_leaves_the_callers_transaction_usable(pg_log, store_dsn):
    with psycopg.connect(store_dsn) as mine:
        mine.execute("CREATE TABLE stock (sku text)")
        with pytest.raises(WrongExpectedVersionError) as refused:
            pg_log.append(request("order-1", expected=7), connection=mine)
        mine.execute("INSERT INTO stock VALUES ('tea')")

    assert (7, 0) == (refused.value.expected, refused.value.actual)
    assert 1 == rows(store_dsn, "stock")


def test_a_rolled_back_key_was_never_used(pg_log, store_dsn):
    with psycopg.connect(store_dsn) as mine:
        pg_log.append(request("order-1", key="k"), connection=mine)
        mine.rollback()

    assert not pg_log.append(request("order-1", key="k")).repeated
    assert pg_log.append(request("order-1", key="k")).repeated


def test_a_stale_snapshot_is_contention_and_never_a_hole(pg_log, store_dsn):
    """In repeatable read the caller's transaction cannot see what was appended since it began."""
    with psycopg.connect(store_dsn) as mine:
        mine.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        mine.execute("SELECT 1 FROM eventstore.events")
        pg_log.append(request("order-1"))
        with pytest.raises(ContentionError):
            pg_log.append(request("order-1"), connection=mine)
        mine.rollback()

    assert 1 == pg_log.stream_version("default", "order-1")


def test_a_connection_without_a_transaction_is_refused(pg_log, store_dsn):
    with (
        psycopg.connect(store_dsn, autocommit=True) as mine,
        pytest.raises(BatchRefusedError, match="no transaction"),
    ):
        pg_log.append(request("order-1"), connection=mine)


@pytest.mark.parametrize("handle", ["postgresql://", object(), 7], ids=["text", "object", "number"])
def test_what_is_no_connection_is_refused(pg_log, handle):
    with pytest.raises(BatchRefusedError, match="joins a transaction"):
        pg_log.append(request("order-1"), connection=handle)


def test_two_transactions_that_append_in_opposite_order_do_not_hang(pg_log, store_dsn):
    """Postgres ends one of them; it says that a repetition can help."""
    with psycopg.connect(store_dsn) as one, psycopg.connect(store_dsn) as two:
        pg_log.append(request("order-1"), connection=one)
        pg_log.append(request("order-2"), connection=two)

        async def cross() -> list[BaseException | None]:
            def append(stream: str, mine: psycopg.Connection) -> BaseException | None:
                try:
                    pg_log.append(request(stream), connection=mine)
                except ContentionError as error:
                    mine.rollback()
                    return error
                mine.commit()
                return None

            return await asyncio.gather(
                asyncio.to_thread(append, "order-2", one),
                asyncio.to_thread(append, "order-1", two),
            )

        lost = [error for error in asyncio.run(cross()) if error is not None]

    assert 1 == len(lost)
    assert (1, 1) == (
        pg_log.stream_version("default", "order-1"),
        pg_log.stream_version("default", "order-2"),
    )
