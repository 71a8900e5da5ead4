"""Light traffic over many tables, and how long single changes take to be seen in each store."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

from headwater.demo.freshness import quantile
from headwater.demo.reader import ViewEndpoints
from headwater.demo.workload import Probe
from headwater.platform.platform import Platform
from headwater.project.project import open_project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater.demo.freshness import ProbeReader

_PROBE_EVERY_S: Final = 0.5
_CHANGES_PER_S: Final = 40
_ASK_EVERY_S: Final = {"cache": 0.02, "search": 0.1, "table": 0.25}
_SEEN_WITHIN_S: Final = 120.0
_PROBED: Final = 1
"""The key of the row in each table that probes change."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """From a commit until a reader sees it.

    Attributes:
        p50_s: Half of the changes were seen by then.
        p95_s: 95 of a hundred.
        p99_s: 99 of a hundred.
        samples: How many there were.
    """

    p50_s: float
    p95_s: float
    p99_s: float
    samples: int


@dataclass(frozen=True, slots=True)
class _Change:
    view: str
    count: int
    at_s: float


class Traffic:
    """Changes rows of all tables in turn, and times some of the changes.

    Args:
        folder: The project's.
        dsn: The source.
        views: Each view's table.
    """

    def __init__(self, folder: Path, dsn: str, views: dict[str, str]) -> None:
        config = folder / "headwater.toml"
        platform = Platform(open_project(config), config)
        home, name = platform.project.settings.home, platform.project.source.name
        found = platform.endpoints
        self._places = ViewEndpoints(home / "tables", found.search_url, found.cache_url, f"{name}:")
        self._dsn, self._views = dsn, list(views.items())
        self._stop = threading.Event()
        self._pending: dict[str, list[_Change]] = {store: [] for store in _ASK_EVERY_S}
        self._waits_s: dict[str, list[float]] = {store: [] for store in _ASK_EVERY_S}
        self._failed: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def run(self, seconds: int) -> dict[str, Freshness]:
        """Writes for so long; returns what readers saw, by store.

        Raises:
            RuntimeError: A change was not seen, or a thread failed.
        """
        quiet = threading.Event()
        for store in self._pending:
            self._start(self._watch, store)
        for target in (self._write, self._probe):
            self._start(target, quiet)
        quiet.wait(seconds)
        quiet.set()
        deadline = time.monotonic() + _SEEN_WITHIN_S
        while any(self._pending.values()) and time.monotonic() < deadline and not self._failed:
            time.sleep(0.1)
        if self._failed or any(self._pending.values()):
            raise RuntimeError(f"not seen: {self._pending}, {self._failed}")
        return {store: _freshness(waits) for store, waits in self._waits_s.items()}

    def close(self) -> None:
        """Ends the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], argument: object) -> None:
        def guarded() -> None:
            try:
                target(argument)
            except Exception as error:  # noqa: BLE001  # the run says it
                self._failed.append(error)

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def _write(self, quiet: threading.Event) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            number = 0
            while not (quiet.wait(1 / _CHANGES_PER_S) or self._stop.is_set()):
                _, table = self._views[number % len(self._views)]
                query = f"UPDATE {table} SET amount = amount + 1 WHERE id = {2 + number % 90}"  # noqa: S608
                connection.execute(query.encode())
                number += 1

    def _probe(self, quiet: threading.Event) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            number = 0
            while not (quiet.wait(_PROBE_EVERY_S) or self._stop.is_set()):
                # another table each time, far from the one that is written just now
                view, table = self._views[number * 7 % len(self._views)]
                change = _Change(view, number + 1, time.monotonic())
                query = f"UPDATE {table} SET amount = {change.count} WHERE id = {_PROBED}"  # noqa: S608
                connection.execute(query.encode())
                for pending in self._pending.values():
                    pending.append(change)
                number += 1

    def _watch(self, store: str) -> None:
        readers: dict[str, ProbeReader] = {}
        while not self._stop.wait(_ASK_EVERY_S[store]):
            for change in list(self._pending[store]):
                if change.view not in readers:
                    readers[change.view] = self._reader(store, change.view)
                if (readers[change.view]() or 0) >= change.count:
                    self._waits_s[store].append(time.monotonic() - change.at_s)
                    self._pending[store].remove(change)

    def _reader(self, store: str, view: str) -> ProbeReader:
        probe = Probe(view, {"id": _PROBED}, "amount", "")
        return self._places.probe_readers(probe)[store]


def _freshness(waits_s: list[float]) -> Freshness:
    ordered_ms = sorted(1000 * wait for wait in waits_s)
    p50_s, p95_s, p99_s = (quantile(ordered_ms, share) / 1000 for share in (0.5, 0.95, 0.99))
    return Freshness(p50_s, p95_s, p99_s, len(ordered_ms))
