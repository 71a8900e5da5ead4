"""From a row's commit until its window has it: in the cache, and in the table that is read by SQL.

A project as a user has it: a captured table, mirrored into its own table, and a view that counts
its rows in windows of a minute. A writer inserts 200 rows a second, each with the time of its
insert. A reader of each store asks for the windows of this minute and of the last one, and notes
when each count was first there; of every row it is then known how long its window took to count
it. In the end the windows are compared with what the source counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import psycopg
import redis

from benchmarks.result import Report, at_most
from benchmarks.streaming import DEADLINE_S, say
from headwater import runtime
from headwater.demo.freshness import quantile
from headwater.reading import sql
from headwater.runtime import ALL_SPAWNED, RuntimeSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.runtime import Endpoints

RATE: Final = 200
P99_S: Final = 3.0
_SECONDS: Final = 180
_SECONDS_QUICK: Final = 30
_WARM_S: Final = 30
_MINUTE_S: Final = 60
_ASK_EVERY_S: Final = {"cache": 0.02, "table": 0.25}
_INSERT: Final = (
    "INSERT INTO clicks (at) VALUES (clock_timestamp()) RETURNING extract(epoch FROM at)"
)
_TRUTH: Final = (
    "SELECT extract(epoch FROM date_trunc('minute', at))::bigint, count(*) FROM clicks GROUP BY 1"
)
_VIEWS: Final = """
from headwater import Tumbling, source, view

web = source("web", tables=["public.clicks"])
clicks = view.mirror("clicks", web.clicks, to=["table"])
view.aggregate(
    "per_minute", clicks, to=["table", "cache"], window=Tumbling("at", "1 minute"), count="clicks"
)
"""
_SETTINGS: Final = """
[project]
name = "web"
[source.web]
dsn = "{dsn}"
[services.kafka]
address = "{kafka}"
[services.connect]
address = "{connect}"
[services.search]
address = "{search}"
[services.cache]
address = "{cache}"
"""


@dataclass(slots=True)
class _Seen:
    """What a reader of a store has seen: of each minute counts that rise, and when each came."""

    read: Callable[[int], int]
    counts: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    at_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def look(self) -> None:
        """Asks for the counts of this minute and the last."""
        now = int(time.time()) // _MINUTE_S
        for minute in (now - 1, now):
            count = self.read(minute * _MINUTE_S)
            seen = self.counts[minute]
            if count > (seen[-1] if seen else 0):
                seen.append(count)
                self.at_s[minute].append(time.monotonic())

    def waits_s(self, commits: dict[int, list[float]], since_s: float) -> list[float]:
        """How long the window of each row took to count it; infinite if it was not seen.

        Args:
            commits: By minute, when each row was committed.
            since_s: Rows before that are counted and not told of.
        """
        found = []
        for minute, began in commits.items():
            for number, committed_s in enumerate(began, start=1):
                if committed_s < since_s:
                    continue
                place = bisect_left(self.counts[minute], number)
                there = place < len(self.counts[minute])
                found.append(self.at_s[minute][place] - committed_s if there else float("inf"))
        return sorted(found)


def run(quick: bool) -> Report:
    """Measures for three minutes; `quick` for half of one."""
    seconds = _SECONDS_QUICK if quick else _SECONDS
    with (
        tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder,
        _servers() as endpoints,
        _project(endpoints, Path(folder)) as dsn,
    ):
        cache = redis.Redis.from_url(endpoints.cache_url)
        tables = Path(folder) / ".headwater" / "tables"
        readers = {
            "cache": _Seen(lambda minute: _cached(cache, minute)),
            "table": _Seen(lambda minute: _tabled(tables, minute)),
        }
        warm_at_s, commits = _driven(dsn, readers, seconds)
        checked = _equal(dsn, tables)
    measures = []
    for store, seen in readers.items():
        waits_s = seen.waits_s(commits, warm_at_s)
        say(f"{store}: p50 {quantile(waits_s, 0.5)} s of {len(waits_s):,} rows")
        name = f"commit to counted in its window in the {store}, {RATE} rows/s, p99, s"
        measures.append(at_most(name, ours=quantile(waits_s, 0.99), target=P99_S))
    return Report("window_live", checked, tuple(measures))


def _driven(
    dsn: str, readers: dict[str, _Seen], seconds: float
) -> tuple[float, dict[int, list[float]]]:
    """Inserts rows at a steady rate while readers look.

    Returns:
        Since when all is loaded that was used for the first time; by minute, when each row was
        committed.
    """
    stop = threading.Event()

    def look(store: str) -> None:
        while not stop.wait(_ASK_EVERY_S[store]):
            readers[store].look()

    threads = [threading.Thread(target=look, args=(store,)) for store in readers]
    for thread in threads:
        thread.start()
    commits: dict[int, list[float]] = defaultdict(list)
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.monotonic()
        for number in range(int(RATE * (_WARM_S + seconds))):
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
            committed_s = time.monotonic()
            row: Any = connection.execute(_INSERT).fetchone()
            commits[int(row[0]) // _MINUTE_S].append(committed_s)
    time.sleep(_WARM_S)  # until the last of them are there
    stop.set()
    for thread in threads:
        thread.join()
    return began + _WARM_S, commits


def _cached(cache: redis.Redis, start_s: int) -> int:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(start_s))
    value: Any = cache.get(f"web:per_minute:{moment}")
    return int(orjson.loads(value)["clicks"]) if value else 0


def _tabled(tables: Path, start_s: int) -> int:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start_s))
    try:
        found = sql.run(
            f"SELECT clicks FROM per_minute WHERE window_start = '{moment}'",  # noqa: S608
            tables,
        )
    except sql.QueryError:
        return 0  # there is no view yet
    return int(found["clicks"][0].as_py()) if found.num_rows else 0


def _equal(dsn: str, tables: Path) -> bool:
    with psycopg.connect(dsn) as connection:
        wanted: dict[int, int] = dict(connection.execute(_TRUTH).fetchall())
    rows = sql.run("SELECT window_start, clicks FROM per_minute", tables).to_pylist()
    return {int(row["window_start"].timestamp()): row["clicks"] for row in rows} == wanted


@contextmanager
def _servers() -> Iterator[Endpoints]:
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        home = Path(folder) / ".headwater"
        yield runtime.up(RuntimeSpec(home=home, services=ALL_SPAWNED, lifeline=True))
        runtime.down(home)


@contextmanager
def _project(endpoints: Endpoints, folder: Path) -> Iterator[str]:
    """A project that is up; its database."""
    dsn = endpoints.postgres_dsn or ""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE clicks (id bigserial PRIMARY KEY, at timestamptz NOT NULL)"
        )
    (folder / "views.py").write_text(_VIEWS)
    (folder / "headwater.toml").write_text(
        _SETTINGS.format(
            dsn=dsn,
            kafka=endpoints.kafka_bootstrap,
            connect=endpoints.connect_url,
            search=endpoints.search_url,
            cache=endpoints.cache_url,
        )
    )
    _headwater(folder, "up")
    try:
        yield dsn
    finally:
        _headwater(folder, "down")


def _headwater(folder: Path, word: str) -> None:
    command = [sys.executable, "-m", "headwater", word]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
