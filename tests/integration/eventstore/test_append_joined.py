"""Appends inside a transaction of the caller's: state and events commit together, or neither."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy
from psycopg import rows as rows_of
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from eventstore.errors import (
    BatchRefusedError,
    ConditionFailedError,
    ContentionError,
    IdempotencyConflictError,
    IsolationRefusedError,
    StoreUnavailableError,
    WrongExpectedVersionError,
)
from eventstore.model.event import AppendRequest, Idempotency, NewEvent, StreamAppend
from eventstore.model.expected_version import ANY
from eventstore.model.query import Condition, tagged
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
        pytest.raises(BatchRefusedError, match="no open transaction"),
    ):
        pg_log.append(request("order-1"), connection=mine)


@pytest.mark.parametrize("handle", ["postgresql://", object(), 7], ids=["text", "object", "number"])
def test_what_is_no_connection_is_refused(pg_log, handle):
    with pytest.raises(BatchRefusedError, match="can join only a transaction"):
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


FILL_LOCK_TABLE = """
DO $$ BEGIN
    FOR n IN 1 .. 1000000 LOOP
        BEGIN
            PERFORM pg_advisory_xact_lock(n);
        EXCEPTION WHEN out_of_memory THEN EXIT;
        END;
    END LOOP;
END $$
"""


def append_many(pg_log) -> None:
    for number in range(100):
        pg_log.append(request(f"note-{number}"))


def test_a_full_lock_table_is_reported_as_such(pg_log, store_dsn):
    """Another session has filled it; an append alone no longer can."""
    with psycopg.connect(store_dsn) as other:
        other.execute(FILL_LOCK_TABLE)
        with pytest.raises(StoreUnavailableError) as refused:
            append_many(pg_log)
        other.rollback()

    assert "HW-E050" == refused.value.code
    assert "max_locks_per_transaction" in (refused.value.hint or "")
    assert 1 == pg_log.append(request("order-1")).version


KEEPING_A_SNAPSHOT = [
    psycopg.IsolationLevel.REPEATABLE_READ,
    psycopg.IsolationLevel.SERIALIZABLE,
]


def register(user: str, after: int | None = None, key: str | None = None) -> AppendRequest:
    event = NewEvent("user.registered", b"{}", uuid4(), datetime.now(UTC), tags=("email:a@x",))
    condition = None if after is None else Condition(tagged("email:a@x"), after)
    idempotency = None if key is None else Idempotency(key, b"d" * 32)
    append = StreamAppend(user, (event,))
    return AppendRequest((append,), condition=condition, idempotency=idempotency)


@pytest.fixture(params=["blocking", "asyncio"])
def joining(request, pg_log, store_dsn):
    """Appends and reads in a transaction of the caller's, by the one log or the other."""
    if request.param == "blocking":
        yield pg_log, lambda: psycopg.connect(store_dsn), lambda answer: answer
        return
    log, runner = AsyncPostgresEventLog(store_dsn), asyncio.Runner()
    connect = psycopg.AsyncConnection.connect

    class Waiting:
        """An async connection whose methods wait."""

        def __init__(self):
            self.waiting = runner.run(connect(store_dsn))

        def execute(self, *args):
            return runner.run(self.waiting.execute(*args))

        def set_isolation_level(self, level):
            runner.run(self.waiting.set_isolation_level(level))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            runner.run(self.waiting.close())

    yield log, Waiting, runner.run
    runner.run(log.close())
    runner.close()


def driver(mine):
    return getattr(mine, "waiting", mine)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("level", KEEPING_A_SNAPSHOT)
def test_a_condition_is_never_checked_in_an_old_snapshot(joining, pg_log, level, key):
    """Two users with one address, the second registered by a transaction that began before."""
    log, connect, done = joining
    _, after = pg_log.read_boundary("default", tagged("email:a@x"))
    with connect() as mine:
        mine.set_isolation_level(level)
        mine.execute("SELECT 1 FROM eventstore.events")
        pg_log.append(register("user-1", after))
        with pytest.raises(IsolationRefusedError) as refused:
            done(log.append(register("user-2", after, key), connection=driver(mine)))
        mine.execute("SELECT 1")  # nothing was done, and the transaction goes on
        mine.execute("COMMIT")

    assert "HW-E015" == refused.value.code
    assert 1 == len(pg_log.read_boundary("default", tagged("email:a@x")).events)


@pytest.mark.parametrize("level", KEEPING_A_SNAPSHOT)
def test_a_boundary_is_never_read_in_an_old_snapshot(joining, pg_log, level):
    log, connect, done = joining
    with connect() as mine:
        mine.set_isolation_level(level)
        mine.execute("SELECT 1 FROM eventstore.events")
        pg_log.append(register("user-1"))
        with pytest.raises(IsolationRefusedError):
            done(log.read_boundary("default", tagged("email:a@x"), connection=driver(mine)))
        mine.execute("COMMIT")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("by_default", [True, False])
def test_the_isolation_of_a_transaction_is_seen_however_it_was_chosen(
    pg_log, store_dsn, level, by_default
):
    with psycopg.connect(store_dsn, autocommit=True) as mine:
        if by_default:
            mine.execute(f"SET default_transaction_isolation TO '{level}'")
        mine.execute("BEGIN" if by_default else f"BEGIN ISOLATION LEVEL {level}")
        with pytest.raises(IsolationRefusedError):
            pg_log.append(register("user-1", 0), connection=mine)
        mine.execute("ROLLBACK")


