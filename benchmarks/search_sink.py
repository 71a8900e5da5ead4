"""Change records in Kafka to documents in OpenSearch, beside the bulk API fed with prepared ones.

Ours is the streaming query of the job on a session that runs: from its start until its last batch
is in the index, records decoded, keys guarded by their versions. The peer sends the documents that
came of that, ready in memory and without versions, in bodies of the same size to an index with the
same mapping, one after the other as `helpers.bulk` does. The limit is the same by two connections
at once. They take turns, each with an index of its own.

Ours is checked row by row against the source before any figure counts.
"""

from __future__ import annotations

import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import orjson
import psycopg

from benchmarks import streaming
from benchmarks.result import Report, rate
from benchmarks.streaming import DEADLINE_S, INSERT, OURS, TABLE, say
from cdc.broker.topics.offsets import end_offsets
from cdc.postgres import catalog
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from headwater.runtime.java.jars import ensure
from projections.changes.quarantine.write_guard import StoreGuard
from projections.common import spark_checkpoint
from projections.definition.views import MirrorView, Store
from projections.job.active_plans import ActivePlans
from projections.job.schema_watch import TableWatch
from projections.job.spark.session import start_session
from projections.job.streaming_query import BatchContext, prepare_store, start_query
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import plan_views
from projections.stores.opensearch.bulk import BULK_BYTES
from projections.stores.opensearch.client import SearchEngine
from projections.stores.opensearch.mapping import index_body
from projections.stores.opensearch.sink import SearchSink, index_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from benchmarks.streaming import Capture
    from headwater.runtime import Endpoints

RATIO: Final = 0.7
_ROWS: Final = 500_000
_ROWS_QUICK: Final = 60_000
_ROUNDS: Final = 3
_ROUNDS_QUICK: Final = 2
_TRANSACTION_ROWS: Final = 5_000
_SERVERS: Final = (
    ServiceName.POSTGRES,
    ServiceName.KAFKA,
    ServiceName.CONNECT,
    ServiceName.SEARCH,
)


def run(quick: bool) -> Report:
    """Measures; `quick` takes an eighth of the rows."""
    rows, rounds = (_ROWS_QUICK, _ROUNDS_QUICK) if quick else (_ROWS, _ROUNDS)
    with _servers() as endpoints, tempfile.TemporaryDirectory() as folder:
        dsn, captured = _captured(endpoints, rows)
        bench = _Bench(endpoints, _spec(endpoints, dsn, captured, Path(folder)), rows)
        session = start_session(bench.spec.config)
        try:
            bench.ours(session, "warm")
            wanted = _expected(dsn)
            checked, bodies = bench.checked("warm", wanted)
            ours: list[float] = []
            peers: dict[int, list[float]] = {1: [], 2: []}
            for number in range(rounds):
                ours.append(bench.ours(session, f"round_{number}"))
                checked = checked and bench.count(f"round_{number}-v1") == rows
                for connections, taken in peers.items():
                    taken.append(bench.peer(bodies, connections))
        finally:
            session.stop()
    per_s = {n: rows / median(taken) for n, taken in peers.items()}
    return Report(
        "search_sink",
        checked,
        (
            rate(
                f"{rows:,} records of Kafka into OpenSearch, documents/s, beside its bulk API",
                ours=rows / median(ours),
                peer=per_s[1],
                limit=per_s[2],
                target=RATIO,
            ),
        ),
    )


@contextmanager
def _servers() -> Iterator[Endpoints]:
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        wanted = {name: Spawned() for name in _SERVERS}
        yield runtime.up(RuntimeSpec(home=home, services=wanted, lifeline=True))
        runtime.down(home)


def _captured(endpoints: Endpoints, rows: int) -> tuple[str, Capture]:
    dsn = streaming.make_database(endpoints, "search")
    captured = streaming.capture(endpoints, dsn, OURS, "search")
    captured.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for first in range(1, rows + 1, _TRANSACTION_ROWS):
            last = first + _TRANSACTION_ROWS - 1
            connection.execute(INSERT.format(first=first, last=last).encode())
    deadline = time.monotonic() + DEADLINE_S
    while sum(end_offsets(endpoints.kafka_bootstrap, [captured.topic]).values()) < rows:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{captured.topic} does not reach {rows} records")
        time.sleep(0.1)
    captured.pause()
    return dsn, captured


