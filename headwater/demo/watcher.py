"""Readers that know nothing of ours look at one row all the time, and count what nobody should see.

They do what any program would: ask the cache for the place and the row in one transaction, search
by the alias, and open the stable table anew each time.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import opensearchpy
import pyarrow as pa
import redis
from deltalake import DeltaTable, QueryBuilder

from headwater.demo.result import Watched
from projections.documents import key_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.demo.reader import Places
    from headwater.demo.workload import Probe

_EVERY_S: Final = 0.05
_TIMEOUT_S: Final = 15.0


class Watcher(threading.Thread):
    """Reads one row from a store twenty times a second, and counts what nobody should see.

    Args:
        read: Returns the row's counter; None if there is no row.
    """

    def __init__(self, read: Callable[[], int | None]) -> None:
        super().__init__(daemon=True)
        self.found = Watched()
        self._read = read
        self._stopped = threading.Event()

    def run(self) -> None:
        """Reads until stopped."""
        before = 0
        while not self._stopped.wait(_EVERY_S):
            found = self.found
            try:
                count = self._read()
            except Exception as error:  # noqa: BLE001  # whatever a reader would be told
                self.found = replace(found, errors=found.errors + 1, error=type(error).__name__)
                continue
            back = count is not None and count < before
            before = max(before, count or 0)
            self.found = replace(
                found,
                reads=found.reads + 1,
                empties=found.empties + (count is None),
                steps_back=found.steps_back + back,
            )

    def stop(self) -> Watched:
        """Ends the thread; returns what was counted."""
        self._stopped.set()
        self.join(_TIMEOUT_S)
        return self.found


def watchers(places: Places, probe: Probe) -> dict[str, Watcher]:
    """Returns a watcher of the probe's row for each store."""
    key = key_text(list(probe.key.values()))
    return {
        "cache": Watcher(_cache_reader(places, probe, key)),
        "search": Watcher(_search_reader(places, probe, key)),
        "table": Watcher(_table_reader(places, probe)),
    }


def _cache_reader(places: Places, probe: Probe, key: str) -> Callable[[], int | None]:
    client = redis.Redis.from_url(places.cache_url, socket_timeout=_TIMEOUT_S)
    prefix, place = places.cache_prefix, probe.view

    def read() -> int | None:
        nonlocal place
        while True:
            with client.pipeline(transaction=True) as pipeline:
                pipeline.hget(f"{prefix}_current", probe.view)
                pipeline.get(f"{prefix}{place}:{key}")
                current, value = pipeline.execute()
            now = current.decode() if current else probe.view
            if now == place:
                return int(json.loads(value)[probe.column]) if value else None
            place = now

    return read


def _search_reader(places: Places, probe: Probe, key: str) -> Callable[[], int | None]:
    client: Any = opensearchpy.OpenSearch(hosts=[places.search_url], timeout=_TIMEOUT_S)
    body = {"query": {"ids": {"values": [key]}}, "_source": [probe.column]}

    def read() -> int | None:
        hits = client.search(index=probe.view, body=body)["hits"]["hits"]
        return int(hits[0]["_source"][probe.column]) if hits else None

    return read


def _table_reader(places: Places, probe: Probe) -> Callable[[], int | None]:
    wanted = " AND ".join(f"\"{name}\" = '{value}'" for name, value in probe.key.items())
    query = f'SELECT "{probe.column}" AS counted FROM t WHERE {wanted}'  # noqa: S608

    def read() -> int | None:
        engine = QueryBuilder().register("t", DeltaTable(str(places.tables / probe.view)))
        rows = pa.table(engine.execute(query).read_all()).to_pylist()
        return int(rows[0]["counted"]) if rows else None

    return read
