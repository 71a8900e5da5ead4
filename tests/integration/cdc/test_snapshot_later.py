"""Tables that come later, that leave and come back, that have no key: read beside the stream."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc import source
from cdc.position import ChangePosition
from cdc.postgres import session
from cdc.postgres.errors import PublicationDriftError
from cdc.snapshot import reader, reads, request
from cdc.table import TableName
from tests.fix_capture import Captured, event_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.change_event import ChangeEvent

pytestmark = pytest.mark.integration

LATE, LINES, NOTES = (TableName("public", name) for name in ("late", "lines", "notes"))


class Writer(threading.Thread):
    """Inserts into a keyed and a keyless table, and changes the keyed one, in transactions."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._ended = threading.Event()
        self._wrote = threading.Condition()
        self._number = 0

    def run(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            while not self._ended.wait(0.002):
                self._number += 1
                values = (self._number,)
                connection.execute("INSERT INTO late VALUES (%s, 'new')", values)
                connection.execute("INSERT INTO lines VALUES (%s)", values)
                connection.execute("UPDATE late SET word = 'again' WHERE id = %s - 3", values)
                connection.execute("DELETE FROM late WHERE id = %s - 7", values)
                connection.commit()
                with self._wrote:
                    self._wrote.notify_all()

    def wait_for_more(self, transactions: int) -> None:
        with self._wrote:
            wanted = self._number + transactions
            assert self._wrote.wait_for(lambda: self._number >= wanted, 60)

    def stop(self) -> None:
        self._ended.set()
        self.join()


def test_tables_come_later_and_leave_and_come_back_among_writers_and_no_row_is_lost_or_twice(
    database: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id int PRIMARY KEY, word text)")
        connection.execute("CREATE TABLE late (id int PRIMARY KEY, word text)")
        connection.execute("CREATE TABLE lines (id int)")
        connection.execute("INSERT INTO late SELECT -g, 'old' FROM generate_series(2, 500) g")
    first = capture("notes")
    spec = replace(first.spec, tables=(NOTES, LATE, LINES), insert_only=frozenset({LINES}))
    captured = Captured(spec, database)
    writer = Writer(database)
    writer.start()
    try:
        writer.wait_for_more(50)
        changes = source.apply(spec)
        assert {f"{table} is to be read" for table in (LATE, LINES)} <= set(changes)
        assert 2 == reader.run(spec)
        writer.wait_for_more(50)
        left = _taken_out_and_put_back(captured)
        writer.wait_for_more(50)
    finally:
        writer.stop()
    try:
        folded = _fold(captured, LATE)
        lines = _lines(captured)
        with session.connect(database) as connection:
            rows = dict(connection.execute("SELECT id, word FROM late WHERE id <> -1").fetchall())
            numbers = [row[0] for row in connection.execute("SELECT id FROM lines WHERE id <> -1")]
    finally:
        source.remove(spec, with_topics=True)

    assert rows == folded
    assert Counter(numbers) == lines
    assert [(5, "while out"), (6, "after")] == sorted(left.items())


def _taken_out_and_put_back(captured: Captured) -> dict[int, str]:
    """Somebody drops a table from the publication; it is drift until it is read as a whole."""
    spec = captured.spec
    captured.execute(
        f"ALTER PUBLICATION {spec.publication} DROP TABLE notes",
        "INSERT INTO notes VALUES (5, 'while out')",
    )
    with pytest.raises(PublicationDriftError) as drift:
        source.apply(spec)
    assert "headwater source resnapshot public.notes" in str(drift.value.hint)
    asked = request.ask(spec, NOTES)
    assert [f"added public.notes to publication {spec.publication}"] == list(asked.changes)
    assert 1 == reader.run(spec)
    captured.execute("INSERT INTO notes VALUES (6, 'after')")
    return _fold(captured, NOTES)


def _events(captured: Captured, table: TableName) -> list[ChangeEvent]:
    captured.execute(f"INSERT INTO {table} (id) VALUES (-1)")  # noqa: S608

    def is_mark(record: object) -> bool:
        change = event_of(record)
        return change.after is not None and change.after["id"] == -1

    name = table.topic(captured.spec.name)
    return [event_of(record) for record in captured.read(name, _living(is_mark)) if record.value]


def _living(is_mark: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda record: getattr(record, "value", None) is not None and is_mark(record)


def _fold(captured: Captured, table: TableName) -> dict[int, str]:
    newest: dict[int, ChangeEvent] = {}
    for event in _events(captured, table):
        assert event.key is not None
        key = event.key["id"]
        if key not in newest or event.position.version > newest[key].position.version:
            newest[key] = event
    return {key: event.after["word"] for key, event in newest.items() if event.after}


def _lines(captured: Captured) -> Counter[int]:
    """Rows of the table without a key: those read, and those streamed behind the read."""
    with session.connect(captured.database) as connection:
        whole = reads.whole_reads(connection, captured.spec.name)
    read = whole[LINES.topic(captured.spec.name)]
    least = ChangePosition.of_read(read.epoch, read.read_lsn).version
    rows = {
        (event.position.version, event.position.order): event.after["id"]
        for event in _events(captured, LINES)
        if event.after and event.position.version >= least
    }
    return Counter(rows.values())