def test_a_boundary_sees_what_its_own_transaction_has_appended(joining, pg_log):
    log, connect, done = joining
    with connect() as mine:
        done(log.append(register("user-1"), connection=driver(mine)))
        within = done(log.read_boundary("default", tagged("email:a@x"), connection=driver(mine)))
        done(log.append(register("user-2", within.after), connection=driver(mine)))
        with pytest.raises(ConditionFailedError):
            done(log.append(register("user-3", within.after), connection=driver(mine)))
        mine.execute("COMMIT")

    events = pg_log.read_boundary("default", tagged("email:a@x")).events
    assert ["user-1"] == [event.stream for event in within.events]
    assert ["user-1", "user-2"] == [event.stream for event in events]


@pytest.mark.parametrize("level", KEEPING_A_SNAPSHOT)
def test_a_key_that_an_old_snapshot_does_not_show_is_used_once(joining, pg_log, level):
    log, connect, done = joining
    with connect() as mine:
        mine.set_isolation_level(level)
        mine.execute("SELECT 1 FROM eventstore.events")
        pg_log.append(register("user-1", key="k"))
        with pytest.raises(ContentionError):
            done(log.append(register("user-2", key="k"), connection=driver(mine)))
        mine.execute("ROLLBACK")

    assert 0 == pg_log.stream_version("default", "user-2")


@pytest.mark.parametrize("level", KEEPING_A_SNAPSHOT)
@pytest.mark.parametrize("expected", [ANY, 1])
def test_a_version_that_an_old_snapshot_shows_is_taken_once(joining, pg_log, level, expected):
    log, connect, done = joining
    pg_log.append(request("order-1"))
    with connect() as mine:
        mine.set_isolation_level(level)
        mine.execute("SELECT 1 FROM eventstore.events")
        pg_log.append(request("order-1"))
        with pytest.raises(ContentionError):
            done(log.append(request("order-1", expected), connection=driver(mine)))
        mine.execute("ROLLBACK")

    assert 2 == pg_log.stream_version("default", "order-1")


def kept(name: str, **attributes: object) -> object:
    return pytest.param(attributes, id=name)


@pytest.mark.parametrize(
    "settings",
    [
        kept("dict", row_factory=rows_of.dict_row),
        kept("namedtuple", row_factory=rows_of.namedtuple_row),
        kept("scalar", row_factory=rows_of.scalar_row),
        kept("class", row_factory=rows_of.class_row(dict)),
        kept("client cursor", cursor_factory=psycopg.ClientCursor),
        kept("raw cursor", cursor_factory=psycopg.RawCursor),
    ],
)
def test_a_joined_call_answers_whatever_the_caller_s_rows_and_cursors_are(
    pg_log, store_dsn, settings
):
    with psycopg.connect(store_dsn) as mine:
        for name, value in settings.items():
            setattr(mine, name, value)
        done = [
            pg_log.append(request("order-1"), connection=mine),  # append_event
            pg_log.append(request("order-1", key="k"), connection=mine),  # append
            pg_log.append(pair("order-2"), connection=mine),  # append_events
        ]
        answers = (
            [e.stream for e in pg_log.read_stream("default", "order-1", connection=mine)],
            pg_log.stream_version("default", "order-1", connection=mine),
            pg_log.result_of("default", "k", connection=mine) is not None,
        )

    assert [1, 2, 2] == [one.version for one in done]
    assert (["order-1"] * 2, 2, True) == answers


@pytest.mark.parametrize("factory", [rows_of.dict_row, rows_of.scalar_row], ids=["dict", "scalar"])
def test_a_joined_call_of_the_async_log_answers_whatever_the_caller_s_rows_are(store_dsn, factory):
    async def run() -> tuple[object, ...]:
        log = AsyncPostgresEventLog(store_dsn)
        async with await psycopg.AsyncConnection.connect(store_dsn, row_factory=factory) as mine:
            done = await log.append(request("order-1"), connection=mine)
            found = [e async for e in log.read_stream("default", "order-1", connection=mine)]
            version = await log.stream_version("default", "order-1", connection=mine)
        await log.close()
        return done.version, len(found), version

    assert (1, 1, 1) == asyncio.run(run())


def pair(stream: str) -> AppendRequest:
    events = tuple(NewEvent("note.made", b"{}", uuid4(), datetime.now(UTC)) for _ in range(2))
    return AppendRequest((StreamAppend(stream, events, ANY),))


@pytest.mark.parametrize("events", [1, 2])
def test_an_event_that_is_stored_already_is_named_and_repeated_with_a_key(
    pg_log, store_dsn, events
):
    """The transaction has failed then, so the first result cannot be looked up in it."""
    asked = request("order-1")
    (append,) = asked.appends
    others = [request("order-1").appends[0].events[0] for _ in range(events - 1)]
    repeated = replace(asked, appends=(replace(append, events=(*append.events, *others)),))
    pg_log.append(asked)

    with psycopg.connect(store_dsn) as mine:
        with pytest.raises(IdempotencyConflictError) as refused:
            pg_log.append(repeated, connection=mine)
        assert "failed" in refused.value.detail
        assert "idempotency key" in refused.value.hint
        assert not refused.value.retriable

    keyed = replace(request("order-2"), idempotency=Idempotency("import-1", b"d" * 32))
    with psycopg.connect(store_dsn) as mine:
        first = pg_log.append(keyed, connection=mine)
        again = pg_log.append(keyed, connection=mine)
    assert (first.versions, True) == (again.versions, again.repeated)
