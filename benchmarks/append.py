"""Appends a second: ours beside `eventsourcing` and beside a bare INSERT, at 1, 8 and 32 writers.

Also batches of a hundred, commands for asyncio, and what an append costs when the store has grown a
thousandfold.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg

from benchmarks.appending import CREATE_BARE, PAYLOAD, SIDES, Peer, opened, write, writer
from benchmarks.commands import concurrent_commands
from benchmarks.result import Measure, Report, grown, rate
from eventstore.postgres.schema import upgrade
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned

_PEER_RATIO: Final = {1: 1.3, 8: 2.0, 32: 2.0}
_BARE_RATIO: Final = 0.8
_BATCH: Final = 100
_BATCH_RATIO: Final = 0.7
_GROWTH: Final = 1.15
_SMALL: Final = 10_000
_APPENDS: Final = {1: 3_000, 8: 8_000, 32: 9_600}
_ROUNDS: Final = 5
_EACH: Final = 100  # events of a stream that was filled in bulk

FILL: Final = """
INSERT INTO eventstore.events
    (global_position, tenant, stream, stream_position, type, schema_version, event_id, data,
     occurred_at)
SELECT nextval('eventstore.global_position'), 'default', 'bulk-' || g %% (%(rows)s / 100),
       1 + g / (%(rows)s / 100), 'note.made', 1, uuidv7(), %(data)s, now()
  FROM generate_series(0, %(rows)s - 1) AS g
"""


def run(quick: bool) -> Report:
    """Measures; `quick` takes a tenth of the work and two rounds."""
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        services = {ServiceName.POSTGRES: Spawned()}
        endpoints = runtime.up(RuntimeSpec(home=home, services=services, lifeline=True))
        try:
            return _measured(endpoints.postgres_dsn or "", quick=quick)
        finally:
            runtime.down(home)


def _measured(dsn: str, *, quick: bool) -> Report:
    upgrade(dsn)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(CREATE_BARE)
    Peer.create(dsn)
    checked = _checked(dsn)
    share, rounds = (10, 2) if quick else (1, _ROUNDS)
    results: list[Measure] = []
    for count, target in _PEER_RATIO.items():
        with closing(_Writers(dsn, count)) as writers:
            rates = writers.rates(_APPENDS[count] // share, 1, rounds)
            results += _beside(count, rates, target)
            if count == 1:
                rates = writers.rates(400 // share, _BATCH, rounds, ("ours", "bare"))
                results.append(_in_batches(rates))
    right, commands = concurrent_commands(dsn, rounds)
    results.append(commands)
    checked = checked and right and _contiguous(dsn)
    results.append(_growth(dsn, 1_000_000 if quick else 10_000_000, 3_000 // share))
    return Report("append", checked, tuple(results))


def _beside(count: int, rates: dict[str, float], target: float) -> list[Measure]:
    ours, peer, bare = rates["ours"], rates["peer"], rates["bare"]
    name = f"appends of 256 B a second, {count} writer{'s' * (count > 1)}"
    return [
        rate(f"{name}, beside eventsourcing", ours=ours, peer=peer, limit=bare, target=target),
        rate(f"{name}, beside INSERT", ours=ours, peer=bare, limit=bare, target=_BARE_RATIO),
    ]


def _in_batches(rates: dict[str, float]) -> Measure:
    return rate(
        "events a second in batches of 100, beside one INSERT of 100 rows",
        ours=rates["ours"],
        peer=rates["bare"],
        limit=rates["bare"],
        target=_BATCH_RATIO,
    )


def _checked(dsn: str) -> bool:
    """Whether each side stores what it is given and refuses a version that is taken."""
    right = True
    for name in SIDES:
        with opened(name, dsn) as side:
            write(side, "check", 1_000, 2)
            right = right and side.refuses("check-0", 1)
    with psycopg.connect(dsn) as admin:
        for table in ("eventstore.events", "peer_events", "bare.events"):
            count = admin.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
            right = right and count == (2_000,)
    return right


def _contiguous(dsn: str) -> bool:
    """Whether every stream of ours has all its positions, in the order of the log."""
    with psycopg.connect(dsn) as admin:
        broken = admin.execute(
            "SELECT count(*) FROM (SELECT stream FROM eventstore.events GROUP BY stream"
            " HAVING max(stream_position) <> count(*)"
            " OR array_agg(stream_position ORDER BY global_position)"
            " <> array_agg(stream_position ORDER BY stream_position)) AS streams"
        ).fetchone()
    return broken == (0,)


class _Writers:
    """Processes that write at the same time, each over a connection of its own."""

    def __init__(self, dsn: str, count: int) -> None:
        self._dsn = dsn
        self._lines: list[Any] = []
        context = multiprocessing.get_context("spawn")
        for number in range(count):
            here, there = context.Pipe()
            context.Process(target=writer, args=(dsn, number, there), daemon=True).start()
            self._lines.append(here)

    def rates(
        self, appends: int, batch: int, rounds: int, sides: tuple[str, ...] = tuple(SIDES)
    ) -> dict[str, float]:
        """Events a second of each side: the median over rounds, their order turned each time."""
        found: dict[str, list[float]] = {name: [] for name in sides}
        each = appends // len(self._lines)
        for number in range(rounds):
            for name in sides if number % 2 else reversed(sides):
                prefix = f"w{len(self._lines)}b{batch}r{number}"
                seconds = self._seconds(name, prefix, each, batch)
                found[name].append(each * len(self._lines) * batch / seconds)
        return {name: median(rates) for name, rates in found.items()}

    def _seconds(self, *task: Any) -> float:
        """From the go until the last of the writers is done."""
        for line in self._lines:
            line.send(task)
        for line in self._lines:
            line.recv()
        with psycopg.connect(self._dsn, autocommit=True) as admin:
            admin.execute("CHECKPOINT")  # nobody pays for what another has left
        began = time.perf_counter()
        for line in self._lines:
            line.send("go")
        return float(max(line.recv() for line in self._lines) - began)

    def close(self) -> None:
        """Ends the processes."""
        for line in self._lines:
            line.send(None)


def _growth(dsn: str, rows: int, appends: int) -> Measure:
    """Cost of an append to a store with many events against one with few."""
    small = _cost(dsn, _SMALL, appends)
    large = _cost(dsn, rows, appends)
    return grown(
        f"microseconds of an append at {rows:,} events against {_SMALL:,}",
        before=small,
        after=large,
        target=_GROWTH,
    )


def _cost(dsn: str, rows: int, appends: int) -> float:
    """Median microseconds of an append among `rows` events, to streams of a hundred each."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("SET eventstore.compacting = 'on'")
        admin.execute("TRUNCATE eventstore.events")
        admin.execute("SET synchronous_commit = off")
        admin.execute(FILL, {"rows": rows, "data": PAYLOAD.decode()})
        admin.execute("VACUUM ANALYZE eventstore.events")
        admin.execute("CHECKPOINT")
    streams = rows // _EACH
    turns: dict[int, int] = {}
    took: list[float] = []
    with opened("ours", dsn) as side:
        for number in range(appends):
            place = number * max(1, streams // appends) % streams
            began = time.perf_counter()
            side.append(f"bulk-{place}", _EACH + turns.get(place, 0), 1)
            took.append((time.perf_counter() - began) * 1e6)
            turns[place] = turns.get(place, 0) + 1
    return median(took)
