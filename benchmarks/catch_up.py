"""Reading a million events from the beginning, beside `eventsourcing`'s log and beside COPY.

All sides read the same payloads in the order of the log, into objects that a handler could take.
The peer is read twice: by its notification log, as its applications have it, in sections of ten;
and tuned, by its recorder, in pages as large as ours, which nobody has to configure here. The limit
is `COPY … TO STDOUT` of the same columns, its bytes thrown away.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import psycopg
from eventsourcing.application import LocalNotificationLog
from eventsourcing.system import NotificationLogReader

from benchmarks.append import FILL
from benchmarks.appending import PAYLOAD, Peer
from benchmarks.result import Report, faster
from eventstore import EventStore
from eventstore.log import LogPart
from eventstore.postgres.log import PostgresEventLog
from eventstore.postgres.schema import upgrade
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned

if TYPE_CHECKING:
    from collections.abc import Callable

_EVENTS: Final = 1_000_000
_EVENTS_QUICK: Final = 100_000
_ROUNDS: Final = 3
_PAGE: Final = 5_000  # of both
_PEER_RATIO: Final = 5.0
_COPY_RATIO: Final = 0.4

_STOCK: Final = "beside eventsourcing's notification log"
_TUNED: Final = "beside eventsourcing's recorder in pages of 5,000"
_LIMIT: Final = "beside COPY"

_COPY: Final = (
    "COPY (SELECT global_position, tenant, stream, stream_position, type, schema_version,"
    " event_id, data, metadata, tags, correlation_id, causation_id, actor, occurred_at,"
    " recorded_at FROM eventstore.events ORDER BY global_position) TO STDOUT"
)
_FILL_PEER: Final = """
INSERT INTO peer_events (originator_id, originator_version, topic, state)
SELECT md5(stream)::uuid, stream_position, type, convert_to(data::text, 'UTF8')
  FROM eventstore.events ORDER BY global_position
"""


def run(quick: bool) -> Report:
    """Measures; `quick` reads a tenth of the events."""
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        services = {ServiceName.POSTGRES: Spawned()}
        endpoints = runtime.up(RuntimeSpec(home=home, services=services, lifeline=True))
        try:
            return _measured(endpoints.postgres_dsn or "", _EVENTS_QUICK if quick else _EVENTS)
        finally:
            runtime.down(home)


def _measured(dsn: str, events: int) -> Report:
    upgrade(dsn)
    Peer.create(dsn)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(FILL, {"rows": events, "data": PAYLOAD.decode()})
        admin.execute(_FILL_PEER)
        admin.execute("VACUUM ANALYZE")
    log, peer = PostgresEventLog(dsn, page=_PAGE), Peer(dsn)
    store = EventStore(log)
    with closing(log), closing(peer):
        checked = _ours_checked(store, events) and _peers_checked(peer, events)
        sides: dict[str, Callable[[], int]] = {
            "ours": lambda: sum(1 for _ in store.read_all()),
            "tuned": lambda: _read_tuned(peer),
            "copy": lambda: _copy(dsn),
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(_ROUNDS):
            for name in sides if number % 2 else reversed(sides):
                began = time.perf_counter()
                sides[name]()
                found[name].append(time.perf_counter() - began)
        began = time.perf_counter()
        _read_stock(peer)
        stock = time.perf_counter() - began
    ours, tuned, copy = (median(found[name]) for name in ("ours", "tuned", "copy"))
    name, target = f"seconds to read {events:,} events", _PEER_RATIO
    return Report(
        "catch_up",
        checked,
        (
            faster(f"{name}, {_STOCK}", ours=ours, peer=stock, limit=copy, target=target),
            faster(f"{name}, {_TUNED}", ours=ours, peer=tuned, limit=copy, target=1.0),
            faster(f"{name}, {_LIMIT}", ours=ours, peer=copy, limit=copy, target=_COPY_RATIO),
        ),
    )


def _ours_checked(store: EventStore, events: int) -> bool:
    """Whether every event is read once, in order, with its payload."""
    last, places = 0, 0
    for event in store.read_all(LogPart()):
        if event.global_position <= last or event.data != PAYLOAD:
            return False
        last, places = event.global_position, places + 1
    return places == events


def _peers_checked(peer: Peer, events: int) -> bool:
    first = peer.recorder.select_notifications(1, 1)
    return bytes(first[0].state) == PAYLOAD and _read_tuned(peer) == events == _read_stock(peer)


def _read_stock(peer: Peer) -> int:
    reader = NotificationLogReader(LocalNotificationLog(peer.recorder))
    return sum(len(section) for section in reader.select(start=1))


def _read_tuned(peer: Peer) -> int:
    start, count = 0, 0
    while page := peer.recorder.select_notifications(start, _PAGE, inclusive_of_start=False):
        count += sum(1 for _ in page)
        start = page[-1].id
    return count


def _copy(dsn: str) -> int:
    size = 0
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        connection.cursor() as cursor,
        cursor.copy(_COPY) as copy,
    ):
        while chunk := copy.read():
            size += len(chunk)
    return size
