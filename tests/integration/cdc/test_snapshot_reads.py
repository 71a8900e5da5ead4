"""Reads of tables: in ranges, on demand, of keys and conditions, and what keeps them waiting."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from cdc import source
from cdc.broker.topics import topics
from cdc.broker.topics.offsets import end_offsets
from cdc.capture import CaptureSpec
from cdc.envelope import Operation
from cdc.postgres import own_schema, publication, session
from cdc.snapshot import chunk, ranges, reader, reads, report, request
from cdc.snapshot.errors import (
    ReadRefusedError,
    ReadUnknownError,
    SnapshotError,
    SourceWentBackError,
    WritersInTheWayError,
)
from cdc.table import TableName
from tests.fix_capture import Captured, event_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.change_event import ChangeEvent
    from cdc.snapshot.reads import Read
    from cdc.snapshot.request import RequestOutcome

pytestmark = pytest.mark.integration

NOTES = TableName("public", "notes")
PAIRS = TableName("public", "pairs")
LINES = TableName("public", "lines")


TABLES = """
CREATE TABLE notes (id int PRIMARY KEY, word text);
CREATE TABLE pairs (a text, b numeric(6,2), word text, PRIMARY KEY (a, b));
CREATE TABLE lines (id int, word text);
INSERT INTO notes SELECT g, 'old' FROM generate_series(1, 100) AS g;
INSERT INTO pairs VALUES ('x', 1.5, 'old'), ('y''"', -2, 'old');
INSERT INTO lines VALUES (1, 'old'), (2, 'old');
"""


@pytest.fixture
def unread(database: str, kafka_bootstrap: str) -> Iterator[Captured]:
    """Three tables that are to be read: with a key, one of two columns, without one.

    There is no connector: reads need none.
    """
    with asked_for(database, kafka_bootstrap, (NOTES, PAIRS, LINES), TABLES) as captured:
        yield captured


@contextmanager
def asked_for(
    dsn: str, bootstrap: str, tables: tuple[TableName, ...], statements: str
) -> Iterator[Captured]:
    spec = CaptureSpec(f"r_{secrets.token_hex(4)}", dsn, tables, "http://127.0.0.1:9", bootstrap)
    specs = source.topic_specs(spec)
    with session.connect(dsn) as connection:
        connection.execute(statements.encode())
        own_schema.ensure(connection)
        publication.ensure(connection, spec.publication, spec.captured)
        reads.ask_initial(connection, spec.name, 1, tables)
    topics.ensure(bootstrap, specs)
    yield Captured(spec, dsn)
    topics.delete(bootstrap, [topic.name for topic in specs])


@pytest.fixture
def captured(unread: Captured) -> Captured:
    """The same after they have been read."""
    assert 3 == reader.run(unread.spec)
    return unread


def topic(captured: Captured, table: TableName, after: dict[int, int]) -> list[ChangeEvent]:
    """What the topic has after these offsets, up to now."""
    from cdc.broker.client.admin import consumer
    from cdc.broker.topics.offsets import partitions

    name = table.topic(captured.spec.name)
    found = []
    with consumer(captured.spec.kafka_bootstrap) as client:
        places = partitions(client, [name])
        client.assign(places)
        for place in places:
            client.seek(place, after.get(place.partition, 0))
        ends = client.end_offsets(places)
        while any(client.position(place) < ends[place] for place in places):
            for records in client.poll(timeout_ms=100).values():
                found += [event_of(record) for record in records if record.value is not None]
    return found


def ends_of(captured: Captured, table: TableName) -> dict[int, int]:
    ends = end_offsets(captured.spec.kafka_bootstrap, [table.topic(captured.spec.name)])
    return {partition: end for (_, partition), end in ends.items()}


def read_of(captured: Captured, number: int) -> Read:
    with session.connect(captured.database) as connection:
        found = reads.find(connection, captured.spec.name, number)
    assert found is not None
    return found


def test_the_whole_some_keys_or_some_rows_of_a_table_are_read_again(captured: Captured) -> None:
    spec = captured.spec
    (first,) = [line for line in report.report(spec) if line.table == str(NOTES)]
    assert ("done", 100, 100, 100.0) == (
        first.state,
        first.rows_read,
        first.rows_expected,
        first.percent,
    )

    whole, again = request.ask(spec, NOTES), request.ask(spec, NOTES)
    assert (whole.read.id, True, False) == (again.read.id, whole.new, again.new)
    assert {(Operation.READ, key) for key in range(1, 101)} == {
        (event.operation, event.key["id"]) for event in read_now(captured, whole) if event.key
    }
    with session.connect(spec.dsn) as connection:
        newest = reads.whole_reads(connection, spec.name)[NOTES.topic(spec.name)]
    assert (whole.read.id, {0: 200}) == (newest.id, newest.end_offsets)

    keys = read_now(captured, request.ask(spec, NOTES, keys=["7", 7, " 1000"]))
    assert [(Operation.READ, 7), (Operation.DELETE, 1000)] == [
        (event.operation, event.key["id"]) for event in keys if event.key
    ]
    pairs = request.ask(spec, PAIRS, keys=[("x", "1.50"), {"b": 3, "a": "gone"}])
    assert [
        (Operation.READ, {"a": "x", "b": "1.50"}),
        (Operation.DELETE, {"a": "gone", "b": "3.00"}),
    ] == [(event.operation, event.key) for event in read_now(captured, pairs)]
    where = read_now(captured, request.ask(spec, NOTES, where="id IN (3, 4) -- a comment"))
    assert [3, 4] == [event.key["id"] for event in where if event.key]


def read_now(captured: Captured, asked: RequestOutcome) -> list[ChangeEvent]:
    """Does one read; returns what it brought to the topic, all at its own position."""
    table = asked.read.table
    before = ends_of(captured, table)
    assert 1 == reader.run(captured.spec)
    events = topic(captured, table, before)
    with session.connect(captured.database) as connection:
        done = reads.find(connection, captured.spec.name, asked.read.id)
    assert done is not None
    assert {done.read_lsn} == {event.position.lsn for event in events}
    assert done.rows_read == len([e for e in events if e.operation is Operation.READ])
    return events


REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("public.nowhere", {}, "is not captured"),
    ("public.notes", {"where": "id ="}, "condition cannot be read"),
    ("public.notes", {"where": "true; DROP TABLE notes"}, "condition cannot be read"),
    ("public.notes", {"where": "nothing = 1"}, "condition cannot be read"),
    ("public.notes", {"keys": ["one"]}, "a key does not fit table"),
    ("public.notes", {"keys": []}, "no keys are given"),
    ("public.pairs", {"keys": ["x"]}, "other columns"),
    ("public.pairs", {"keys": [{"a": "x", "c": 1}]}, "other columns"),
    ("public.lines", {"where": "id = 1"}, "has no key"),
)


def test_what_cannot_be_read_is_refused_before_it_is_stored(unread: Captured) -> None:
    for table, wish, said in REFUSED:
        with pytest.raises(ReadRefusedError, match=said) as refused:
            request.ask(unread.spec, TableName.parse(table), **wish)
        assert table != "public.nowhere" or "public.pairs" in str(refused.value.detail)

    with session.connect(unread.database) as connection:
        found = reads.of_source(connection, unread.spec.name, 1)
    assert ["waiting"] * 3 == [read.state for read in found]


def test_a_cancelled_read_ends_and_a_strange_one_is_unknown(captured: Captured) -> None:
    asked = request.ask(captured.spec, NOTES)

    assert "cancelled" == request.cancel(captured.spec, asked.read.id).state
    for number in (asked.read.id, 10**9):
        with pytest.raises(ReadUnknownError):
            request.cancel(captured.spec, number)
    assert 0 == reader.run(captured.spec)
    with pytest.raises(SnapshotError, match="is cancelled"):
        request.wait(captured.spec, asked.read.id, 5)
    # without a key what was sent would be there twice until the next whole read
    lines = request.ask(captured.spec, LINES).read.id
    captured.execute(f"UPDATE headwater.snapshots SET state = 'reading' WHERE id = {lines}")  # noqa: S608
    with pytest.raises(ReadRefusedError, match="has no key"):
        request.cancel(captured.spec, lines)


def test_writers_in_the_way_are_named_and_hold_nobody_else_up(captured: Captured) -> None:
    with psycopg.connect(captured.database, application_name="a slow one") as slow:
        slow.execute("UPDATE notes SET word = 'open' WHERE id = 1")
        blocked, free = request.ask(captured.spec, NOTES), request.ask(captured.spec, PAIRS)
        stop = threading.Event()
        keeper = threading.Thread(target=reader.keep_reading, args=(captured.spec, stop))
        keeper.start()
        try:
            assert request.wait(captured.spec, free.read.id, 30).done
            text, pid = _failure(captured, blocked.read.id), slow.info.backend_pid
            slow.commit()
            done = request.wait(captured.spec, blocked.read.id, 30)
        finally:
            stop.set()
            keeper.join()

    assert text.startswith("HW-C061")
    assert f"process {pid} (a slow one), since 20" in text
    assert (True, None) == (done.done, done.failure)


def test_a_read_that_waits_for_a_writer_gives_up_in_time(captured: Captured) -> None:
    with psycopg.connect(captured.database) as slow:
        slow.execute("UPDATE notes SET word = 'open' WHERE id = 1")
        request.ask(captured.spec, NOTES)
        with pytest.raises(WritersInTheWayError):
            reader.run(captured.spec, deadline_s=1.0)
        # a transaction that has written nothing yet is not waited for, however long it is open
        slow.rollback()
        slow.execute("UPDATE notes SET word = 'nothing' WHERE false")
        assert 1 == reader.run(captured.spec, deadline_s=5.0)


def _failure(captured: Captured, number: int) -> str:
    return wait_until(lambda: read_of(captured, number).failure or "", "a read that fails")


def test_a_table_that_cannot_be_read_fails_with_its_cause_and_the_others_are_read(
    unread: Captured,
) -> None:
    unread.execute(
        "CREATE ROLE " + (role := f"r_{secrets.token_hex(4)}") + " LOGIN PASSWORD 'p'",
        f"GRANT SELECT ON notes, pairs TO {role}",
        "ALTER TABLE pairs ENABLE ROW LEVEL SECURITY",
    )
    place = urlsplit(unread.database)
    as_role = place._replace(netloc=f"{role}:p@{place.hostname}:{place.port}").geturl()
    spec = replace(unread.spec, capture_dsn=as_role)
    try:
        with pytest.raises(SnapshotError, match="cannot be snapshotted"):
            reader.run(spec)
        lines = {line.table: line for line in report.report(spec)}
        # a role that may read it all reads what was given up, once it is asked again
        with session.connect(unread.database) as connection:
            tables = reads.ask_initial(connection, spec.name, 1, spec.tables)
        assert 2 == reader.run(unread.spec)
    finally:
        unread.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    assert ["done", "failed", "failed"] == [lines[str(t)].state for t in (NOTES, PAIRS, LINES)]
    assert "row-level security" in str(lines[str(PAIRS)].failure)
    assert "permission denied" in str(lines[str(LINES)].failure)
    assert [PAIRS, LINES] == tables


def test_a_table_that_is_truncated_meanwhile_is_read_anew(
    unread: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "_ROWS_FIRST", 10)
    monkeypatch.setattr(chunk, "ROWS_MAX", 10)
    once = threading.Event()
    real = chunk.read_range

    def truncated(*arguments: Any) -> Any:
        found = real(*arguments)
        if arguments[1].schema.table == NOTES and not once.is_set():
            once.set()
            unread.execute("TRUNCATE notes", "INSERT INTO notes VALUES (500, 'new')")
        return found

    monkeypatch.setattr(chunk, "read_range", truncated)
    assert 3 == reader.run(unread.spec)

    with session.connect(unread.database) as connection:
        found = reads.whole_reads(connection, unread.spec.name)[NOTES.topic(unread.spec.name)]
    events = topic(unread, NOTES, {})
    newest = [event for event in events if event.position.lsn == found.read_lsn]
    assert [500] == [event.key["id"] for event in newest if event.key]
    assert 10 == len(events) - len(newest)  # rows of before, which this read's position outdates
    assert all(event.position.lsn < found.read_lsn for event in events if event not in newest)


def test_a_column_that_is_added_meanwhile_is_not_read_and_one_that_goes_begins_it_anew(
    unread: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "_ROWS_FIRST", 60)
    monkeypatch.setattr(chunk, "ROWS_MAX", 60)
    changes = ["ALTER TABLE notes ADD extra int DEFAULT 1", "ALTER TABLE notes DROP word"]
    real = chunk.read_range

    def altered(*arguments: Any) -> Any:
        found = real(*arguments)
        if arguments[1].schema.table == NOTES and changes:
            unread.execute(changes.pop(0))
        return found

    monkeypatch.setattr(chunk, "read_range", altered)
    assert 3 == reader.run(unread.spec)

    by_position: dict[Any, list[Any]] = {}
    for event in topic(unread, NOTES, {}):
        by_position.setdefault(event.position.lsn, []).append(set(event.after or {}))
    first, last = (by_position[position] for position in sorted(by_position))
    assert [{"id", "word"}] * 100 == first  # both chunks, though the second had one column more
    assert [{"id", "extra"}] * 100 == last


def test_a_source_whose_log_went_back_is_not_read_at_a_position_before_the_last(
    unread: Captured,
) -> None:
    with session.connect(unread.database) as connection:
        connection.execute(
            "UPDATE headwater.snapshots SET state = 'reading', read_lsn = 'FF/0', progress = "
            """'{"identity": "of before", "shape": [], "ranges":"""
            """ [{"above": null, "through": null, "at": null, "done": false}]}'"""
            " WHERE table_name = 'notes'"
        )

    with pytest.raises(SourceWentBackError):
        reader.run(unread.spec)

    states = {line.table: line.state for line in report.report(unread.spec)}
    assert ("failed", "done") == (states[str(NOTES)], states[str(PAIRS)])


