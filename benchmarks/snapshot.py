"""Initial snapshot of one table: our reader beside a stock connector's, on the same servers.

The peer is Debezium with its defaults and Kafka Connect's default converter (JSON with the schema
on every record). Ours reads the table itself while its connector streams; it is timed from its
being asked until the last row is in the topic and noted as done. The limit is `COPY … TO STDOUT` of
the same table.
"""

from __future__ import annotations

import base64
import sys
import tempfile
import time
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson
import psycopg

from benchmarks.result import Report, faster, smaller
from cdc import source
from cdc.broker.client.admin import consumer
from cdc.broker.topics import extent, topics
from cdc.broker.topics.offsets import partitions
from cdc.broker.topics.topics import TopicSpec
from cdc.capture import CaptureSpec
from cdc.connect.connector import stock_config
from cdc.connect.rest import ConnectRest
from cdc.postgres import own_schema, publication, session
from cdc.postgres.address import DatabaseAddress
from cdc.snapshot import reader
from cdc.table import TableName
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headwater.runtime import Endpoints

SECONDS_RATIO: Final = 3.0
BYTES_RATIO: Final = 0.1

_ROWS: Final = 500_000
_ROWS_QUICK: Final = 50_000
_ROWS_WARM: Final = 2_000
_ROUNDS: Final = 2
_DEADLINE_S: Final = 900.0
_TABLE: Final = TableName("public", "orders")
_WARM: Final = TableName("public", "warm")
_STATUSES: Final = ("placed", "paid", "packed", "shipped", "delivered", "returned")

