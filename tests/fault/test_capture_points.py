"""Connect is killed at seeded points of a script of transactions; all is equal after each."""

from __future__ import annotations

import random
import secrets
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from cdc import source
from cdc.broker.client.admin import consumer
from cdc.broker.topics.offsets import end_offsets, partitions
from cdc.capture import CaptureSpec
from cdc.postgres import session
from cdc.snapshot import reader, reads
from cdc.snapshot.reads import SnapshotRequest
from cdc.table import TableName
from tests.fix_capture import event_of, guarding
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from cdc.change_event import ChangeEvent
    from tests.fix_seeds import Rotation
    from tests.fix_worker import Worker

pytestmark = [pytest.mark.integration, pytest.mark.fault]

LEDGER = TableName("public", "ledger")
PAIRS = TableName("public", "pairs")
SEEDS: Final = range(20)
SEEDS_PER_RUN: Final = 2
COPIED: Final = 4_000


class Fold:
    """The rows that the topics say there are, folded further at each look."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        self._newest: dict[tuple[TableName, Any], ChangeEvent] = {}
        self._at: dict[str, int] = {}
        self._mark = 0
        self.events = 0

    def rows(self) -> dict[TableName, dict[Any, Any]]:
        """Reads on up to marks that are made now; returns all rows but those."""
        self._mark -= 1
        for table in self._spec.tables:
            self._read(table)
        found: dict[TableName, dict[Any, Any]] = {table: {} for table in self._spec.tables}
        for (table, key), event in self._newest.items():
            if event.after is not None and key > 0:
                found[table][key] = (event.after["n"], event.after["note"])
        return found

    def _read(self, table: TableName) -> None:
        topic, mark = self._spec.table_topics[table], self._mark
        with psycopg.connect(self._spec.dsn, autocommit=True) as connection:
            statement = f"INSERT INTO {table} VALUES (%s, 0, 'mark')"  # noqa: S608
            connection.execute(statement.encode(), (mark,))
        with consumer(self._spec.kafka_bootstrap) as client:
            (place,) = partitions(client, [topic])
            client.assign([place])
            client.seek(place, self._at.get(topic, 0))

            def read() -> bool:
                for records in client.poll(timeout_ms=100).values():
                    for record in records:
                        self._take(record)
                return (table, mark) in self._newest

            wait_until(read, f"the mark in {topic}", timeout_s=90, pause_s=0)
            self._at[topic] = client.position(place)

    def _take(self, record: Any) -> None:
        if record.value is None:
            return
        event = event_of(record)
        self.events += 1
        assert event.key is not None
        place = event.table, event.key["id"]
        known = self._newest.get(place)
        if known is None or known.position.version < event.position.version:
            self._newest[place] = event
        elif known.position.version == event.position.version:
            assert (known.after, known.operation) == (event.after, event.operation)


class Script:
    """Transactions of every shape, told by a seed; somewhere in one of them the worker dies."""

    def __init__(self, spec: CaptureSpec, worker: Worker, seed: int) -> None:
        self._spec = spec
        self._worker = worker
        self._random = random.Random(seed)  # noqa: S311
        self._next = (seed + 1) * 100_000

    def run(self, shape: str) -> None:
        with psycopg.connect(self._spec.dsn) as one, psycopg.connect(self._spec.dsn) as two:
            self._ordinary(one)
            getattr(self, shape)(one, two)
            self._ordinary(two)
        self._worker.start()

    def in_a_commit(self, one: Connection[Any], _: Connection[Any]) -> None:
        dying = threading.Timer(self._random.random() / 10, self._worker.kill)
        dying.start()
        for _number in range(self._random.randint(5, 30)):
            self._ordinary(one)
        dying.join()

    def in_an_open_copy(self, one: Connection[Any], two: Connection[Any]) -> None:
        """Before the server knows whether it will be committed."""
        begun = self._random.randint(1, COPIED - 1)
        with one.cursor().copy("COPY ledger FROM STDIN") as copy:
            self._copy(copy, begun)
            self._ordinary(two)
            self._worker.kill()
            self._copy(copy, COPIED - begun)
        one.commit()

    def while_a_copy_is_sent(self, one: Connection[Any], _: Connection[Any]) -> None:
        """Rows that share a position have been sent in part."""
        before = self._sent()
        with one.cursor().copy("COPY ledger FROM STDIN") as copy:
            self._copy(copy, COPIED * 3)
        one.commit()
        wait_until(lambda: self._sent() > before)
        self._worker.kill()

    def between_interleaved_transactions(self, one: Connection[Any], two: Connection[Any]) -> None:
        ids = [self._insert(one), self._insert(two)]
        for _ in range(self._random.randint(2, 6)):
            one.execute("UPDATE ledger SET n = n + 1 WHERE id = %s", (ids[0],))
            two.execute("UPDATE ledger SET n = n + 2 WHERE id = %s", (ids[1],))
        two.commit()  # whose rows lie between those of the one that is open
        if self._random.random() < 0.5:
            self._worker.kill()
        one.execute("DELETE FROM ledger WHERE id = %s", (ids[1],))
        one.commit()
        self._worker.kill()

    def amid_savepoints(self, one: Connection[Any], two: Connection[Any]) -> None:
        key = self._insert(one)
        for number in range(3):
            one.execute("SAVEPOINT s")
            one.execute("UPDATE ledger SET note = 'undone' WHERE id = %s", (key,))
            self._insert(one)
            if number == self._random.randint(0, 2):
                self._ordinary(two)
                self._worker.kill()
            one.execute("ROLLBACK TO s" if number % 2 == 0 else "RELEASE s")
        one.commit()
        self._worker.kill()

    def in_a_swap_of_keys(self, one: Connection[Any], _: Connection[Any]) -> None:
        for _number in range(self._random.randint(3, 12)):
            a, b = self._random.sample(range(1, 9), 2)
            for old, new in ((a, -1_000_000), (b, a), (-1_000_000, b)):
                one.execute("UPDATE pairs SET id = %s, n = n + 1 WHERE id = %s", (new, old))
            one.commit()
            if self._worker.running and self._random.random() < 0.3:
                self._worker.kill()
        self._worker.kill()

    def while_a_table_is_read(self, one: Connection[Any], _: Connection[Any]) -> None:
        """Our reader sends rows, the stream does not."""
        with session.connect(self._spec.dsn) as connection:
            reads.ask(connection, self._spec.name, 1, SnapshotRequest(LEDGER))
        before = self._sent()
        reading = threading.Thread(target=reader.run, args=(self._spec,))
        reading.start()
        wait_until(lambda: self._sent() > before or not reading.is_alive())
        self._worker.kill()
        for _number in range(10):
            self._ordinary(one)
        reading.join()

    def _ordinary(self, connection: Connection[Any]) -> None:
        """Insert, update, delete and insert again of one key, in one transaction."""
        key = self._insert(connection)
        connection.execute("UPDATE ledger SET n = n * 2, note = 'two' WHERE id = %s", (key,))
        if self._random.random() < 0.5:
            connection.execute("DELETE FROM ledger WHERE id = %s", (key,))
            connection.execute("INSERT INTO ledger VALUES (%s, 3, 'again')", (key,))
        victim = self._random.randint(1, self._next)
        connection.execute("DELETE FROM ledger WHERE id = %s", (victim,))
        connection.commit()

    def _insert(self, connection: Connection[Any]) -> int:
        self._next += 1
        connection.execute("INSERT INTO ledger VALUES (%s, %s, 'one')", (self._next, self._next))
        return self._next

    def _copy(self, copy: psycopg.Copy, rows: int) -> None:
        for _ in range(rows):
            self._next += 1
            copy.write_row((self._next, 0, "copied"))

    def _sent(self) -> int:
        return sum(end_offsets(self._spec.kafka_bootstrap, self._topics).values())

    @property
    def _topics(self) -> list[str]:
        return [self._spec.table_topics[LEDGER]]


SHAPES: Final = (
    Script.in_a_commit,
    Script.in_an_open_copy,
    Script.while_a_copy_is_sent,
    Script.between_interleaved_transactions,
    Script.amid_savepoints,
    Script.in_a_swap_of_keys,
    Script.while_a_table_is_read,
)


@pytest.fixture
def spec(database: str, kafka_bootstrap: str, worker: Worker) -> Iterator[CaptureSpec]:
    """Two tables, captured just now: nothing has been sent, and no offset is stored."""
    with psycopg.connect(database, autocommit=True) as connection:
        for name in ("ledger", "pairs"):
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, note text)")
        connection.execute("INSERT INTO pairs SELECT n, n, 'pair' FROM generate_series(1, 8) AS n")
    made = CaptureSpec(
        f"t_{secrets.token_hex(4)}", database, (LEDGER, PAIRS), worker.url, kafka_bootstrap
    )
    source.apply(made)
    yield made
    worker.start() if not worker.running else None
    worker.await_answer()
    source.remove(made, with_topics=True)


def test_all_is_equal_after_each_kill(
    spec: CaptureSpec, worker: Worker, rotation: Rotation
) -> None:
    chosen = rotation.of(SEEDS, SEEDS_PER_RUN)
    print(f"seeds {chosen}")  # noqa: T201
    fold = Fold(spec)
    with ExitStack() as stack:
        # before anything was sent: a big transaction is under way, and no offset is stored
        with psycopg.connect(spec.dsn) as connection:
            connection.execute(
                "INSERT INTO ledger SELECT n, 0, 'big' FROM generate_series(1, 20000) AS n"
            )
        worker.kill()
        worker.start()
        stack.enter_context(guarding(spec))
        reader.run(spec)
        _equal(spec, fold, "start")
        for seed in chosen:
            shape = SHAPES[seed % len(SHAPES)]
            began = time.monotonic()
            Script(spec, worker, seed).run(shape.__name__)
            _equal(spec, fold, f"seed {seed}, {shape.__name__}")
            print(f"seed {seed}: {shape.__name__}, {time.monotonic() - began:.1f} s")  # noqa: T201
    print(f"{fold.events} events")  # noqa: T201
    status = source.status(spec)
    assert status.loss is None


def _equal(spec: CaptureSpec, fold: Fold, after: str) -> None:
    with closing(psycopg.connect(spec.dsn)) as connection:
        for table, rows in fold.rows().items():
            query = f"SELECT id, n, note FROM {table} WHERE id > 0".encode()  # noqa: S608
            here = {key: (n, note) for key, n, note in connection.execute(query).fetchall()}
            assert here == rows, f"{table} differs after {after}"
