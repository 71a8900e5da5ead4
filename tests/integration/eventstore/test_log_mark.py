"""Whose locks hold the log's mark: those of writers, and of no role without a right on the log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from eventstore.model.event import StreamAppend
from eventstore.model.expected_version import ANY
from eventstore.postgres import append_statement
from eventstore.testing import an_event, append_to
from eventstore.testing.sample import append_to_all
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.postgres.log import PostgresEventLog

pytestmark = pytest.mark.integration

STREAM_WAITERS = (
    "SELECT count(*) FROM pg_locks WHERE classid = 1749232 AND NOT granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
STREAMS = (f"s-{number}" for number in count())
WAYS = {
    "one row": lambda name: append_statement.append(append_to(name, expected_version=0)),
    "one event": lambda name: append_statement.append(append_to(name)),
    "several events": lambda name: append_statement.append(append_to(name, an_event(), an_event())),
    "everything": lambda name: append_statement.append(
        append_to_all(
            StreamAppend(name, (an_event(),), ANY), StreamAppend(f"{name}-2", (an_event(),), ANY)
        )
    ),
}


@pytest.fixture
def stranger(store_dsn: str, postgres_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of a role that may connect, and nothing else."""
    role = f"stranger_{psycopg.conninfo.conninfo_to_dict(store_dsn)['dbname']}"
    name = sql.Identifier(role)
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'stranger'").format(name))
        dsn = psycopg.conninfo.make_conninfo(store_dsn, user=role, password="stranger")
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                yield connection
        finally:
            admin.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.mark.parametrize("scope", ["", "xact_"])
def test_a_role_without_a_right_on_the_log_cannot_hold_the_mark(
    pg_log: PostgresEventLog, store_dsn: str, stranger: psycopg.Connection[Any], scope: str
) -> None:
    last = pg_log.append(append_to("order-1")).token.global_position
    stranger.execute("BEGIN")
    stranger.execute(f"SELECT pg_advisory_{scope}lock_shared(1749231, 0)".encode())

    mark = pg_log.high_water_mark()
    shown = stranger.execute("SELECT count(*) FROM pg_locks WHERE classid = 1749231").fetchone()

    assert ((1,), last) == (shown, mark)
    with psycopg.connect(store_dsn) as looking:
        assert [] == looking.execute("SELECT * FROM eventstore.writers_under_way").fetchall()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ["commit", "rollback", "prepare"])
def test_each_way_to_append_holds_the_mark_until_its_transaction_is_over(
    pg_log: PostgresEventLog, store_dsn: str, way: str, end: str
) -> None:
    before = pg_log.append(append_to("first")).token.global_position
    with psycopg.connect(store_dsn) as writer:
        if end == "prepare":
            writer.tpc_begin(writer.xid(1, way, store_dsn[-8:]))
        asked = WAYS[way](next(STREAMS))
        writer.execute(asked.sql, asked.parameters, binary=True)
        later = pg_log.append(append_to("second")).token.global_position
        during = pg_log.high_water_mark()
        if end == "prepare":
            writer.tpc_prepare()
            assert during == pg_log.high_water_mark()
            writer.tpc_commit()
        else:
            getattr(writer, end)()

        assert before == during
        assert later == pg_log.high_water_mark()


@pytest.mark.parametrize("way", WAYS)
def test_a_writer_that_waits_for_its_stream_does_not_hold_the_mark(
    pg_log: PostgresEventLog, store_dsn: str, way: str
) -> None:
    """Each way takes the stream's lock first: the one ahead of it may be slow."""
    name = next(STREAMS)
    asked = WAYS[way](name)

    def write() -> None:
        with psycopg.connect(store_dsn) as writer:
            writer.execute(asked.sql, asked.parameters, binary=True)

    with psycopg.connect(store_dsn) as ahead, ThreadPoolExecutor(1) as pool:
        ahead.execute("SELECT pg_advisory_xact_lock(1749232, hashtext(%s))", (f"default/{name}",))
        waiting = pool.submit(write)
        wait_until(
            lambda: ahead.execute(STREAM_WAITERS).fetchone(),
            "a writer that waits for its stream",
            accept=lambda found: found == (1,),
        )
        last = pg_log.append(append_to("other")).token.global_position
        mark = pg_log.high_water_mark()
        ahead.rollback()
        waiting.result(60)

    assert last == mark


def test_a_floor_outlives_a_savepoint_that_is_rolled_back(
    pg_log: PostgresEventLog, store_dsn: str
) -> None:
    before = pg_log.append(append_to("first")).token.global_position
    with psycopg.connect(store_dsn) as writer:
        writer.execute("SAVEPOINT a")
        writer.execute("SELECT eventstore.hold_mark()")
        writer.execute("ROLLBACK TO a")
        writer.execute("SELECT eventstore.hold_mark(), nextval('eventstore.global_position')")
        pg_log.append(append_to("second"))

        assert before == pg_log.high_water_mark()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_position_below_the_mark_appears_later(store_dsn: str, data: st.DataObject) -> None:
    """Writers that append, roll back and end in any order, and a reader between any two steps."""
    promised: list[tuple[int, frozenset[int]]] = []
    with psycopg.connect(store_dsn, autocommit=True) as reader:

        def look() -> None:
            (mark,) = _one(reader, "SELECT eventstore.high_water_mark()")
            promised.append((mark, _seen(reader, mark)))

        with psycopg.connect(store_dsn) as a, psycopg.connect(store_dsn) as b:
            for _ in range(data.draw(st.integers(2, 10))):
                writer = data.draw(st.sampled_from([a, b]))
                step = data.draw(st.sampled_from([*WAYS, "commit", "rollback", "hold", "back"]))
                _step(writer, step)
                look()
            a.commit()
            look()
        look()
        for mark, seen in promised:
            assert seen == _seen(reader, mark)


def _step(writer: psycopg.Connection[Any], step: str) -> None:
    if step in WAYS:
        asked = WAYS[step](next(STREAMS))
        writer.execute(asked.sql, asked.parameters, binary=True)
    elif step == "hold":
        writer.execute("SELECT eventstore.hold_mark()")
    elif step == "back":
        writer.execute("SAVEPOINT s")
        asked = WAYS["several events"](next(STREAMS))
        writer.execute(asked.sql, asked.parameters, binary=True)
        writer.execute("ROLLBACK TO s")
    else:
        getattr(writer, step)()


def _one(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return tuple(row)


def _seen(connection: psycopg.Connection[Any], mark: int) -> frozenset[int]:
    rows = connection.execute(
        "SELECT global_position FROM eventstore.events WHERE global_position <= %s", (mark,)
    )
    return frozenset(position for (position,) in rows)