def _spec(endpoints: Endpoints, dsn: str, captured: Capture, home: Path) -> JobSpec:
    name = captured.spec.name
    view = MirrorView("orders", name, TABLE, (), frozenset([Store.SEARCH]))
    with psycopg.connect(dsn) as connection:
        plans = plan_views([view], catalog.describe(connection, [TABLE]))
    return JobSpec(
        JobConfig(
            source=name,
            bootstrap=endpoints.kafka_bootstrap,
            source_dsn=dsn,
            slot=captured.spec.slot,
            home=home,
            cache_url="",
            search_url=endpoints.search_url,
            jars=tuple(ensure("spark", progress=False)),
        ),
        plans=plans,
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    endpoints: Endpoints
    spec: JobSpec
    rows: int

    def ours(self, session: SparkSession, name: str) -> float:
        """Returns the seconds that the job's query takes for all records, into a new index."""
        (plan,) = self.spec.plans
        spec = replace(
            self.spec,
            config=replace(self.spec.config, home=self.spec.config.home / name),
            plans=(replace(plan, name=name),),
        )
        spark_checkpoint.adopt(spec.config.checkpoint(Store.SEARCH).parent)
        prepare_store(session, spec, Store.SEARCH)
        done = threading.Event()
        applied: list[int] = []

        def count(_: int, counters: list[dict[str, Any]]) -> None:
            applied.extend(row["applied"] for row in counters)
            if sum(applied) >= self.rows:
                done.set()

        guard = StoreGuard(spec.config.ledger, Store.SEARCH)
        context = BatchContext(guard, ActivePlans(spec.plans), TableWatch(spec), lambda _: None)
        began = time.monotonic()
        query = start_query(session, spec, Store.SEARCH, context, count)
        try:
            while not done.wait(0.05):
                if not query.isActive or time.monotonic() > began + DEADLINE_S:
                    raise TimeoutError(f"the query came to {sum(applied)} records")
            took_s = time.monotonic() - began
        finally:
            query.stop()
            context.guard.close()
            context.tables.close()
        say(f"ours: {self.rows / took_s:,.0f} documents/s")
        return took_s

    def checked(self, name: str, wanted: Mapping[int, int]) -> tuple[bool, list[bytes]]:
        """Compares an index with the source; returns its documents as the peer sends them."""
        (plan,) = self.spec.plans
        found: dict[int, int] = {}
        bodies: list[bytes] = []
        lines: list[bytes] = []
        size = 0
        with closing(SearchSink(self.endpoints.search_url)) as sink:
            for row in sink.documents(replace(plan, name=name)):
                found[int(str(row["id"]))] = streaming.digest(row)
                action = orjson.dumps({"index": {"_id": str(row["id"])}})
                lines += (action, orjson.dumps(row))
                size += len(lines[-1]) + len(lines[-2]) + 2
                if size >= BULK_BYTES:
                    bodies.append(b"\n".join(lines) + b"\n")
                    lines, size = [], 0
        if lines:
            bodies.append(b"\n".join(lines) + b"\n")
        return found == wanted, bodies

    def peer(self, bodies: list[bytes], connections: int) -> float:
        """Returns the seconds that the bulk API takes for prepared documents, into a new index."""
        (plan,) = self.spec.plans
        named = replace(plan, name="peer")
        index = index_name(named)
        with closing(SearchEngine(self.endpoints.search_url)) as engine:
            engine.request("PUT", f"/{index}", index_body(named))

            def send(body: bytes) -> int:
                return sum(answer["status"] > _CREATED for answer in engine.bulk(index, [body]))

            began = time.monotonic()
            with ThreadPoolExecutor(connections) as pool:
                failed = sum(pool.map(send, bodies))
            took_s = time.monotonic() - began
            if failed or self.count(index) != self.rows:
                raise ValueError(f"{failed} documents of the peer's were refused")
            engine.request("DELETE", f"/{index}")
        say(f"bulk API, {connections} connections: {self.rows / took_s:,.0f} documents/s")
        return took_s

    def count(self, index: str) -> int:
        """Returns how many documents an index has."""
        with closing(SearchEngine(self.endpoints.search_url)) as engine:
            engine.request("POST", f"/{index}/_refresh")
            return int(engine.request("GET", f"/{index}/_count")["count"])


_CREATED: Final = 201


def _expected(dsn: str) -> dict[int, int]:
    return streaming.expected(dsn)
