"""A captured database per test, and its topics read to an agreed end."""

from __future__ import annotations

import secrets
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.capture import CaptureSpec
from cdc.change_event import ChangeEvent
from cdc.position import ChangePosition
from cdc.table import TableName
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MARK = -1
"""Key of the row that a test inserts last; with its arrival a topic is read to the end."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A database under capture.

    Attributes:
        spec: What is captured.
        database: Its DSN.
    """

    spec: CaptureSpec
    database: str

    def execute(self, *statements: str) -> None:
        """Runs statements, each a transaction of its own."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def records(self, table: str, *, mark: str = "id", timeout_s: float = 120) -> list[Any]:
        """Inserts the mark and returns the table's records before it, as Kafka has them."""
        name = TableName.parse(table)
        self.execute(f"INSERT INTO {table} ({mark}) VALUES ({MARK})")  # noqa: S608
        key = f'{{"{mark}":{MARK}}}'.encode()
        return self.read(name.topic(self.spec.name), lambda r: r.key == key, timeout_s)

    def read(self, topic: str, is_last: Callable[[Any], bool], timeout_s: float = 120) -> list[Any]:
        """Returns a topic's records from its beginning up to the last, which is left out."""
        from cdc.broker.client.admin import consumer
        from cdc.broker.topics.offsets import partitions

        found: list[Any] = []
        with consumer(self.spec.kafka_bootstrap) as client:
            places = partitions(client, [topic])
            client.assign(places)
            client.seek_to_beginning(*places)

            def ended() -> bool:
                for records in client.poll(timeout_ms=100).values():
                    for record in records:
                        if is_last(record):
                            return True
                        found.append(record)
                return False

            what = f"the last record of {topic}"
            wait_until(ended, lambda: f"{what} after {len(found)}", timeout_s=timeout_s, pause_s=0)
        return found

    def events(self, table: str, *, mark: str = "id", timeout_s: float = 120) -> list[ChangeEvent]:
        """Inserts the mark and returns the table's changes before it."""
        records = self.records(table, mark=mark, timeout_s=timeout_s)
        return [event_of(record) for record in records if record.value is not None]

    def rows(self, table: str) -> dict[Any, dict[str, Any]]:
        """Folds a table's topic into rows by key, `id`, as every sink does, ghosts swept.

        Rows of negative keys are marks, and left out.
        """
        from cdc.postgres import session
        from cdc.snapshot import reads

        name = TableName.parse(table)
        newest: dict[Any, ChangeEvent] = {}
        mark = -2 - secrets.randbelow(2**30)
        self.execute(f"INSERT INTO {table} (id) VALUES ({mark})")  # noqa: S608
        records = self.read(
            name.topic(self.spec.name), lambda r: r.key == f'{{"id":{mark}}}'.encode()
        )
        for event in (event_of(record) for record in records if record.value is not None):
            if event.key is None or event.key["id"] < 0:
                continue
            key = tuple(event.key.values())
            if key not in newest or newest[key].position.version < event.position.version:
                newest[key] = event
        with session.connect(self.database) as connection:
            epoch = max((event.position.epoch for event in newest.values()), default=1)
            whole = [
                ChangePosition.of_read(read.epoch, read.read_lsn).version
                for read in reads.of_source(connection, self.spec.name, epoch)
                if read.table == name and read.done and read.predicate is None and read.read_lsn
            ]
        swept = max(whole, default=0)
        return {
            key: dict(event.after)
            for key, event in newest.items()
            if event.after is not None and event.position.version >= swept
        }


def event_of(record: Any) -> ChangeEvent:
    """Returns the change that a record tells."""
    from cdc.broker.reading.tail import epoch_of

    return ChangeEvent.parse(record.key, record.value, epoch_of(record))


@pytest.fixture
def capture(
    database: str, kafka_bootstrap: str, connect_url: str
) -> Iterator[Callable[..., Captured]]:
    """Captures tables of this test's database, or of the `dsn` it is given; removed afterwards."""
    with capturing(database, kafka_bootstrap, connect_url) as make:
        yield make


@pytest.fixture(scope="module")
def module_database(postgres_dsn: str) -> Iterator[str]:
    """DSN of a database for all tests of a module, each of which has its own tables in it."""
    from tests.fix_services import fresh_database

    with fresh_database(postgres_dsn) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_capture(
    module_database: str, kafka_bootstrap: str, connect_url: str
) -> Iterator[Callable[..., Captured]]:
    """Captures tables of the module's database; removed after its last test."""
    with capturing(module_database, kafka_bootstrap, connect_url) as make:
        yield make


@contextmanager
def capturing(
    database: str, kafka_bootstrap: str, connect_url: str
) -> Iterator[Callable[..., Captured]]:
    """Makes captures, guards them while the block runs, and removes them after it."""
    from cdc import source
    from cdc.postgres.errors import PostgresRefusedError
    from cdc.snapshot import reader

    made: list[CaptureSpec] = []
    watched = ExitStack()

    def make(*tables: str, guarded: bool = True, **settings: Any) -> Captured:
        spec = CaptureSpec(
            name=f"t_{secrets.token_hex(4)}",
            tables=tuple(TableName.parse(table) for table in tables),
            kafka_bootstrap=kafka_bootstrap,
            # most of them only insert into their tables without a key
            **{"dsn": database, "connect_url": connect_url}
            | {"insert_only": frozenset(map(TableName.parse, tables))}
            | settings,
        )
        made.append(spec)
        source.apply(spec)
        if guarded:
            watched.enter_context(guarding(spec))
        wait_until_streaming(spec)
        reader.run(spec)
        return Captured(spec, spec.dsn)

    try:
        yield make
    finally:
        watched.close()
        for spec in made:
            with suppress(PostgresRefusedError):  # its server is gone
                source.remove(spec, with_topics=True)


@contextmanager
def guarding(spec: CaptureSpec, every_s: float = 0.3) -> Iterator[None]:
    """Watches over a capture as `headwater source watch` does: without it none streams again."""
    from cdc.connect.rest import ConnectRest
    from cdc.continuity import Guard
    from cdc.errors import CdcError
    from cdc.postgres import session

    over = threading.Event()

    def watch() -> None:
        guard = Guard(replace(spec, guard_interval_s=2.0))
        with closing(ConnectRest(spec.connect_url, retry_s=0.0)) as rest:
            while not over.wait(every_s):
                with suppress(CdcError, psycopg.Error), session.connect(spec.dsn) as connection:
                    while not over.wait(every_s):
                        guard.look(connection, rest)

    thread = threading.Thread(target=watch, name=f"guard of {spec.name}")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def reading(captured: Captured) -> Iterator[None]:
    """Reads what is asked to be read, as `headwater source watch` does."""
    from cdc.snapshot.reader import keep_reading

    stop = threading.Event()
    thread = threading.Thread(target=keep_reading, args=(captured.spec, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def wait_until_streaming(spec: CaptureSpec) -> None:
    """Once the slot is read from, the snapshot is over: what is committed now is streamed."""
    from cdc.postgres import session, slot

    with session.connect(spec.dsn) as connection:
        wait_until(
            lambda: slot.status(connection, spec.slot),
            "a connector that streams",
            accept=lambda status: status is not None and status.active,
        )