RANGED = """
CREATE TABLE odd (a text COLLATE pg_unicode_fast, b timestamptz, c bytea, word text,
                  PRIMARY KEY (a, b, c)) PARTITION BY HASH (c);
CREATE TABLE odd_0 PARTITION OF odd FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE odd_1 PARTITION OF odd FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO odd SELECT chr(97 + g % 26) || chr(198 + g % 7) || $q$'"\\$q$ || g % 100,
                       '2026-01-01'::timestamptz + g * interval '1 hour',
                       decode(lpad(to_hex(g), 6, '0'), 'hex'), 'w' FROM generate_series(1, 6000) g;
CREATE TABLE parent (id text COLLATE pg_unicode_fast NOT NULL, word text);
CREATE UNIQUE INDEX by_bytes ON parent (id COLLATE "C");
ALTER TABLE parent REPLICA IDENTITY USING INDEX by_bytes;
CREATE TABLE child () INHERITS (parent);
INSERT INTO parent SELECT chr(60 + g % 70) || gen_random_uuid(), g FROM generate_series(1, 5000) g;
INSERT INTO child SELECT gen_random_uuid(), g FROM generate_series(1, 50) g;
CREATE TABLE none (id int PRIMARY KEY);
CREATE TABLE formats (format numeric PRIMARY KEY);
INSERT INTO formats SELECT g * 1.5 FROM generate_series(1, 2000) g;
CREATE TABLE places (place int, many int, block int, PRIMARY KEY (place, many, block));
INSERT INTO places SELECT g, g, g FROM generate_series(1, 2000) g;
ANALYZE
"""


