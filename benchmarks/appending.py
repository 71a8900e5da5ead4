"""Three ways to append the same events: ours, the peer's, and a bare INSERT.

All three run on one Postgres with fsync on, from the same number of processes with a connection
each. A writer appends to streams of its own, one event at a time, expecting the version it made.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid5

import psycopg
from eventsourcing.persistence import IntegrityError, StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

from eventstore.errors import WrongExpectedVersionError
from eventstore.model.event import AppendRequest, NewEvent, StreamAppend
from eventstore.model.event_id import new_event_id
from eventstore.postgres.log import PostgresEventLog

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAMS: Final = 500
PAYLOAD: Final = b'{"note": "' + b"n" * 244 + b'"}'  # 256 bytes
_TYPE: Final = "note.made"
_SPACE: Final = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

CREATE_BARE: Final = """
CREATE SCHEMA IF NOT EXISTS bare;
CREATE TABLE IF NOT EXISTS bare.events (LIKE eventstore.events INCLUDING ALL);
CREATE SEQUENCE IF NOT EXISTS bare.global_position;
ALTER TABLE bare.events
    ALTER COLUMN global_position SET DEFAULT nextval('bare.global_position');
"""
_COLUMNS: Final = (
    "tenant, stream, stream_position, type, schema_version, event_id, data, occurred_at"
)
_INSERT: Final = f"INSERT INTO bare.events ({_COLUMNS}) VALUES (%b, %b, %b, %b, %b, %b, %s, %b)"  # noqa: S608


class Side(Protocol):
    """One way to append, on one connection."""

    def append(self, stream: str, version: int, count: int) -> None:
        """Appends `count` events to a stream that is at `version`."""
        ...

    def refuses(self, stream: str, version: int) -> bool:
        """Returns whether an append that expects a wrong version is refused."""
        ...

    def close(self) -> None:
        """Gives the connection back."""
        ...


class Ours:
    """The event log."""

    def __init__(self, dsn: str) -> None:
        self._log = PostgresEventLog(dsn, connections_max=1)

    def append(self, stream: str, version: int, count: int) -> None:
        """See `Side.append`."""
        now = datetime.now(UTC)
        events = tuple([NewEvent(_TYPE, PAYLOAD, new_event_id(), now) for _ in range(count)])
        self._log.append(AppendRequest((StreamAppend(stream, events, version),)))

    def refuses(self, stream: str, version: int) -> bool:
        """See `Side.refuses`."""
        try:
            self.append(stream, version, 1)
        except WrongExpectedVersionError:
            return True
        return False

    def close(self) -> None:
        """See `Side.close`."""
        self._log.close()


class Peer:
    """`eventsourcing`'s application recorder with its database functions, its fast mode."""

    def __init__(self, dsn: str) -> None:
        place = urlsplit(dsn)
        self._datastore = PostgresDatastore(
            dbname=place.path.strip("/"),
            host=place.hostname or "",
            port=str(place.port),
            user=unquote(place.username or ""),
            password=unquote(place.password or ""),
            pool_size=1,
            max_overflow=0,
            enable_db_functions=True,
        )
        self.recorder = PostgresApplicationRecorder(
            self._datastore, events_table_name="peer_events"
        )

    @classmethod
    def create(cls, dsn: str) -> None:
        """Makes its tables and functions; two at once would trip over each other."""
        made = cls(dsn)
        made.recorder.create_table()
        made.close()

    def append(self, stream: str, version: int, count: int) -> None:
        """See `Side.append`."""
        origin = uuid5(_SPACE, stream)
        self.recorder.insert_events(
            [StoredEvent(origin, version + place, _TYPE, PAYLOAD) for place in range(1, count + 1)]
        )

    def refuses(self, stream: str, version: int) -> bool:
        """See `Side.refuses`."""
        try:
            self.append(stream, version, 1)
        except IntegrityError:
            return True
        return False

    def close(self) -> None:
        """See `Side.close`."""
        self._datastore.close()


class Bare:
    """A prepared INSERT into a table with our columns and indexes: no check but the index's."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)

    def append(self, stream: str, version: int, count: int) -> None:
        """See `Side.append`."""
        rows = [
            ("default", stream, version + place, _TYPE, 1, new_event_id(), PAYLOAD.decode(), _now())
            for place in range(1, count + 1)
        ]
        if count == 1:
            self._connection.execute(_INSERT, rows[0], prepare=True)
            return
        values = ", ".join(["(%b, %b, %b, %b, %b, %b, %s, %b)"] * count)
        sql = f"INSERT INTO bare.events ({_COLUMNS}) VALUES {values}"  # noqa: S608
        self._connection.execute(sql, [value for row in rows for value in row], prepare=True)

    def refuses(self, stream: str, version: int) -> bool:
        """See `Side.refuses`."""
        try:
            self.append(stream, version, 1)
        except psycopg.errors.UniqueViolation:
            return True
        return False

    def close(self) -> None:
        """See `Side.close`."""
        self._connection.close()


def _now() -> datetime:
    return datetime.now(UTC)


SIDES: Final[dict[str, type[Ours | Peer | Bare]]] = {"ours": Ours, "peer": Peer, "bare": Bare}


@contextmanager
def opened(name: str, dsn: str) -> Iterator[Side]:
    """One side for as long as it is used."""
    side = SIDES[name](dsn)
    try:
        yield side
    finally:
        side.close()


def write(side: Side, prefix: str, appends: int, batch: int) -> None:
    """Appends in turns to the streams that begin with a prefix, none of which exists yet."""
    for number in range(appends):
        turn, place = divmod(number, STREAMS)
        side.append(f"{prefix}-{place}", turn * batch, batch)


def writer(dsn: str, number: int, line: Any) -> None:
    """Runs in a process of its own: for each task says that it is ready, waits for the go, writes.

    Args:
        dsn: The database.
        number: Which of the writers it is.
        line: Its end of the pipe to the one who gives the tasks: side, prefix of the streams,
            number of appends, events in each. None ends it.
    """
    while (task := line.recv()) is not None:
        name, prefix, appends, batch = task
        with opened(name, dsn) as side:
            side.append(f"{prefix}x{number}-warm", 0, batch)
            line.send("ready")
            line.recv()
            write(side, f"{prefix}x{number}", appends, batch)
            line.send(time.perf_counter())