_CREATE: Final = """
CREATE TABLE {table} (
    id bigint PRIMARY KEY,
    customer_id integer NOT NULL,
    status text NOT NULL,
    total numeric(12,2) NOT NULL,
    placed_at timestamptz NOT NULL,
    note text
);
INSERT INTO {table}
SELECT g, 1 + g % 20000, (ARRAY{statuses})[1 + g % 6], (g % 100000) / 100.0,
       timestamptz '2026-01-01' + g * interval '1 second',
       CASE WHEN g % 4 = 0 THEN 'gift for order ' || g END
  FROM generate_series(1, {rows}) AS g;
ANALYZE {table};
"""


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two: how it brings a table into its topic, and how its rows are read."""

    name: str
    bring: Callable[[CaptureSpec, int], None]
    cents: Callable[[Mapping[str, Any]], int]


@dataclass(frozen=True, slots=True)
class _Load:
    """What is read: a table of a database."""

    dsn: str
    table: TableName
    rows: int


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    bytes_on_disk: int
    rows: int
    checksum: int | None


def run(quick: bool) -> Report:
    """Measures; `quick` takes a tenth of the rows and one round."""
    rows = _ROWS_QUICK if quick else _ROWS
    services = {
        name: Spawned() for name in (ServiceName.POSTGRES, ServiceName.KAFKA, ServiceName.CONNECT)
    }
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        endpoints = runtime.up(RuntimeSpec(home=home, services=services, lifeline=True))
        try:
            return _measured(endpoints, rows, rounds=1 if quick else _ROUNDS)
        finally:
            runtime.down(home)


def _measured(endpoints: Endpoints, rows: int, rounds: int) -> Report:
    dsn = _database(endpoints, rows)
    sides = (_Side("stock", _by_stock, _cents_of_bytes), _Side("ours", _by_us, _cents))
    for side in sides:  # classes loaded, code compiled, for both
        _snapshot(endpoints, side, _Load(dsn, _WARM, _ROWS_WARM), "warm", with_checksum=False)
    load, expected = _Load(dsn, _TABLE, rows), _expected(dsn)
    runs: dict[str, list[_Run]] = {side.name: [] for side in sides}
    for number in range(rounds):
        for side in sides:
            found = _snapshot(endpoints, side, load, str(number), with_checksum=number == 0)
            _say(f"{side.name}: {found.seconds:.1f} s, {found.bytes_on_disk / 1e6:.1f} MB")
            runs[side.name].append(found)
    every = [found for side in sides for found in runs[side.name]]
    right = all(found.rows == rows and found.checksum in (None, expected) for found in every)
    copy_s, copy_bytes = _copy_out(dsn)
    seconds = {name: median(found.seconds for found in of) for name, of in runs.items()}
    sizes = {name: median(found.bytes_on_disk for found in of) for name, of in runs.items()}
    return Report(
        "snapshot",
        right,
        (
            faster(
                f"snapshot of {rows:,} rows, seconds",
                ours=seconds["ours"],
                peer=seconds["stock"],
                limit=copy_s,
                target=SECONDS_RATIO,
            ),
            smaller(
                "topic, bytes",
                ours=sizes["ours"],
                peer=sizes["stock"],
                limit=copy_bytes,
                target=BYTES_RATIO,
            ),
        ),
    )


def stock_snapshot(endpoints: Endpoints, dsn: str, table: TableName, rows: int) -> float:
    """Returns the seconds that stock Debezium needs until every row of a table is in Kafka."""
    side = _Side("stock", _by_stock, _cents_of_bytes)
    load = _Load(dsn, table, rows)
    return _snapshot(endpoints, side, load, table.name, with_checksum=False).seconds


def _snapshot(
    endpoints: Endpoints, side: _Side, load: _Load, label: str, *, with_checksum: bool
) -> _Run:
    spec = CaptureSpec(
        f"{side.name}_{label}",
        load.dsn,
        (load.table,),
        endpoints.connect_url,
        endpoints.kafka_bootstrap,
    )
    topics.ensure(
        spec.kafka_bootstrap, source.topic_specs(spec) if side.name == "ours" else _plain(spec)
    )
    with session.connect(load.dsn) as connection:
        own_schema.ensure(connection)
        publication.ensure(connection, spec.publication, spec.captured)
    topic = load.table.topic(spec.name)
    began = time.monotonic()
    side.bring(spec, load.rows)
    seconds = time.monotonic() - began
    size = sum(extent.sizes_bytes(spec.kafka_bootstrap, [topic]).values())
    source.pause(spec)  # the check shall not share the processors
    count, checksum = load.rows, None
    if with_checksum:
        count, checksum = _read(spec.kafka_bootstrap, topic, side)
    source.remove(spec, with_topics=True)
    return _Run(seconds, size, count, checksum)


def _by_stock(spec: CaptureSpec, rows: int) -> None:
    # Named, so that Connect's own default (schemas on) applies instead of our worker's.
    converter = "org.apache.kafka.connect.json.JsonConverter"
    config = {
        **stock_config(spec, DatabaseAddress.parse(spec.dsn)),
        "key.converter": converter,
        "value.converter": converter,
    }
    with closing(ConnectRest(spec.connect_url)) as rest:
        rest.put_config(spec.connector, config)
    _until_there(spec.kafka_bootstrap, spec.tables[0].topic(spec.name), rows)


def _by_us(spec: CaptureSpec, rows: int) -> None:
    source.apply(spec)
    assert reader.run(spec) == 1
    _until_there(spec.kafka_bootstrap, spec.tables[0].topic(spec.name), rows)


def _plain(spec: CaptureSpec) -> list[TopicSpec]:
    return [TopicSpec(name) for name in (*spec.table_topics.values(), spec.heartbeat_topic)]


def _until_there(bootstrap: str, topic: str, rows: int) -> None:
    """Waits until the last row is in the topic."""
    deadline = time.monotonic() + _DEADLINE_S
    with consumer(bootstrap) as client:
        places = partitions(client, [topic])
        while sum(client.end_offsets(places).values()) < rows:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} does not reach {rows} rows")
            time.sleep(0.02)


def _read(bootstrap: str, topic: str, side: _Side) -> tuple[int, int]:
    """Returns the number of rows in a topic and the checksum of their content."""
    count = checksum = 0
    with consumer(bootstrap) as client:
        places = partitions(client, [topic])
        ends = client.end_offsets(places)
        client.assign(places)
        client.seek_to_beginning(*places)
        while any(client.position(place) < ends[place] for place in places):
            for records in client.poll(timeout_ms=1000, max_records=20_000).values():
                for record in records:
                    value = orjson.loads(record.value)
                    row = value.get("payload", value)["after"]
                    checksum += _digest(row["id"], row["status"], side.cents(row), row["note"])
                    count += 1
    return count, checksum


def _digest(key: int, status: str, cents: int, note: str | None) -> int:
    return zlib.crc32(f"{key}|{status}|{cents}|{note}".encode())


def _cents(row: Mapping[str, Any]) -> int:
    return int(row["total"].replace(".", ""))


def _cents_of_bytes(row: Mapping[str, Any]) -> int:
    return int.from_bytes(base64.b64decode(row["total"]), "big", signed=True)


def _expected(dsn: str) -> int:
    query = "SELECT id, status, (total * 100)::bigint, note FROM public.orders"
    with psycopg.connect(dsn) as connection, connection.cursor("rows") as cursor:
        cursor.itersize = 20_000
        return sum(_digest(*row) for row in cursor.execute(query))


def _copy_out(dsn: str) -> tuple[float, int]:
    """Returns the seconds and bytes of the table's plain way out."""
    size = 0
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        began = time.monotonic()
        with cursor.copy("COPY public.orders TO STDOUT") as out:
            for block in out:
                size += len(block)
        return time.monotonic() - began, size


def _database(endpoints: Endpoints, rows: int) -> str:
    server = endpoints.postgres_dsn or ""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE benchmark")
    dsn = urlsplit(server)._replace(path="/benchmark").geturl()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, count in ((_TABLE, rows), (_WARM, _ROWS_WARM)):
            statement = _CREATE.format(table=table, rows=count, statuses=list(_STATUSES))
            connection.execute(statement.encode())
    return dsn


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
