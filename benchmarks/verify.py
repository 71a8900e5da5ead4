"""Verification of a million rows while they are written: how long, how dear, and how often wrong.

The table is captured, read and kept as a Delta table by the job itself. Then rows of it are updated
at a steady rate, and a process of its own verifies the view again and again, as `nice headwater
view verify --budget 0.17` does. Nothing is wrong with the view, so whatever it tells as different
is a false alarm.

What that costs the source is measured on its own: four clients update rows as fast as they can,
in turns with and without a verification beside them, and the share that they lose is the load. The
job rests meanwhile, for its own share of the machine changes with how much is written.
"""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import orjson
import psycopg

from benchmarks import streaming
from benchmarks.result import Report, at_most, smaller
from benchmarks.streaming import DEADLINE_S, INSERT, OURS, TABLE, say
from cdc.lsn import Lsn
from cdc.postgres import catalog
from cdc.snapshot import reader
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from headwater.runtime.java.jars import ensure
from projections.definition.views import MirrorView, Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import plan_views
from projections.publishing import positions
from projections.verification.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS_MAX: Final = 60.0
LOAD_MAX: Final = 0.10
BUDGET: Final = 0.17
"""Share of the time that a verification works, in all that is measured."""


_ROWS: Final = 1_000_000
_ROWS_QUICK: Final = 50_000
_ALARMS_S: Final = 3_600.0
_ALARMS_QUICK_S: Final = 15.0
_WRITES_PER_S: Final = 500
_WRITES_AT_ONCE: Final = 5
_CLIENTS: Final = 4
_HOT_ROWS: Final = 1_000  # the view does not follow them meanwhile: so many keys differ at most
_TURNS: Final = 12
_TURN_S: Final = 8.0
_TURN_QUICK_S: Final = 3.0
_UPDATE: Final = "UPDATE orders SET total = total + 1, status = 'paid' WHERE id = ANY(%s)"
_RUN: Final = (
    "import pickle, sys; from projections.job import driver as job;"
    " sys.exit(job.run(pickle.load(sys.stdin.buffer)))"
)
# what a verification says goes to stdout, a line each; it ends with its parent's pipe
_VERIFY: Final = """
import os, pickle, sys, time
import orjson
from projections.common.throttle import Throttle
from projections.verification.verify import verify
os.nice(10)
spec, budget, resting = pickle.load(sys.stdin.buffer)
while True:
    began, worked = time.monotonic(), time.process_time()
    (report,) = verify(spec, throttle=Throttle(budget), resting=resting)
    told = {
        "seconds": time.monotonic() - began, "worked_s": time.process_time() - worked,
        "rows": report.rows, "moving": report.moving,
        "wrong": report.missing + report.extra + report.different,
        "through": str(report.verified_through),
    }
    print(orjson.dumps(told).decode(), flush=True)
"""


def run(quick: bool) -> Report:
    """Measures; `quick` takes a twentieth of the rows, and watches for alarms for seconds."""
    rows = _ROWS_QUICK if quick else _ROWS
    with (
        streaming.servers() as endpoints,
        _cache() as cache_url,
        tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder,
    ):
        dsn = streaming.make_database(endpoints, "verification")
        capture = streaming.capture(endpoints, dsn, OURS, "verification")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(INSERT.format(first=1, last=rows).encode())
            connection.execute("VACUUM ANALYZE orders")
        capture.start()
        reader.run(capture.spec)
        spec = _spec(capture.spec, dsn, Path(folder), cache_url)
        with _job(spec) as process:
            _await_applied(spec.config, process)
            (first,) = verify(spec)
            told = _watched(spec, dsn, rows, _ALARMS_QUICK_S if quick else _ALARMS_S)
        capture.pause()
        load, without = _load(spec, dsn, rows, _TURN_QUICK_S if quick else _TURN_S)
    alarms = sum(each["wrong"] for each in told)
    moved = sum(each["moving"] for each in told)
    say(f"{len(told)} verifications, {alarms} false alarms, {moved} keys moving")
    return Report(
        "verify",
        first.equal and first.moving == 0 and first.rows == rows and bool(told),
        (
            at_most(
                f"verification of {rows:,} rows under {_WRITES_PER_S} writes/s, s",
                ours=median(each["seconds"] for each in told),
                target=SECONDS_MAX,
            ),
            at_most(
                f"false alarms in {len(told)} verifications under writes", ours=alarms, target=0
            ),
            smaller(
                "what writers lose by a verification beside them, transactions/s",
                ours=without - load,
                peer=without,
                limit=None,
                target=LOAD_MAX,
            ),
        ),
    )