def test_ranges_of_odd_keys_hold_every_row_once(
    database: str, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "RANGE_ROWS", 500)
    monkeypatch.setattr(chunk, "ROWS_MAX", 300)
    names = ("odd", "parent", "none", "formats", "places")
    tables = tuple(TableName("public", name) for name in names)
    with asked_for(database, kafka_bootstrap, tables, RANGED) as asked:
        assert 5 == reader.run(replace(asked.spec, snapshot_workers=4))

        with session.connect(database) as connection:
            found = {r.table.name: r for r in reads.of_source(connection, asked.spec.name, 1)}
        keys = {
            table.name: Counter(str(event.key) for event in topic(asked, table, {}))
            for table in tables
        }

    assert [6000, 5000, 0, 2000, 2000] == [len(keys[table.name]) for table in tables]
    assert {1} == {count for of_table in keys.values() for count in of_table.values()}
    assert [12, 10, 1, 4, 4] == [len(found[t.name].progress.ranges) for t in tables]  # type: ignore[union-attr]


def test_two_readers_at_once_share_the_work(unread: Captured) -> None:
    done: list[int] = []
    both = [threading.Thread(target=lambda: done.append(reader.run(unread.spec))) for _ in "ab"]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()

    assert 3 == sum(done)
    assert [100, 2, 2] == [len(topic(unread, table, {})) for table in (NOTES, PAIRS, LINES)]
