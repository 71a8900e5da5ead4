"""From a commit until its record can be read from Kafka, at 500 changes a second.

Four writers commit one row each in turn and keep their pace whatever the commits take. A record
tells when its transaction was committed; a reader in another process notes when it has it. Both
connectors take turns, each with a slot of its own and nothing else to do.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from benchmarks import streaming
from benchmarks.result import Report, within
from benchmarks.streaming import DEADLINE_S, INSERT, OURS, SIDES, STOCK, say
from cdc.broker.client.admin import consumer
from cdc.broker.topics.offsets import partitions

if TYPE_CHECKING:
    from headwater.runtime import Endpoints

RATE: Final = 500
TARGET_MS: Final = 150.0

_WRITERS: Final = 4
_SECONDS: Final = 30
_SECONDS_QUICK: Final = 8
_WARM_S: Final = 4
_ROUNDS: Final = 2
_PACE_HELD: Final = 0.95


def run(quick: bool) -> Report:
    """Measures each connector for a minute; `quick` for eight seconds."""
    seconds, rounds = (_SECONDS_QUICK, 1) if quick else (_SECONDS, _ROUNDS)
    waits: dict[str, list[float]] = {side: [] for side in SIDES}
    checked = True
    with streaming.servers() as endpoints:
        dsn = streaming.make_database(endpoints, "latency")
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                found, right = _measured(endpoints, dsn, side, number, seconds)
                say(f"{side}: p50 {_at(found, 50):.1f} ms, p99 {_at(found, 99):.1f} ms")
                waits[side] += found
                checked &= right
    return Report(
        "latency",
        checked,
        tuple(
            within(
                f"commit to record, p{percentile}, ms",
                ours=_at(waits[OURS], percentile),
                peer=_at(waits[STOCK], percentile),
                target=TARGET_MS,
            )
            for percentile in (50, 99)
        ),
    )


def _measured(
    endpoints: Endpoints, dsn: str, side: str, number: int, seconds: int
) -> tuple[list[float], bool]:
    """Returns the waits in milliseconds, and whether every change came and the pace was held."""
    changes = RATE * (seconds + _WARM_S)
    first = 1 + changes * (number * len(SIDES) + SIDES.index(side))
    capture = streaming.capture(endpoints, dsn, side, f"latency_{number}")
    capture.start()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    writer = context.Process(target=_write, args=(dsn, first, changes, there), daemon=True)
    with consumer(capture.spec.kafka_bootstrap) as client:
        places = partitions(client, [capture.topic])
        client.assign(places)
        client.seek_to_beginning(*places)
        writer.start()
        seen = _read(client, changes)
    took_s: float = here.recv() if here.poll(DEADLINE_S) else DEADLINE_S
    writer.join()
    capture.remove()
    complete = sorted(seen) == list(range(first, first + changes))
    held = changes / took_s >= RATE * _PACE_HELD
    if not held:
        say(f"the writers came to {changes / took_s:.0f} changes a second only")
    warm = first + RATE * _WARM_S
    return [wait for key, wait in seen.items() if key >= warm], complete and held


def _read(client: Any, changes: int) -> dict[int, float]:
    """Returns how long each change was on its way, in milliseconds, by its key."""
    seen: dict[int, float] = {}
    deadline = time.monotonic() + DEADLINE_S
    while len(seen) < changes and time.monotonic() < deadline:
        polled = client.poll(timeout_ms=100)
        now_us = time.time_ns() / 1e3
        for records in polled.values():
            for record in records:
                change = streaming.envelope(record.value)
                seen[change["after"]["id"]] = (now_us - change["source"]["ts_us"]) / 1e3
    return seen


def _at(waits: list[float], percentile: int) -> float:
    return sorted(waits)[len(waits) * percentile // 100]


def _write(dsn: str, first: int, changes: int, line: Any) -> None:
    """Commits one row after another at a fixed pace; tells how long all of them took, seconds."""
    began = time.monotonic() + 1.0  # all connections are open by then

    def write(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for change in range(number, changes, _WRITERS):
                while (left := began + change / RATE - time.monotonic()) > 0:
                    time.sleep(left)
                key = first + change
                connection.execute(INSERT.format(first=key, last=key).encode())

    threads = [threading.Thread(target=write, args=(number,)) for number in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    line.send(time.monotonic() - began)
