"""A view is rebuilt while traffic runs, shown and taken back, again and again, while readers count.

The readers do what a program would that knows nothing of ours: they ask the cache for the place and
the row in one transaction, search by the alias, and open the stable table anew each time. Now and
then whoever moves them is killed, and the job has to do the rest.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import opensearchpy
import pyarrow as pa
import redis
from deltalake import DeltaTable, QueryBuilder

from headwater.demo.errors import RebuildError
from headwater.demo.result import Rebuilt, Watched
from headwater.versions import Versions
from projections.documents import key_text
from projections.rebuild import Filling
from projections.view import MirrorView

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headwater.demo.freshness import FreshnessMeter
    from headwater.demo.reader import Places
    from headwater.demo.workload import Probe
    from headwater.platform import Platform

SWITCHES: Final = 20
KILLED_EVERY: Final = 5
"""Of so many switches one is given to a process that is killed."""

_SEED: Final = 20
_SHARE: Final = 0.5
_EVERY_S: Final = 0.05
_BUILT_S: Final = 240.0
_FINISHED_S: Final = 60.0
_KILL_WITHIN_S: Final = 4.0
_POLL_S: Final = 0.1
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


@dataclass(slots=True)
class Rebuilding:
    """One rebuild, and what is seen of it.

    Attributes:
        platform: Where.
        probe: The row that is read; its view is rebuilt.
        column: Column that the view's new definition leaves out.
        places: Where the stores are.
        meter: Measures freshness meanwhile.
        say: Told of each step.
    """

    platform: Platform
    probe: Probe
    column: str
    places: Places
    meter: FreshnessMeter
    say: Callable[[str], None]
    _random: random.Random = field(default_factory=lambda: random.Random(_SEED))  # noqa: S311

    def run(self, traffic_began: float) -> Rebuilt:
        """Rebuilds, compares, shows and takes back; returns what readers saw.

        Args:
            traffic_began: Moment of `time.monotonic` when traffic began.

        Raises:
            RebuildError: The version was not built, or differs.
            ProjectionError: A step was refused.
        """
        name, versions = self.probe.view, Versions(self.platform)
        declared = self.platform.project.declarations.views[name]
        if not isinstance(declared, MirrorView):
            raise RebuildError(f"view {name} is no mirror")
        wanted = replace(declared, left_out=(*declared.left_out, self.column))
        watchers = {store: Watcher(read) for store, read in self._readers().items()}
        for watcher in watchers.values():
            watcher.start()
        began = time.monotonic()
        self.say(f"[yellow]rebuild[/]  {name}, without its column {self.column}")
        version = versions.rebuild(name, filling=Filling(_SHARE), definition=wanted)
        built_s = time.monotonic() - began
        replayed = version.replayed
        if replayed is None:
            raise RebuildError(f"version {version.number} of view {name} was not filled")
        compared = versions.compare(name)
        if not compared.same:
            raise RebuildError(f"version {version.number} of view {name} differs from the other")
        self.say(
            f"[yellow]held[/]     version {version.number}, {replayed.records:,} changes, after"
            f" {built_s:.1f} s; the same at {compared.at}"
        )
        killed = self._switch(versions, name)
        seen = {store: watcher.stop() for store, watcher in watchers.items()}
        ended = time.monotonic()
        self.say(f"[yellow]switched[/] {SWITCHES} times, {killed} of them killed on the way")
        return Rebuilt(
            view=name,
            version=version.number,
            changes=replayed.records,
            built_s=round(built_s, 1),
            explained=dict(compared.explained),
            switches=SWITCHES,
            killed=killed,
            watched=seen,
            before=self.meter.within(traffic_began, began),
            meanwhile=self.meter.within(began, ended),
        )

    def _switch(self, versions: Versions, name: str) -> int:
        """Moves readers to and fro; they see the new version in the end. Returns the kills."""
        killed = 0
        for number in range(1, SWITCHES + 1):
            back = self._shown(versions, name) != 1
            if number % KILLED_EVERY == 0:
                self._killed("rollback" if back else "cutover", name)
                killed += 1
            elif back:
                versions.rollback(name)
            else:
                versions.cutover(name)
            self._finished(versions)
        if self._shown(versions, name) == 1:
            versions.cutover(name)
        return killed

    def _killed(self, verb: str, name: str) -> None:
        """Has a process of its own move readers, and kills it at some moment."""
        config, home = self.platform.config, self.platform.project.settings.home
        words = ("view", verb, name, "--config", str(config), "--home", str(home))
        with subprocess.Popen(
            [sys.executable, "-m", "headwater", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                process.wait(self._random.uniform(0.5, _KILL_WITHIN_S))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)

    @staticmethod
    def _finished(versions: Versions) -> None:
        """Waits until no switch is left halfway: the job ends what somebody else has begun."""
        deadline = time.monotonic() + _FINISHED_S
        while any(version.switching for version in versions.all()):
            if time.monotonic() > deadline:
                raise RebuildError("a switch was not finished", detail=f"{_FINISHED_S:.0f} s")
            time.sleep(_POLL_S)

    @staticmethod
    def _shown(versions: Versions, name: str) -> int:
        every = versions.all()
        return next(v.number for v in every if v.view == name and v.state == "current")

    def _readers(self) -> dict[str, Callable[[], int | None]]:
        key = key_text(list(self.probe.key.values()))
        return {
            "cache": _cache_reader(self.places, self.probe, key),
            "search": _search_reader(self.places, self.probe, key),
            "table": _table_reader(self.platform.project.settings.home / "views", self.probe),
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


def _table_reader(views: Path, probe: Probe) -> Callable[[], int | None]:
    wanted = " AND ".join(f"\"{name}\" = '{value}'" for name, value in probe.key.items())
    query = f'SELECT "{probe.column}" AS counted FROM t WHERE {wanted}'  # noqa: S608

    def read() -> int | None:
        engine = QueryBuilder().register("t", DeltaTable(str(views / probe.view)))
        rows = pa.table(engine.execute(query).read_all()).to_pylist()
        return int(rows[0]["counted"]) if rows else None

    return read
