"""Locks of a transaction that appends: bounded, and they still keep writers and deciders apart."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest

from eventstore.errors import ConditionFailedError, ContentionError, WrongExpectedVersionError
from eventstore.model.event import AppendRequest, Idempotency, NewEvent, StreamAppend
from eventstore.model.expected_version import ANY
from eventstore.model.query import Condition, tagged
from eventstore.postgres import schema
from eventstore.postgres.log import PostgresEventLog
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

LOCKS_MAX = 500
OTHERS = 3  # the floor, the one of all tags, and the last append's stream
HELD = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND"
    " granted"
)
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
EMAIL = "email:ada@example.org"


def event(*tags: str) -> NewEvent:
    return NewEvent("user.registered", b"{}", uuid4(), datetime.now(UTC), tags=tags)


def request(stream: str, *events: NewEvent, expected: int = ANY, key: str | None = None):
    idempotency = None if key is None else Idempotency(key, b"d" * 32)
    append = StreamAppend(stream, events or (event(),), expected)
    return AppendRequest((append,), idempotency=idempotency)


def many_tags(events: int, each: int, *more: str) -> tuple[NewEvent, ...]:
    """Events whose tags all differ, but for `more`."""
    return tuple(
        event(*more, *(f"t:{number}-{tag}" for tag in range(each))) for number in range(events)
    )


def deciding(stream: str, tag: str, after: int, *events: NewEvent) -> AppendRequest:
    append = StreamAppend(stream, events or (event(tag),))
    return AppendRequest((append,), condition=Condition(tagged(tag), after))


def value(connection: psycopg.Connection, asked: str) -> int:
    row = connection.execute(asked).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
def joined(store_dsn):
    with psycopg.connect(store_dsn) as connection:
        yield connection


@pytest.fixture
def looker(store_dsn):
    with psycopg.connect(store_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def aside():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def fill_up(pg_log, joined) -> None:
    """Brings a transaction to where it takes no more locks of streams."""
    for number in range(LOCKS_MAX):
        pg_log.append(request(f"bulk-{number}"), connection=joined)
    assert LOCKS_MAX <= value(joined, HELD) <= LOCKS_MAX + OTHERS


def test_one_append_of_many_tags_takes_one_lock_for_all_of_them(pg_log, joined):
    pg_log.append(request("import-1", *many_tags(4_000, 5)), connection=joined)
    held = value(joined, HELD)
    joined.commit()

    assert held <= OTHERS
    assert 4_000 == pg_log.stream_version("default", "import-1")


def test_many_new_streams_of_one_transaction_take_a_bounded_number_of_locks(pg_log, joined):
    for number in range(10_600):
        pg_log.append(request(f"import-{number}"), connection=joined)
    held = value(joined, HELD)
    joined.commit()

    assert held <= LOCKS_MAX + OTHERS
    assert 1 == pg_log.stream_version("default", "import-10599")


def test_keys_and_tags_of_many_appends_are_bounded_together(pg_log, joined):
    for number in range(400):
        asked = request(f"import-{number}", event(f"a:{number}", f"b:{number}"), key=f"k{number}")
        pg_log.append(asked, connection=joined)

    assert value(joined, HELD) <= LOCKS_MAX + OTHERS


def test_a_savepoint_that_is_rolled_back_gives_its_locks_back_to_the_count(pg_log, joined):
    for _ in range(3):
        with joined.transaction(force_rollback=True):
            fill_up(pg_log, joined)

    fill_up(pg_log, joined)


# Who decides by a tag, beside who writes too many to lock each


def test_who_decides_waits_for_an_import_that_may_have_the_tag(pg_log, joined, looker, aside):
    pg_log.append(request("import-1", *many_tags(200, 5, EMAIL)), connection=joined)
    reading = aside.submit(pg_log.read_boundary, "default", tagged(EMAIL))
    appending = aside.submit(pg_log.append, deciding("user-2", EMAIL, 0))
    wait_until(lambda: value(looker, WAITING) == 2)
    joined.commit()

    assert 200 == len(reading.result(30).events)
    with pytest.raises(ConditionFailedError):
        appending.result(30)


def test_an_import_waits_for_who_decides(pg_log, joined, looker, aside):
    found = pg_log.read_boundary("default", tagged(EMAIL), connection=joined)
    importing = aside.submit(pg_log.append, request("import-1", *many_tags(200, 5, EMAIL)))
    wait_until(lambda: value(looker, WAITING) == 1)
    decided = pg_log.append(deciding("user-1", EMAIL, found.after), connection=joined)
    joined.commit()

    assert importing.result(30).token.global_position > decided.token.global_position
    positions = [
        one.global_position for one in pg_log.read_boundary("default", tagged(EMAIL)).events
    ]
    assert positions[0] == decided.token.global_position
    assert 201 == len(positions)


def test_who_writes_a_few_tags_does_not_wait_for_an_import(pg_log, joined):
    pg_log.append(request("import-1", *many_tags(200, 5, EMAIL)), connection=joined)

    assert 1 == pg_log.append(request("user-1", event(EMAIL))).version


def test_an_import_that_decides_is_refused_by_what_it_has_not_seen(pg_log):
    pg_log.append(request("user-1", event(EMAIL)))
    with pytest.raises(ConditionFailedError):
        pg_log.append(deciding("import-1", EMAIL, 0, *many_tags(200, 5, EMAIL)))


def test_of_all_who_race_for_one_tag_one_gets_it(pg_log, store_dsn):
    """Deciders, and imports that decide, at once, on the same tags; each tag is given once."""
    rounds, emails = 12, [f"email:{number}" for number in range(6)]
    won: list[str] = []

    def register(worker: int) -> None:
        log = PostgresEventLog(store_dsn, connections_max=1)
        for number in range(rounds):
            email = emails[(worker + number) % len(emails)]
            found = log.read_boundary("default", tagged(email))
            if found.events:
                continue
            extra = many_tags(60, 10, email) if (worker + number) % 2 else (event(email),)
            try:
                log.append(deciding(f"user-{worker}x{number}", email, found.after, *extra))
                won.append(email)
            except ConditionFailedError:
                pass
        log.close()

    threads = [threading.Thread(target=register, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert not any(thread.is_alive() for thread in threads)
    assert sorted(emails) == sorted(won)


# Writers of one stream or key, one of whom holds no lock of it


def test_a_writer_waits_for_one_without_a_lock_and_comes_next(pg_log, joined, looker, aside):
    fill_up(pg_log, joined)
    pg_log.append(request("order-1"), connection=joined)
    any_version = aside.submit(pg_log.append, request("order-1"))
    new = aside.submit(pg_log.append, request("order-1", expected=0))
    wait_until(lambda: value(looker, WAITING) == 2)
    joined.commit()

    assert 2 == any_version.result(30).version
    with pytest.raises(WrongExpectedVersionError):
        new.result(30)


def test_one_without_a_lock_loses_against_a_writer_under_way(pg_log, joined, store_dsn, aside):
    fill_up(pg_log, joined)
    with psycopg.connect(store_dsn) as other, psycopg.connect(store_dsn, autocommit=True) as looker:
        pg_log.append(request("order-1"), connection=other)
        late = aside.submit(pg_log.append, request("order-1"), connection=joined)
        wait_until(lambda: value(looker, WAITING) == 1)
        other.commit()
        with pytest.raises(ContentionError) as lost:
            late.result(30)

    assert lost.value.retriable
    joined.rollback()
    assert (1, 0) == (
        pg_log.stream_version("default", "order-1"),
        pg_log.stream_version("default", "bulk-0"),
    )


def test_one_key_is_used_once_where_no_lock_of_it_is_held(pg_log, joined, looker, aside):
    fill_up(pg_log, joined)
    asked = request("order-1", key="once")
    pg_log.append(asked, connection=joined)
    again = aside.submit(pg_log.append, request("order-1", key="once"))
    wait_until(lambda: value(looker, WAITING) == 1)
    joined.commit()

    assert again.result(30).repeated
    assert 1 == pg_log.stream_version("default", "order-1")


# The migration


BODIES = (
    "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'eventstore'::regnamespace"
    " AND proname IN ('append_event', 'append_events', 'lock_append') ORDER BY 1"
)


def test_an_upgrade_bounds_the_locks_of_a_store_that_has_events(database):
    schema.upgrade(database, through="0002_failures")
    log = PostgresEventLog(database)
    log.append(request("order-1", event(EMAIL), key="once"))
    with psycopg.connect(database, autocommit=True) as looker:
        before = looker.execute(BODIES).fetchall()
        schema.upgrade(database, through="0003_locks")
        repeated = log.append(request("order-1", event(EMAIL), key="once"))
        version = log.append(request("order-1", *many_tags(900, 5, EMAIL))).version
        changed = looker.execute(BODIES).fetchall()
    log.close()

    assert repeated.repeated
    assert 901 == version
    assert [name for name, _ in before] == [name for name, _ in changed]
    assert all(old != new for old, new in zip(before, changed, strict=True))
