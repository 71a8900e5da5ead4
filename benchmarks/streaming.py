"""What the benchmarks of streaming share: servers, one table, our connector and a stock one.

The stock connector is Debezium with its defaults and Kafka Connect's default converter, JSON with
the schema on every record. One default is changed: it begins with the log, as ours does, and not
with a snapshot.
"""

from __future__ import annotations

import base64
import sys
import tempfile
import time
import zlib
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson
import psycopg

from cdc import source
from cdc.broker.client.admin import consumer
from cdc.broker.topics import extent, topics
from cdc.broker.topics.offsets import partitions
from cdc.broker.topics.topics import TopicSpec
from cdc.capture import CaptureSpec
from cdc.connect import supervision
from cdc.connect.connector import stock_config
from cdc.connect.rest import ConnectRest
from cdc.postgres import publication, session, slot
from cdc.postgres.address import DatabaseAddress
from cdc.table import TableName
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from headwater.runtime import Endpoints

TABLE: Final = TableName("public", "orders")
OURS: Final = "ours"
STOCK: Final = "stock"
SIDES: Final = (OURS, STOCK)
DEADLINE_S: Final = 900.0

_CREATE: Final = """
CREATE TABLE orders (
    id bigint PRIMARY KEY,
    customer_id integer NOT NULL,
    status text NOT NULL,
    total numeric(12,2) NOT NULL,
    placed_at timestamptz NOT NULL,
    note text
)
"""
INSERT: Final = """
INSERT INTO orders
SELECT g, 1 + g % 20000,
       (ARRAY['placed', 'paid', 'packed', 'shipped', 'delivered', 'returned'])[1 + g % 6],
       (g % 100000) / 100.0, timestamptz '2026-01-01' + g * interval '1 second',
       CASE WHEN g % 4 = 0 THEN 'gift for order ' || g END
  FROM generate_series({first}, {last}) AS g
"""
_EXPECTED: Final = "SELECT id, status, (total * 100)::bigint, note FROM orders"


@contextmanager
def servers() -> Iterator[Endpoints]:
    """Postgres, Kafka and Connect, for as long as the block runs."""
    wanted = {
        name: Spawned() for name in (ServiceName.POSTGRES, ServiceName.KAFKA, ServiceName.CONNECT)
    }
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        yield runtime.up(RuntimeSpec(home=home, services=wanted, lifeline=True))
        runtime.down(home)


def make_database(endpoints: Endpoints, name: str) -> str:
    """Makes a database with the empty table; returns its DSN."""
    server = endpoints.postgres_dsn or ""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    dsn = urlsplit(server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_CREATE)
    return dsn


@dataclass(frozen=True, slots=True)
class Capture:
    """One of the two connectors, streaming the table into a topic of its own."""

    side: str
    spec: CaptureSpec

    @property
    def topic(self) -> str:
        """Where the table's changes arrive."""
        return TABLE.topic(self.spec.name)

    def start(self) -> None:
        """Makes its slot, which keeps what is committed from now on, and lets it stream."""
        if self.side == OURS:
            source.apply(self.spec)
            return
        spec = self.spec
        names = (*spec.table_topics.values(), spec.heartbeat_topic)
        topics.ensure(spec.kafka_bootstrap, [TopicSpec(name) for name in names])
        with session.connect(spec.dsn) as connection:
            publication.ensure(connection, spec.publication, spec.tables)
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (spec.slot,)
            )
        # named, so that Connect's own default (schemas on) applies instead of our worker's
        converter = "org.apache.kafka.connect.json.JsonConverter"
        config = {
            **stock_config(spec, DatabaseAddress.parse(spec.dsn)),
            "database.password": urlsplit(spec.dsn).password or "",
            "key.converter": converter,
            "value.converter": converter,
            "snapshot.mode": "no_data",
        }
        with closing(ConnectRest(spec.connect_url)) as rest:
            rest.put_config(spec.connector, config)
            supervision.wait_running(rest, spec.connector, spec.deadline_s)
        wait_streaming(spec)

    def pause(self) -> None:
        """Halts it; what is committed meanwhile waits in its slot."""
        if self.side == OURS:
            source.pause(self.spec)
            return
        with closing(ConnectRest(self.spec.connect_url)) as rest:
            rest.stop(self.spec.connector)
            supervision.wait_stopped(rest, self.spec.connector, self.spec.deadline_s)

    def resume(self) -> None:
        """Lets it go on."""
        if self.side == OURS:
            source.resume(self.spec)
            return
        with closing(ConnectRest(self.spec.connect_url)) as rest:
            rest.resume(self.spec.connector)

    def remove(self) -> None:
        """Takes it away with its topic and its slot."""
        source.remove(self.spec, with_topics=True)

    def size_bytes(self) -> int:
        """Returns what its topic takes on disk."""
        return sum(extent.sizes_bytes(self.spec.kafka_bootstrap, [self.topic]).values())


def capture(endpoints: Endpoints, dsn: str, side: str, label: str) -> Capture:
    """Describes a capture; nothing is made yet."""
    name = f"{side}_{label}"
    spec = CaptureSpec(
        name, dsn, (TABLE,), endpoints.connect_url, endpoints.kafka_bootstrap, deadline_s=120.0
    )
    return Capture(side, spec)


def wait_streaming(spec: CaptureSpec) -> None:
    """Waits until the slot is read from."""
    deadline = time.monotonic() + DEADLINE_S
    with session.connect(spec.dsn) as connection:
        while (found := slot.status(connection, spec.slot)) is None or not found.active:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody reads from slot {spec.slot}")
            time.sleep(0.05)


def read(bootstrap: str, topic: str) -> Generator[Any]:
    """Yields all records that a topic has now."""
    with consumer(bootstrap) as client:
        places = partitions(client, [topic])
        ends = client.end_offsets(places)
        client.assign(places)
        client.seek_to_beginning(*places)
        while any(client.position(place) < ends[place] for place in places):
            for records in client.poll(timeout_ms=1000, max_records=20_000).values():
                yield from records


def envelope(value: bytes) -> Mapping[str, Any]:
    """Returns what a record says, with or without its schema around it."""
    fields: dict[str, Any] = orjson.loads(value)
    payload: dict[str, Any] = fields.get("payload", fields)
    return payload


def digest(row: Mapping[str, Any]) -> int:
    """Returns a checksum of a row as either connector writes it."""
    total = row["total"]
    try:
        cents = int(total.replace(".", ""))
    except ValueError:
        cents = int.from_bytes(base64.b64decode(total), "big", signed=True)
    return _digest(row["id"], row["status"], cents, row["note"])


def expected(dsn: str) -> dict[int, int]:
    """Returns the checksum of every row that the table has, by its key."""
    with psycopg.connect(dsn) as connection, connection.cursor("rows") as cursor:
        cursor.itersize = 20_000
        return {row[0]: _digest(*row) for row in cursor.execute(_EXPECTED)}


def say(text: str) -> None:
    """Tells a person who waits how far it is."""
    print(text, file=sys.stderr, flush=True)


def _digest(key: int, status: str, cents: int, note: str | None) -> int:
    return zlib.crc32(f"{key}|{status}|{cents}|{note}".encode())
