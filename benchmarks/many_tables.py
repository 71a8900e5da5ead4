"""Ten tables that change, alone and among two hundred: what the idle ones cost.

Two projects are run by turns on the same servers, each with its own database, capture and job. The
one has ten tables, the other two hundred; in both the same ten change, in the same way, and every
table is a view in all three stores. A round is a burst of changes, spread over the ten, timed from
its first commit until all of it is in the slowest store. Then single changes are committed and
waited for in the cache, one after the other, which shows what an almost empty batch costs. Every
view is compared with its source before a figure counts.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson
import psycopg
import redis

from benchmarks.result import Report, grown, rate
from benchmarks.streaming import DEADLINE_S, say, wait_streaming
from cdc import source
from cdc.capture import CaptureSpec
from cdc.postgres import catalog
from cdc.snapshot import reader
from cdc.table import TableName
from headwater import runtime
from headwater.runtime import ALL_SPAWNED, RuntimeSpec
from headwater.runtime.java.jars import ensure
from projections.definition.views import MirrorView, Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import plan_views
from projections.stores.opensearch.client import SearchEngine
from projections.stores.opensearch.sink import index_name
from projections.verification.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.runtime import Endpoints

RATIO: Final = 1.0
NOISE: Final = 0.05
"""Of two runs of the same project, one after the other on a quiet machine."""

_ACTIVE: Final = 10
_TABLES: Final = 200
_TABLES_QUICK: Final = 40
_ROUNDS: Final = 3
_ROUNDS_QUICK: Final = 1
_BURST: Final = 40_000
_BURST_QUICK: Final = 4_000
_SINGLES: Final = 20
_TRANSACTION: Final = 200
_CREATE: Final = "CREATE TABLE t{number:03} (id bigint PRIMARY KEY, amount bigint, note text)"
_CHANGE: Final = """
INSERT INTO t{number:03}
SELECT id, {round}, 'note ' || id FROM generate_series({first}, {last}) AS id
ON CONFLICT (id) DO UPDATE SET amount = excluded.amount
"""
_UPDATE: Final = "UPDATE {table} SET amount = {amount} WHERE id = 1"
_RUN: Final = (
    "import pickle, sys; from projections.job import driver as job;"
    " sys.exit(job.run(pickle.load(sys.stdin.buffer)))"
)


@dataclass(slots=True)
class _Side:
    """A project that is running.

    Attributes:
        tables: How many it has.
        spec: Its job.
        process: The job.
        sent: Changes that were committed so far, those of the first read included.
        bursts_s: What each burst took.
        singles_s: What each single change took to the cache.
    """

    tables: int
    spec: JobSpec
    process: subprocess.Popen[bytes]
    sent: int
    bursts_s: list[float]
    singles_s: list[float]

    def burst(self, number: int, changes: int) -> None:
        """Changes rows of the active tables and waits until every store has all of them."""
        each = changes // _ACTIVE
        began = time.monotonic()
        with psycopg.connect(self.spec.config.source_dsn, autocommit=True) as connection:
            for first in range(1, each + 1, _TRANSACTION):
                last = min(first + _TRANSACTION - 1, each)
                for table in range(_ACTIVE):
                    text = _CHANGE.format(number=table, round=number, first=first, last=last)
                    connection.execute(text.encode())
        self.sent += each * _ACTIVE
        self.await_records()
        self.bursts_s.append(time.monotonic() - began)

    def singles(self) -> None:
        """Commits one change after the other, each once the one before is in the cache."""
        with (
            psycopg.connect(self.spec.config.source_dsn, autocommit=True) as connection,
            redis.Redis.from_url(self.spec.config.cache_url) as cache,
        ):
            for number in range(_SINGLES):
                plan = self.spec.plans[number % _ACTIVE]
                amount = -1 - len(self.singles_s)
                began = time.monotonic()
                update = _UPDATE.format(table=plan.schema.table.name, amount=amount)
                connection.execute(update.encode())
                key = f"{self.spec.config.addresses.cache_prefix}{plan.name}:1"
                while orjson.loads(cache.get(key) or b"{}").get("amount") != amount:
                    self._check(began)
                    time.sleep(0.002)
                self.singles_s.append(time.monotonic() - began)
        self.sent += _SINGLES

    def await_records(self) -> None:
        """Waits until all that was committed has been taken by every store."""
        began = time.monotonic()
        while not self._taken():
            self._check(began)
            time.sleep(0.02)

    def _taken(self) -> bool:
        queries = _status(self.spec.config).get("queries", {})
        views = {plan.name for plan in self.spec.plans}
        return all(
            sum(
                counts["records"]
                for view, counts in queries.get(store, {}).get("views", {}).items()
                if view in views
            )
            >= self.sent
            for store in Store
        )

    def _check(self, began: float) -> None:
        if self.process.poll() is not None or time.monotonic() > began + DEADLINE_S:
            raise RuntimeError(f"the job of {self.tables} tables does not get there")


def run(quick: bool) -> Report:
    """Measures; `quick` has forty tables and a tenth of the changes."""
    tables = _TABLES_QUICK if quick else _TABLES
    rounds, burst = (_ROUNDS_QUICK, _BURST_QUICK) if quick else (_ROUNDS, _BURST)
    checked = True
    found: dict[int, tuple[list[float], list[float]]] = {_ACTIVE: ([], []), tables: ([], [])}
    with _servers() as endpoints:
        for number in range(rounds):
            # by turns: whatever drifts on the machine drifts for both
            for count in (_ACTIVE, tables) if number % 2 == 0 else (tables, _ACTIVE):
                with _project(endpoints, count, number) as side:
                    side.burst(0, burst // 4)  # tables, topics and workers are warm afterwards
                    side.bursts_s.clear()
                    side.burst(1, burst)
                    side.singles()
                    side.await_records()
                    checked &= all(report.equal for report in verify(side.spec))
                say(
                    f"{count} tables: {burst / side.bursts_s[0]:,.0f} changes/s,"
                    f" one change in {median(side.singles_s):.2f} s"
                )
                found[count][0].extend(side.bursts_s)
                found[count][1].extend(side.singles_s)
    (few_s, few_singles), (many_s, many_singles) = found[_ACTIVE], found[tables]
    return Report(
        "many_tables",
        checked,
        (
            rate(
                f"changes/s into three stores, {_ACTIVE} of {tables} tables active,"
                f" beside {_ACTIVE} of {_ACTIVE}",
                ours=burst / median(many_s),
                peer=burst / median(few_s),
                limit=None,
                target=RATIO - NOISE,
            ),
            grown(
                "the same, one change from its commit to the cache, s",
                before=median(few_singles),
                after=median(many_singles),
                target=RATIO + NOISE,
            ),
        ),
    )


@contextmanager
def _servers() -> Iterator[Endpoints]:
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        yield runtime.up(RuntimeSpec(home=home, services=ALL_SPAWNED, lifeline=True))
        runtime.down(home)


@contextmanager
def _project(endpoints: Endpoints, tables: int, number: int) -> Iterator[_Side]:
    """A database with so many tables, captured and kept; all of it is removed afterwards."""
    name = f"many_{tables}_{number}"
    names = tuple(TableName("public", f"t{table:03}") for table in range(tables))
    with ExitStack() as cleanup:
        dsn = _database(endpoints, name, tables)
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        captured = CaptureSpec(
            name, dsn, names, endpoints.connect_url, endpoints.kafka_bootstrap, deadline_s=300.0
        )
        source.apply(captured)
        cleanup.callback(source.remove, captured, with_topics=True)
        wait_streaming(captured)
        reader.run(captured)  # a row of each table
        spec = _spec(captured, endpoints, folder)
        process = _started(spec)
        cleanup.callback(_forget, spec)
        cleanup.callback(_end, process)
        side = _Side(tables, spec, process, tables, [], [])
        side.await_records()
        yield side


def _database(endpoints: Endpoints, name: str, tables: int) -> str:
    server = endpoints.postgres_dsn or ""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    dsn = urlsplit(server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number in range(tables):
            connection.execute(_CREATE.format(number=number).encode())
            first = _CHANGE.format(number=number, round=0, first=0, last=0)
            connection.execute(first.encode())
    return dsn


def _spec(captured: CaptureSpec, endpoints: Endpoints, home: Path) -> JobSpec:
    views = [
        MirrorView(f"{captured.name}_{table.name}", captured.name, table, (), frozenset(Store))
        for table in captured.tables
    ]
    with psycopg.connect(captured.dsn) as connection:
        plans = plan_views(views, catalog.describe(connection, captured.tables))
    return JobSpec(
        JobConfig(
            source=captured.name,
            bootstrap=captured.kafka_bootstrap,
            source_dsn=captured.dsn,
            slot=captured.slot,
            home=home,
            cache_url=endpoints.cache_url,
            search_url=endpoints.search_url,
            jars=tuple(ensure("spark", progress=False)),
            driver_memory_mib=1_024,
        ),
        plans=plans,
        views=tuple(views),
    )


def _started(spec: JobSpec) -> subprocess.Popen[bytes]:
    with (spec.config.home / "job.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN], stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(spec))
    process.stdin.close()
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(120)


def _forget(spec: JobSpec) -> None:
    """Removes the indexes of a project: hundreds of them would slow down whoever comes next."""
    with closing(SearchEngine(spec.config.search_url)) as engine:
        for plan in spec.plans:
            engine.request("DELETE", f"/{index_name(plan)}")


def _status(config: JobConfig) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads(config.status_file.read_bytes())
    except FileNotFoundError:
        return {}
    return found
