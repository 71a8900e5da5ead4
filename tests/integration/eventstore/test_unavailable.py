"""What the store says if Postgres did not perform a call."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from eventstore.errors import EventRefusedError, StoreUnavailableError
from eventstore.postgres.log import PostgresEventLog
from eventstore.testing import an_event, append_to

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration


def test_a_transaction_that_failed_already_is_named(pg_log, store_dsn):
    with psycopg.connect(store_dsn) as mine:
        with suppress(psycopg.errors.DivisionByZero):
            mine.execute("SELECT 1 / 0")
        with pytest.raises(StoreUnavailableError) as raised:
            pg_log.append(append_to("order-1"), connection=mine)

    assert "the transaction has failed already" == raised.value.message
    assert "roll it back" in raised.value.hint


def test_a_statement_that_was_cancelled_is_named(pg_log, store_dsn):
    with psycopg.connect(store_dsn) as first, psycopg.connect(store_dsn) as second:
        pg_log.append(append_to("order-1"), connection=first)  # holds the stream's lock
        second.execute("SET statement_timeout = 50")
        with pytest.raises(StoreUnavailableError) as raised:
            pg_log.append(append_to("order-1"), connection=second)

    assert "the statement was cancelled" == raised.value.message
    assert "statement_timeout" in raised.value.hint


def test_a_full_pool_and_a_closed_store_are_named(store_dsn):
    log = PostgresEventLog(store_dsn, connections_max=1)
    log._sessions._pool.timeout = 0.01
    with log._sessions.plain(), pytest.raises(StoreUnavailableError) as full:
        log.high_water_mark()
    log.close()
    with pytest.raises(StoreUnavailableError) as closed:
        log.append(append_to("order-1"))

    assert "no connection became free in time" == full.value.message
    assert "connections_max" in full.value.hint
    assert "the store is closed" == closed.value.message


@pytest.fixture
def latin_dsn(postgres_dsn: str) -> Iterator[str]:
    """DSN of an event store in a database whose encoding is LATIN1."""
    from eventstore.postgres import schema

    name = f"t_latin_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        create = "CREATE DATABASE {} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
        admin.execute(sql.SQL(create).format(sql.Identifier(name)))
        dsn = urlsplit(postgres_dsn)._replace(path=f"/{name}").geturl()
        schema.upgrade(dsn)
        yield dsn
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_a_character_that_the_database_cannot_store_is_named(latin_dsn):
    log = PostgresEventLog(latin_dsn)
    log.append(append_to("order-1", an_event(data='{"name":"Zoë"}'.encode())))
    with pytest.raises(EventRefusedError) as raised:
        log.append(append_to("order-1", an_event(data='{"name":"Жанна"}'.encode())))
    (found,) = log.read_stream("default", "order-1")
    log.close()

    assert '{"name":"Zoë"}'.encode() == found.data
    assert "UTF8" in raised.value.hint
    assert "Жанна" not in f"{raised.value} {raised.value.detail} {raised.value.hint}"