@contextmanager
def _cache() -> Iterator[str]:
    """The cache that every job looks at when it starts."""
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        wanted = {ServiceName.CACHE: Spawned()}
        yield runtime.up(RuntimeSpec(home=home, services=wanted, lifeline=True)).cache_url
        runtime.down(home)


def _spec(capture: Any, dsn: str, home: Path, cache_url: str) -> JobSpec:
    view = MirrorView("orders", capture.name, TABLE, (), frozenset([Store.TABLE]))
    with psycopg.connect(dsn) as connection:
        plans = plan_views([view], catalog.describe(connection, [TABLE]))
    jars = tuple(ensure("spark", progress=False))
    places = capture.kafka_bootstrap, dsn, capture.slot, home, cache_url, "", jars
    return JobSpec(JobConfig(capture.name, *places), plans, views=(view,))


@contextmanager
def _job(spec: JobSpec) -> Iterator[subprocess.Popen[bytes]]:
    """The job, in a process of its own, as `headwater up` runs it."""
    with (spec.config.home / "job.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN], stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    _give(process, spec)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _give(process: subprocess.Popen[bytes], what: object) -> None:
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(what))
    process.stdin.close()


def _await_applied(config: JobConfig, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with psycopg.connect(config.source_dsn, autocommit=True) as connection:
        row: Any = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        wanted = Lsn.parse(row[0])
        while not any(p.applied_through >= wanted for p in positions.read(connection)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((config.home / "job.log").read_text()[-2000:])
            time.sleep(0.2)


def _watched(spec: JobSpec, dsn: str, rows: int, seconds: float) -> list[dict[str, Any]]:
    """What verifications say while rows are updated at a steady rate; at least one."""
    told: list[dict[str, Any]] = []
    stop = threading.Event()
    writer = threading.Thread(target=_write_steadily, args=(dsn, rows, stop))
    writer.start()
    try:
        with _verifying(spec, resting=False) as process:
            assert process.stdout is not None
            deadline = time.monotonic() + seconds
            while not told or time.monotonic() < deadline:
                line = process.stdout.readline()
                if not line:
                    raise RuntimeError("the verification has ended")
                told.append(orjson.loads(line))
                last = told[-1]
                say(
                    f"verified in {last['seconds']:.1f} s, {last['worked_s']:.1f} s of work,"
                    f" {last['moving']} keys moving"
                )
    finally:
        stop.set()
        writer.join()
    return told


@contextmanager
def _verifying(spec: JobSpec, *, resting: bool) -> Iterator[subprocess.Popen[bytes]]:
    """A process that verifies again and again."""
    process = subprocess.Popen(
        [sys.executable, "-c", _VERIFY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    _give(process, (spec, BUDGET, resting))
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _write_steadily(dsn: str, rows: int, stop: threading.Event) -> None:
    draw = random.Random(1)  # noqa: S311  # which rows is no secret
    with psycopg.connect(dsn, autocommit=True) as connection:
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            keys = sorted(draw.sample(range(1, rows + 1), _WRITES_AT_ONCE))
            connection.execute(_UPDATE, (keys,))
            due += _WRITES_AT_ONCE / _WRITES_PER_S


def _load(spec: JobSpec, dsn: str, rows: int, turn_s: float) -> tuple[float, float]:
    """Transactions a second with and without a verification beside them, by turns."""
    found: dict[bool, list[float]] = {False: [], True: []}
    _throughput(dsn, rows, turn_s)  # whatever is cold is warm afterwards
    for turn in range(_TURNS):
        beside = turn % 2 == 1
        if beside:
            with _verifying(spec, resting=True):
                time.sleep(turn_s)  # it loads its libraries
                found[beside].append(_throughput(dsn, rows, turn_s))
        else:
            found[beside].append(_throughput(dsn, rows, turn_s))
        what = "with a verification" if beside else "alone"
        say(f"{found[beside][-1]:,.0f} transactions/s {what}")
    return median(found[True]), median(found[False])


def _throughput(dsn: str, rows: int, seconds: float) -> float:
    """How many rows some clients update in a second, a transaction each."""
    stop, counts = threading.Event(), [0] * _CLIENTS

    def client(number: int) -> None:
        draw = random.Random(number)  # noqa: S311
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute(_UPDATE, ([draw.randrange(1, min(rows, _HOT_ROWS) + 1)],))
                counts[number] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(_CLIENTS)]
    began = time.monotonic()
    for each in clients:
        each.start()
    time.sleep(seconds)
    stop.set()
    for each in clients:
        each.join()
    return sum(counts) / (time.monotonic() - began)
