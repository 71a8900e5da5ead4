"""A mirror rebuilt from the archive of its source, in each of the three stores.

The archive is as the job leaves one, with inserts, skewed updates and deletes. Ours replays it in
tasks of one process, as the command does: of each key the newest record is found and written,
guarded by its version, with a memory of what was deleted. What each store has at the end is
compared row by row with what the changes come to before a figure counts; the stores take turns,
each alone on the machine.

The peers are bytewax, pathway and quixstreams, each in an environment of its own that is made for
the run; see `rebuild_peers`. They fill a cache, are given the records as lines of a file or in a
topic, ready to be parsed, and guard nothing. Their rows are counted as well. They are timed for a
part of the records, as their rate does not depend on how many they are, and without their start.
The fastest of them counts. Without a network there is no peer.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import redis
from deltalake import DeltaTable

from benchmarks import change_archive, rebuild_peers
from benchmarks.change_archive import PLAN
from benchmarks.peer import run_peer
from benchmarks.result import Report, at_least, rate
from benchmarks.streaming import say
from cdc.values import encoder
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from projections.archive.rebuilding.engine import TaskEngine
from projections.archive.rebuilding.own_tasks import OwnTasks
from projections.archive.replay import replay
from projections.archive.table import record_value
from projections.archive.task import ReplayTarget
from projections.definition.views import Store
from projections.planning.job_config import StoreAddresses
from projections.stores.delta.arrow import decoded_rows
from projections.stores.delta.table_sink import TableSink
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.change_archive import ChangeArchive
    from benchmarks.result import Measure
    from projections.changes.sink import Sink

PEER_RATIO: Final = 3.0
TARGETS: Final = {"table": 100_000.0, "cache": 25_000.0, "search": 8_000.0}

_CHANGES: Final = 5_000_000
_CHANGES_QUICK: Final = 500_000
_CHANGES_PER_KEY: Final = 5
_CHANGES_PER_WRITE: Final = {Store.TABLE: 100_000, Store.CACHE: 10_000, Store.SEARCH: 20_000}
_PEER_PART: Final = 10
_MEMORY_MB: Final = 4_000


@dataclass(frozen=True, slots=True)
class _Timed:
    """What one side did.

    Attributes:
        per_s: Changes of the archive in a second.
        right: Whether what it left is right.
    """

    per_s: float
    right: bool


def run(quick: bool) -> Report:
    """Measures; `quick` takes a tenth of the changes."""
    changes = _CHANGES_QUICK if quick else _CHANGES
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        place = Path(folder)
        made = change_archive.make(place / "archive", changes, changes // _CHANGES_PER_KEY)
        expected = _expected(made)
        found = {"table": _table(made, place / "tables")}
        with _server(place / "cache", ServiceName.CACHE) as endpoints:
            url = endpoints.cache_url
            addresses = StoreAddresses(place / "cache-tables", "", url, "")
            found["cache"] = _ours(made, Store.CACHE, addresses, expected)
            redis.Redis.from_url(url).flushall()
            peers = _peers(made, place, url)
        with _server(place / "search", ServiceName.SEARCH) as endpoints:
            url = endpoints.search_url
            addresses = StoreAddresses(place / "search-tables", url, "", "")
            found["search"] = _ours(made, Store.SEARCH, addresses, expected)
    for name, side in found.items():
        say(f"{name}: {side.per_s:,.0f} changes/s, {'right' if side.right else 'WRONG'}")
    measures: list[Measure] = [
        at_least(
            f"{changes:,} changes of an archive to a mirror in the store {name}, changes/s",
            ours=side.per_s,
            target=TARGETS[name],
        )
        for name, side in found.items()
    ]
    for name, side in peers.items():
        say(f"{name} to the cache: {side.per_s:,.0f} changes/s, {side.right}")
    if peers:
        fastest = max(peers, key=lambda name: peers[name].per_s)
        measures.append(
            rate(
                f"the same to the cache beside the fastest of {len(peers)} peers, {fastest}",
                ours=found["cache"].per_s,
                peer=peers[fastest].per_s,
                limit=None,
                target=PEER_RATIO,
            )
        )
    sides = [*found.values(), *peers.values()]
    return Report("rebuild", all(side.right for side in sides), tuple(measures))


@contextmanager
def _server(home: Path, name: ServiceName) -> Iterator[Any]:
    memory = _MEMORY_MB if name is ServiceName.CACHE else None
    wanted = {name: Spawned(memory_mb=memory) if memory else Spawned()}
    yield runtime.up(RuntimeSpec(home=home / ".headwater", services=wanted, lifeline=True))
    runtime.down(home / ".headwater")


def _expected(made: ChangeArchive) -> dict[object, Mapping[str, Any]]:
    """Document of every row, by its key."""
    encode = encoder(PLAN.schema)
    found: dict[object, Mapping[str, Any]] = {}
    for batch in made.expected().to_batches(max_chunksize=100_000):
        for row in decoded_rows(PLAN, pa.Table.from_batches([batch])):
            found[row["id"]] = encode(row)
    return found


def _table(made: ChangeArchive, tables: Path) -> _Timed:
    addresses = StoreAddresses(tables, "", "", "")
    seconds = _timed(made, Store.TABLE, lambda: TableSink(tables), addresses)
    found = DeltaTable(tables / PLAN.name).to_pyarrow_table().drop(["_version"]).sort_by("id")
    expected = made.expected().cast(found.schema)
    return _Timed(made.changes / seconds, found.equals(expected))


def _ours(
    made: ChangeArchive,
    store: Store,
    addresses: StoreAddresses,
    expected: Mapping[object, Mapping[str, Any]],
) -> _Timed:
    addresses.tables.mkdir()
    opened = partial(open_sink, store, addresses)
    seconds = _timed(made, store, opened, addresses)
    right = rows = 0
    with closing(opened()) as sink:
        for row in sink.documents(PLAN):
            rows += 1
            right += expected.get(row["id"]) == row
    return _Timed(made.changes / seconds, rows == right == len(expected))


def _timed(
    made: ChangeArchive, store: Store, opened: Callable[[], Sink], addresses: StoreAddresses
) -> float:
    began = time.monotonic()
    plan = replace(PLAN, to=frozenset([store]))
    engine = TaskEngine(OwnTasks(), addresses.tables, plan.name, addresses=addresses)
    target = ReplayTarget((plan,), opened, changes_per_write=_CHANGES_PER_WRITE[store], bulk=engine)
    replay(made.folder, [target])
    return time.monotonic() - began


def _peers(made: ChangeArchive, place: Path, url: str) -> dict[str, _Timed]:
    """Times each peer on the first part of the records; without those that cannot be installed."""
    count, lines = made.changes // _PEER_PART, place / "records"
    rows = _write_lines(made, lines, count)
    found = {}
    with (
        _server(place / "broker", ServiceName.KAFKA) as endpoints,
        redis.Redis.from_url(url) as own,
    ):
        for peer, program, words in (
            ("bytewax", rebuild_peers.BYTEWAX, ()),
            ("pathway", rebuild_peers.PATHWAY, ()),
            ("quixstreams", rebuild_peers.QUIXSTREAMS, (endpoints.kafka_bootstrap,)),
        ):
            own.flushall()
            said = run_peer(peer, place, program, str(lines), url, *words)
            if said is not None:
                found[peer] = _Timed(count / float(said[0]), own.dbsize() == rows)
    return found


def _write_lines(made: ChangeArchive, lines: Path, count: int) -> int:
    """Writes the first changes as lines; returns how many rows they come to."""
    names = ["offset", "key", "op", "before", "after", "source", "rest", "raw_value"]
    files = sorted(
        made.folder.rglob("*.parquet"),
        key=lambda path: pq.ParquetFile(path).read(["offset"])["offset"][0].as_py(),
    )
    alive: set[str] = set()
    written = 0
    with lines.open("wb") as file:
        for path in files:
            for batch in pq.ParquetFile(path).iter_batches(columns=names):
                for row in batch.to_pylist():
                    if row["op"] is None:
                        continue
                    if written == count:
                        return len(alive)
                    file.write((record_value(row) or b"") + b"\n")
                    (alive.discard if row["op"] == "d" else alive.add)(row["key"])
                    written += 1
    return len(alive)
