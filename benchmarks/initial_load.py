"""Initial load of a wide table straight into Delta, beside stock Debezium and Kafka.

Ours copies the table's blocks out by two tasks of Spark under one exported snapshot, taken after
the read point, and writes them as a Delta table of that version; meanwhile the table is written to,
and the changes that the connector streams from the same position on are applied afterwards: what
the view has then must be what the table has. The session is started and has loaded a smaller table
before: in a job that runs it is there. The peer is stock Debezium until its last row is in Kafka,
where the way to a table would only begin. It gets fewer rows: its rate does not depend on how many.
The limit is `COPY … TO STDOUT` of the same table by one session.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.result import Report, rate
from benchmarks.snapshot import stock_snapshot
from cdc import source
from cdc.broker.reading.tail import follow
from cdc.capture import CaptureSpec
from cdc.position import ChangePosition
from cdc.postgres import catalog, session
from cdc.snapshot import read_point
from cdc.snapshot.read_point import ReadPoint
from cdc.table import TableName
from cdc.values import decode, decoder, encoder
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from headwater.runtime.java.jars import ensure
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.job import bulk_load
from projections.job.bulk_load import Load
from projections.job.spark.session import start_session
from projections.planning.job_config import JobConfig
from projections.planning.view_plan import ViewPlan
from projections.stores.delta.arrow import decoded_rows
from projections.stores.delta.source_copy import SourceCopy
from projections.stores.delta.table_sink import TableSink
from projections.verification import source_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from headwater.runtime import Endpoints

RATE: Final = 5.0

_ROWS: Final = 2_000_000
_ROWS_QUICK: Final = 100_000
_PEER_PART: Final = 10
_DEADLINE_S: Final = 900.0
_SAMPLE: Final = 1_000
_TABLE: Final = TableName("public", "events")
_PEERS: Final = TableName("public", "events_peer")

_CREATE: Final = """
CREATE TABLE {table} (
    id bigint PRIMARY KEY, account_id integer NOT NULL, device_id integer NOT NULL,
    kind text NOT NULL, country char(2) NOT NULL, city text, campaign text, referrer text,
    session uuid NOT NULL, amount numeric(12,2) NOT NULL, tax numeric(12,2), discount numeric(5,4),
    quantity smallint NOT NULL, weight double precision, score real, paid boolean NOT NULL,
    first_seen date NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz,
    noted_at timestamp, attributes jsonb, note text, agent text, source_ip inet
);
INSERT INTO {table}
SELECT g, g % 50000, g % 7919, (ARRAY['view', 'cart', 'buy', 'return'])[1 + g % 4],
       (ARRAY['DK', 'DE', 'SE', 'NO'])[1 + g % 4], 'city ' || g % 900,
       CASE WHEN g % 3 = 0 THEN 'spring ' || g % 40 END, 'https://example.org/' || g % 5000,
       md5(g::text)::uuid, (g % 100000) / 100.0, (g % 20000) / 100.0, (g % 10000) / 10000.0,
       g % 100, g / 7.0, (g % 1000) / 8.0, g % 2 = 0, date '2020-01-01' + g % 2000,
       timestamptz '2026-01-01' + g * interval '1 second',
       CASE WHEN g % 5 = 0 THEN timestamptz '2026-06-01' + g * interval '1 second' END,
       timestamp '2026-01-01' + g * interval '1 millisecond',
       jsonb_build_object('n', g % 10, 'tag', 't' || g % 100),
       CASE WHEN g % 4 = 0 THEN 'gift, "wrapped", for ' || g END, 'agent/' || g % 30,
       ('10.0.' || g % 250 || '.' || g % 200)::inet
  FROM generate_series(1, {rows}) AS g;
ANALYZE {table};
"""
_TOTALS: Final = """
SELECT count(*), sum(id), sum(account_id::bigint), sum(quantity::bigint), sum(amount)::text,
       sum(length(note)), count(updated_at), count(*) FILTER (WHERE paid)
  FROM public.events
