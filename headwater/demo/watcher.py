"""Independent readers read one row continuously, and count inconsistent results.

They read as applications do: they get the active version and the row from the cache in one
transaction, search over the alias, and read the view's stable table, whose path no switch changes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import opensearchpy
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from headwater.demo.reader import CacheRow, counter_sql
from headwater.demo.result import ReaderObservations
from projections.changes.documents import key_text
from projections.publishing.published_versions import stable_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater.demo.reader import ViewEndpoints
    from headwater.demo.workload import Probe

_EVERY_S: Final = 0.05
_TIMEOUT_S: Final = 15.0
_KEPT_READS: Final = 200
"""An opened table is read again after this many reads, which takes ten seconds or longer."""


class Watcher(threading.Thread):
    """Reads one row from a store twenty times a second, and counts inconsistent results.

    Args:
        read: Returns the row's counter; None if there is no row.
        there: Returns whether the view exists; polled until it does.
    """

    def __init__(
        self, read: Callable[[], int | None], there: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(daemon=True)
        self.found = ReaderObservations()
        self._read = read
        self._there = there
        self._stopped = threading.Event()

    def run(self) -> None:
        """Reads until it is stopped."""
        while not self._there():
            if self._stopped.wait(_EVERY_S):
                return
        before, began = 0, time.monotonic()
        while not self._stopped.wait(max(0.0, began + _EVERY_S - time.monotonic())):
            began = time.monotonic()
            found = self.found
            try:
                count = self._read()
            except Exception as error:  # noqa: BLE001  # any error that an application would get
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

    def stop(self) -> ReaderObservations:
        """Ends the thread; returns its observations."""
        self._stopped.set()
        self.join(_TIMEOUT_S)
        return self.found


class StableRow:
    """Reads the counter in a view's stable table in three ways, as applications do.

    One opens the table for each read. One keeps a table open and updates it. One keeps an opened
    table for a while without an update: its second read must return the same value as the first.

    Args:
        tables: Folder of the views' tables.
        probe: The row.
    """

    def __init__(self, tables: Path, probe: Probe) -> None:
        self._path = str(stable_path(tables, probe.view))
        self._sql = counter_sql(probe)
        self._reads = 0
        self._followed: DeltaTable | None = None
        self._kept: tuple[DeltaTable, int | None] | None = None

    def there(self) -> bool:
        """Whether the table exists, which is the case after the first publication."""
        return DeltaTable.is_deltatable(self._path)

    def __call__(self) -> int | None:
        """Returns the counter; None if the row does not exist.

        Raises:
            Exception: Any error of the Delta reader.
        """
        self._reads += 1
        if self._reads % _KEPT_READS == 0 and self._kept is not None:
            table, count = self._kept
            self._kept = None
            if (again := self._count(table)) != count:
                return again
        if self._reads % 2 or self._followed is None:
            table = DeltaTable(self._path)
            self._followed = self._followed or table
        else:
            table = self._followed
            table.update_incremental()
        count = self._count(table)
        if self._kept is None and table is not self._followed:
            self._kept = table, count
        return count

    def _count(self, table: DeltaTable) -> int | None:
        answer = QueryBuilder().register("t", table).execute(self._sql).read_all()
        rows = pa.table(answer).to_pylist()
        return int(rows[0]["counted"]) if rows else None


def watchers(places: ViewEndpoints, probe: Probe) -> dict[str, Watcher]:
    """Returns a watcher of the probe's row for each store."""
    stable = StableRow(places.tables, probe)
    return {
        "cache": Watcher(_cache_reader(places, probe)),
        "search": Watcher(_search_reader(places, probe)),
        "table": Watcher(stable, stable.there),
    }


def _cache_reader(places: ViewEndpoints, probe: Probe) -> Callable[[], int | None]:
    row = CacheRow(places, probe, _TIMEOUT_S)

    def read() -> int | None:
        found = row()
        return None if found is None else int(found[probe.column])

    return read


def _search_reader(places: ViewEndpoints, probe: Probe) -> Callable[[], int | None]:
    client: Any = opensearchpy.OpenSearch(hosts=[places.search_url], timeout=_TIMEOUT_S)
    key = key_text(list(probe.key.values()))
    body = {"query": {"ids": {"values": [key]}}, "_source": [probe.column]}

    def read() -> int | None:
        hits = client.search(index=probe.view, body=body)["hits"]["hits"]
        return int(hits[0]["_source"][probe.column]) if hits else None

    return read
