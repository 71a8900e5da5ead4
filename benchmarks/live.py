"""From the call of append until a subscription's handler has the event, at 200 events a second.

The writer is a process of its own and keeps its pace whatever the append takes, so a slow moment
counts for every event that came due in it. The handler's checkpoint commits with each batch.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from benchmarks.result import Report, at_most
from eventstore.model.event import AppendRequest, NewEvent, StreamAppend
from eventstore.postgres.log import PostgresEventLog
from eventstore.postgres.schema import upgrade
from eventstore.subscription import Subscription
from eventstore.subscription.runner import SubscriptionRunner
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned

if TYPE_CHECKING:
    from eventstore.model.event import StoredEvent
    from eventstore.subscription import Delivery

RATE: Final = 200
_SECONDS: Final = 60
_SECONDS_QUICK: Final = 10
_WARM_S: Final = 2
_TARGET_MS: Final = 25.0
_DEADLINE_S: Final = 60.0
_STREAMS: Final = 100


def run(quick: bool) -> Report:
    """Measures for a minute; `quick` for ten seconds."""
    seconds = _SECONDS_QUICK if quick else _SECONDS
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        services = {ServiceName.POSTGRES: Spawned()}
        endpoints = runtime.up(RuntimeSpec(home=home, services=services, lifeline=True))
        try:
            return _measured(endpoints.postgres_dsn or "", RATE * (seconds + _WARM_S))
        finally:
            runtime.down(home)


def _measured(dsn: str, events: int) -> Report:
    upgrade(dsn)
    seen: list[tuple[int, float]] = []
    complete = threading.Event()

    def handle(event: StoredEvent, _: Delivery) -> None:
        seen.append((int(event.data), time.time() * 1e3))
        if len(seen) == events:
            complete.set()

    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    writer = context.Process(target=_write, args=(dsn, events, there), daemon=True)
    with SubscriptionRunner(dsn, Subscription(name="live", handler=handle)):
        writer.start()
        due: list[float] = here.recv() if here.poll(events / RATE + _DEADLINE_S) else []
        complete.wait(_DEADLINE_S)
    writer.join()
    checked = sorted(number for number, _ in seen) == list(range(events)) == _range(due)
    warm = RATE * _WARM_S
    waits = sorted(at - due[number] for number, at in seen if number >= warm)
    return Report(
        "live",
        checked,
        (
            at_most("append to handler, p50, ms", ours=_at(waits, 50), target=_TARGET_MS),
            at_most("append to handler, p99, ms", ours=_at(waits, 99), target=_TARGET_MS),
        ),
    )


def _at(waits: list[float], percentile: int) -> float:
    return waits[len(waits) * percentile // 100]


def _range(due: list[float]) -> list[int]:
    return list(range(len(due)))


def _write(dsn: str, events: int, line: Any) -> None:
    """Appends at a fixed pace and tells when each append was due, in milliseconds."""
    due: list[float] = []
    with closing(PostgresEventLog(dsn, connections_max=1)) as log:
        began = time.time()
        for number in range(events):
            at = began + number / RATE
            while (left := at - time.time()) > 0:
                time.sleep(left)
            due.append(at * 1e3)
            event = NewEvent("note.made", str(number).encode(), uuid4(), datetime.now(UTC))
            log.append(AppendRequest((StreamAppend(f"note-{number % _STREAMS}", (event,)),)))
    line.send(due)