"""


@dataclass(frozen=True, slots=True)
class _Loaded:
    rows: int
    seconds: float
    right: bool


def run(quick: bool) -> Report:
    """Measures; `quick` takes a twentieth of the rows."""
    rows = _ROWS_QUICK if quick else _ROWS
    services = {
        name: Spawned() for name in (ServiceName.POSTGRES, ServiceName.KAFKA, ServiceName.CONNECT)
    }
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        endpoints = runtime.up(RuntimeSpec(home=home, services=services, lifeline=True))
        try:
            return _measured(endpoints, rows, Path(folder))
        finally:
            runtime.down(home)


def _measured(endpoints: Endpoints, rows: int, folder: Path) -> Report:
    dsn = _database(endpoints, rows)
    peer_rows = max(rows // _PEER_PART, _ROWS_QUICK // 2)
    peer_s = stock_snapshot(endpoints, dsn, _PEERS, peer_rows)
    _say(f"stock Debezium to Kafka: {peer_rows / peer_s:,.0f} rows/s")
    found = _ours(endpoints, dsn, folder / "tables")
    _say(f"straight into Delta: {found.rows / found.seconds:,.0f} rows/s")
    limit = rows / _copy_out_s(dsn)
    name = f"rows per second into a table, {rows:,} rows of 24 columns"
    ours, peer = found.rows / found.seconds, peer_rows / peer_s
    return Report(
        "initial_load",
        found.right and found.rows == rows,
        (rate(name, ours=ours, peer=peer, limit=limit, target=RATE),),
    )


def _ours(endpoints: Endpoints, dsn: str, root: Path) -> _Loaded:
    """Loads while the table is written to, and then applies what was streamed."""
    spec = CaptureSpec("ours", dsn, (_TABLE,), endpoints.connect_url, endpoints.kafka_bootstrap)
    source.apply(spec)
    jars = tuple(ensure("spark", progress=False))
    conf = {"spark.log.level": "ERROR"}
    spark = start_session(JobConfig.of_tables("load", root.parent / "home", jars, conf=conf))
    _warm(spark, dsn, root.parent / "warm")
    with session.connect(dsn) as connection:
        schema = catalog.describe(connection, [_TABLE])[_TABLE]
        topic = _TABLE.topic(spec.name)
        plan = ViewPlan("events", spec.name, topic, schema, schema.key, frozenset({Store.TABLE}))
        with _Writer(dsn):
            began = time.monotonic()
            version = ChangePosition.of_read(1, _position(connection).position).version
            rows = bulk_load.load(spark, Load(SourceCopy(plan, version, dsn), root))
            seconds = time.monotonic() - began
        spark.stop()
        connection.execute("UPDATE events SET note = 'the last' WHERE id = 1")
        wanted = connection.execute(_TOTALS).fetchone()
    sink = TableSink(root)
    sink.apply(plan, list(_changes(spec, plan)))
    sampled = _sampled(dsn, root, plan)
    source.remove(spec, with_topics=True)
    right = wanted == _totals(root / plan.name) and sampled
    return _Loaded(rows or 0, seconds, right)


def _warm(spark: SparkSession, dsn: str, root: Path) -> None:
    """Loads the peer's table."""
    with session.connect(dsn) as connection:
        schema = catalog.describe(connection, [_PEERS])[_PEERS]
    plan = ViewPlan("warm", "ours", "", schema, schema.key, frozenset({Store.TABLE}))
    root.mkdir()
    began = time.monotonic()
    rows = bulk_load.load(spark, Load(SourceCopy(plan, 1, dsn), root)) or 0
    _say(f"the first load of a session: {rows:,} rows in {time.monotonic() - began:.1f} s")


def _position(connection: psycopg.Connection[Any]) -> ReadPoint:
    point = ReadPoint(connection, read_point.oid(connection, _TABLE) or 0)
    while not point.reached():
        time.sleep(0.01)
    return point


class _Writer(threading.Thread):
    """Updates rows all over the table, some of them twice, until the block ends."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._ended = threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        number = 1
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(0.02):
                number = number * 48_271 % 2_147_483_647
                connection.execute(
                    "UPDATE events SET quantity = quantity + 1, note = 'again, ' || %(n)s"
                    " WHERE id IN (%(n)s, 3) OR id = (SELECT max(id) FROM events)",
                    {"n": 2 + number % 50_000},
                )


def _changes(spec: CaptureSpec, plan: ViewPlan) -> Iterator[RowChange]:
    """The newest streamed change of each key, up to the last update."""
    newest: dict[int, Any] = {}
    for event in follow(spec.kafka_bootstrap, [plan.topic], _DEADLINE_S):
        assert event.key is not None
        assert event.after is not None
        newest[event.key["id"]] = event
        if event.after["note"] == "the last":
            break
    decode_row = decoder(plan.schema)
    key = plan.schema.by_name["id"]
    for number, event in newest.items():
        row = decode_row(event.after)
        yield RowChange((decode(key, number),), event.position.version, row, 1)


def _totals(table: Path) -> tuple[Any, ...]:
    rows = DeltaTable(str(table)).to_pyarrow_dataset().to_table()
    return (
        rows.num_rows,
        *(int(pc.sum(rows[name]).as_py()) for name in ("id", "account_id", "quantity")),
        str(pc.sum(rows["amount"]).as_py()),
        int(pc.sum(pc.utf8_length(rows["note"])).as_py()),
        rows.num_rows - rows["updated_at"].null_count,
        int(pc.sum(rows["paid"]).as_py()),
    )


def _sampled(dsn: str, root: Path, plan: ViewPlan) -> bool:
    """Compares some rows value by value, those that were written to among them."""
    condition = f"id <= {_SAMPLE} OR id % {_SAMPLE} = 1"
    with psycopg.connect(dsn, autocommit=True) as connection:
        view = f"CREATE VIEW sample AS SELECT * FROM events WHERE {condition}"  # noqa: S608
        connection.execute(view.encode())
    schema = replace(plan.schema, table=TableName("public", "sample"))
    with source_rows.snapshot(dsn) as connection:
        found = source_rows.documents(connection, replace(plan, schema=schema))
        wanted = {row["id"]: row for row in found}
    rows = DeltaTable(str(root / plan.name)).to_pyarrow_dataset().to_table()
    sample = rows.filter(pc.is_in(rows["id"], value_set=pa.array(list(wanted), pa.int64())))
    encode = encoder(plan.schema)
    return {row["id"]: encode(row) for row in decoded_rows(plan, sample)} == wanted


def _copy_out_s(dsn: str) -> float:
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        began = time.monotonic()
        with cursor.copy("COPY public.events TO STDOUT") as out:
            for _ in out:
                pass
        return time.monotonic() - began


def _database(endpoints: Endpoints, rows: int) -> str:
    server = endpoints.postgres_dsn or ""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE load")
    dsn = urlsplit(server)._replace(path="/load").geturl()
    peer_rows = max(rows // _PEER_PART, _ROWS_QUICK // 2)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, count in ((_TABLE, rows), (_PEERS, peer_rows)):
            connection.execute(_CREATE.format(table=table, rows=count).encode())
    return dsn


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
