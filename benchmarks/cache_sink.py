"""Keyed changes from Kafka to Valkey: through the job, and by a client that writes key by key.

A table's changes lie in its topic, as the connector writes them. Ours is the job itself: Spark
reads them, decodes them, and its sink writes the newest of each key through the guarded script. It
has all before it when it starts, and the time runs from when its queries run until every record is
in the cache; its archive is written meanwhile, as always.
The peer is what one writes by hand: a consumer that parses each record and sets its key, one call
after the other. It guards nothing. The limit is what a client gets that does nothing but send the
same values in pipelines of 64, prepared before: `redis-benchmark -P 64` in short, whose program is
in no package that is used here.

What each has in the cache is compared with the table before a figure counts.
"""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson
import psycopg
import redis

from benchmarks import streaming
from benchmarks.result import Report, rate
from benchmarks.streaming import DEADLINE_S, INSERT, OURS, TABLE, say
from cdc.broker.topics.offsets import end_offsets
from cdc.postgres import catalog
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from headwater.runtime.java.jars import ensure
from projections.definition.views import MirrorView, Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import plan_views
from projections.verification.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.streaming import Capture

PEER_RATIO: Final = 15.0
LIMIT_RATIO: Final = 0.4

_CHANGES: Final = 1_000_000
_CHANGES_QUICK: Final = 100_000
_PEER_PART: Final = 20  # of the records: its rate does not depend on how many they are
_STEP: Final = 5_000
_PIPELINE: Final = 64
_CONNECTIONS: Final = 4
_MEMORY_MB: Final = 2_000
_OK: Final = b"+OK\r\n"
_UPDATE: Final = (
    "UPDATE orders SET status = 'paid', total = total + 1 WHERE id BETWEEN {first} AND {last}"
)
_RUN: Final = (
    "import pickle, sys; from projections.job import driver as job;"
    " sys.exit(job.run(pickle.load(sys.stdin.buffer)))"
)


@dataclass(frozen=True, slots=True)
class _Timed:
    """What one side did.

    Attributes:
        changes: How many.
        seconds: In what time.
        right: Whether what it left is right.
    """

    changes: int
    seconds: float
    right: bool

    @property
    def per_s(self) -> float:
        return self.changes / self.seconds


def run(quick: bool) -> Report:
    """Measures; `quick` takes a tenth of the changes."""
    changes = _CHANGES_QUICK if quick else _CHANGES
    with streaming.servers() as endpoints, _cache() as cache_url:
        bootstrap = endpoints.kafka_bootstrap
        dsn = streaming.make_database(endpoints, "cache_sink")
        capture = streaming.capture(endpoints, dsn, OURS, "cache_sink")
        _change(dsn, capture, bootstrap, changes)
        ours = _ours(dsn, capture, cache_url, changes)
        peer = _peer(capture, cache_url, changes // _PEER_PART)
        limit = _limit(cache_url, changes // 2)
    for name, side in (("the job", ours), ("key by key", peer), ("pipelined SETs", limit)):
        say(f"{name}: {side.changes:,} in {side.seconds:.1f} s, {side.per_s:,.0f}/s")
    name = f"{changes:,} changes from Kafka to Valkey, changes/s"
    return Report(
        "cache_sink",
        ours.right and peer.right and limit.right,
        (
            rate(
                f"{name}, beside key by key",
                ours=ours.per_s,
                peer=peer.per_s,
                limit=limit.per_s,
                target=PEER_RATIO,
            ),
            rate(
                "the same beside pipelined SETs",
                ours=ours.per_s,
                peer=limit.per_s,
                limit=None,
                target=LIMIT_RATIO,
            ),
        ),
    )


@contextmanager
def _cache() -> Iterator[str]:
    """A Valkey with room for all of it, as `headwater up` runs one."""
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        wanted = {ServiceName.CACHE: Spawned(memory_mb=_MEMORY_MB)}
        yield runtime.up(RuntimeSpec(home=home, services=wanted, lifeline=True)).cache_url
        runtime.down(home)


def _change(dsn: str, capture: Capture, bootstrap: str, changes: int) -> None:
    """Inserts rows and updates each of them, and waits until all that is in the topic."""
    capture.start()
    rows = changes // 2
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in (INSERT, _UPDATE):
            for first in range(1, rows + 1, _STEP):
                last = min(first + _STEP - 1, rows)
                connection.execute(statement.format(first=first, last=last).encode())
    deadline = time.monotonic() + DEADLINE_S
    while sum(end_offsets(bootstrap, [capture.topic]).values()) < changes:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{capture.topic} does not reach {changes} records")
        time.sleep(0.1)
    capture.pause()


def _ours(dsn: str, capture: Capture, cache_url: str, changes: int) -> _Timed:
    view = MirrorView("orders", capture.spec.name, TABLE, (), frozenset([Store.CACHE]))
    with psycopg.connect(dsn) as connection:
        plans = plan_views([view], catalog.describe(connection, [TABLE]))
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        spec = JobSpec(
            JobConfig(
                source=capture.spec.name,
                bootstrap=capture.spec.kafka_bootstrap,
                source_dsn=dsn,
                slot=capture.spec.slot,
                home=Path(folder),
                cache_url=cache_url,
                search_url="",
                jars=tuple(ensure("spark", progress=False)),
            ),
            plans=plans,
        )
        with (spec.config.home / "job.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _RUN], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(spec))
        process.stdin.close()
        try:
            seconds = _applied_s(spec.config, process, changes)
        finally:
            process.terminate()
            process.wait(60)
        right = all(report.equal for report in verify(spec, resting=True))
    return _Timed(changes, seconds, right)


def _applied_s(config: JobConfig, process: subprocess.Popen[bytes], changes: int) -> float:
    """Returns how long it took from when the queries ran to when all changes were applied."""
    deadline = time.monotonic() + DEADLINE_S
    began = 0.0
    while True:
        said = _status(config)
        if not began and said.get("state") == "ready":
            began = time.monotonic()
        query = said.get("queries", {}).get(Store.CACHE, {})
        if query.get("records", 0) >= changes:
            say(f"{query['batches']} batches; phases of one, ms: {query['phases_ms']}")
            return time.monotonic() - began
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the job does not get there: {said}")
        time.sleep(0.02)


def _status(config: JobConfig) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads(config.status_file.read_bytes())
    except FileNotFoundError:
        return {}
    return found


def _peer(capture: Capture, cache_url: str, count: int) -> _Timed:
    """Sets the row of each record by a call of its own."""
    rows: dict[str, bytes] = {}
    with redis.Redis.from_url(cache_url) as client:
        records = streaming.read(capture.spec.kafka_bootstrap, capture.topic)
        began = time.monotonic()
        for record, _ in zip(records, range(count), strict=False):
            after = orjson.loads(record.value)["after"]
            key, value = f"peer:{after['id']}", orjson.dumps(after)
            client.set(key, value)
            rows[key] = value
        seconds = time.monotonic() - began
        records.close()
        right = len(rows) == count and client.mget(list(rows)) == list(rows.values())
        client.delete(*rows)
    return _Timed(count, seconds, right)


def _limit(cache_url: str, count: int) -> _Timed:
    """Sends prepared SETs over some connections, each waiting for the answers to its last ones."""
    with redis.Redis.from_url(cache_url) as client:
        value = b"x" * client.strlen(f"{OURS}_cache_sink:orders:1")
        connection = client.connection_pool.get_connection()
        packed = [
            b"".join(
                part
                for number in range(first, min(first + _PIPELINE, count))
                for part in connection.pack_command("SET", f"limit:{number}", value)
            )
            for first in range(0, count, _PIPELINE)
        ]
        client.connection_pool.release(connection)
        with ExitStack() as stack:
            place = urlsplit(cache_url).hostname, urlsplit(cache_url).port
            sockets = [
                stack.enter_context(socket.create_connection(place)) for _ in range(_CONNECTIONS)
            ]
            began = time.monotonic()
            for number, each in enumerate(packed):
                own = sockets[number % _CONNECTIONS]
                if number >= _CONNECTIONS:
                    _await_ok(own, _PIPELINE)
                own.sendall(each)
            for number in range(max(0, len(packed) - _CONNECTIONS), len(packed)):
                last = number == len(packed) - 1
                _await_ok(
                    sockets[number % _CONNECTIONS],
                    (count - 1) % _PIPELINE + 1 if last else _PIPELINE,
                )
            seconds = time.monotonic() - began
        right = client.get(f"limit:{count - 1}") == value
    return _Timed(count, seconds, right)


def _await_ok(connection: socket.socket, count: int) -> None:
    missing = count * len(_OK)
    while missing:
        missing -= len(connection.recv(missing))
