"""A mirror rebuilt from the archive of its source, in each of the three stores.

The archive is as the job leaves one, with inserts, skewed updates and deletes. Ours replays it: of
each key the newest record is found and written, guarded by its version, with a memory of what was
deleted. What each store has at the end is compared row by row with what the changes come to before
a figure counts; the stores take turns, each alone on the machine.

The peer is bytewax, in an environment of its own that is made for the run: a dataflow that parses
each record and sets the row under its key, in pipelines of 500, or takes it away. It guards nothing
and remembers no delete, and is given the records as lines of a file, ready to be parsed. Its rows
are checked as well. It is timed for a part of the records, as its rate does not depend on how many
they are, and without its start. Without a network there is no peer.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import redis
from deltalake import DeltaTable

from benchmarks import change_archive
from benchmarks.bytewax import run_dataflow
from benchmarks.change_archive import PLAN
from benchmarks.result import Report, at_least, rate
from benchmarks.streaming import say
from cdc.values import encoder
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from projections.archive import record_value
from projections.replay.replay import replay
from projections.replay.task import Target
from projections.sinks.arrow import decoded_rows
from projections.sinks.cache import CacheSink
from projections.sinks.search import SearchSink
from projections.sinks.table import TableSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.change_archive import ChangeArchive
    from benchmarks.result import Measure
    from projections.sinks.sink import Sink

PEER_RATIO: Final = 3.0
TARGETS: Final = {"table": 100_000.0, "cache": 25_000.0, "search": 8_000.0}

_CHANGES: Final = 5_000_000
_CHANGES_QUICK: Final = 500_000
_CHANGES_PER_KEY: Final = 5
_CHANGES_PER_WRITE: Final = {"table": 100_000, "cache": 10_000, "search": 20_000}
_PEER_PART: Final = 10
_MEMORY_MB: Final = 4_000
_DATAFLOW: Final = """
import sys, time
import orjson, redis
import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

path, url = sys.argv[1:]

class Lines(StatelessSourcePartition):
    def __init__(self):
        self.file = open(path, "rb")
    def next_batch(self):
        lines = self.file.readlines(1 << 20)
        if not lines:
            raise StopIteration
        return lines

class Source(DynamicSource):
    def build(self, step_id, worker_index, worker_count):
        return Lines()

class Rows(StatelessSinkPartition):
    def __init__(self):
        self.client = redis.Redis.from_url(url)
    def write_batch(self, items):
        for start in range(0, len(items), 500):
            pipeline = self.client.pipeline(transaction=False)
            for key, row in items[start:start + 500]:
                if row is None:
                    pipeline.delete(key)
                else:
                    pipeline.set(key, row)
            pipeline.execute()

class Cache(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Rows()

def parsed(line):
    change = orjson.loads(line)
    if change["op"] == "d":
        return f"peer:{change['before']['id']}", None
    row = change["after"]
    return f"peer:{row['id']}", orjson.dumps(row)

flow = Dataflow("rebuild")
records = op.input("records", flow, Source())
op.output("cache", op.map("parsed", records, parsed), Cache())
began = time.monotonic()
run_main(flow)
print(time.monotonic() - began)
"""


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
            found["cache"] = _ours(made, "cache", lambda: CacheSink(url), expected)
            redis.Redis.from_url(url).flushall()
            peer = _peer(made, place, url)
        with _server(place / "search", ServiceName.SEARCH) as endpoints:
            url = endpoints.search_url
            found["search"] = _ours(made, "search", lambda: SearchSink(url), expected)
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
    if peer is not None:
        say(f"bytewax to the cache: {peer.per_s:,.0f} changes/s")
        measures.append(
            rate(
                "the same to the cache beside bytewax, changes/s",
                ours=found["cache"].per_s,
                peer=peer.per_s,
                limit=None,
                target=PEER_RATIO,
            )
        )
    sides = [*found.values(), *([] if peer is None else [peer])]
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
    seconds = _timed(made, "table", lambda: TableSink(tables))
    found = DeltaTable(tables / PLAN.name).to_pyarrow_table().drop(["_version"]).sort_by("id")
    expected = made.expected().cast(found.schema)
    return _Timed(made.changes / seconds, found.equals(expected))


def _ours(
    made: ChangeArchive,
    name: str,
    open_sink: Callable[[], Sink],
    expected: Mapping[object, Mapping[str, Any]],
) -> _Timed:
    seconds = _timed(made, name, open_sink)
    right = rows = 0
    with closing(open_sink()) as sink:
        for row in sink.documents(PLAN):
            rows += 1
            right += expected.get(row["id"]) == row
    return _Timed(made.changes / seconds, rows == right == len(expected))


def _timed(made: ChangeArchive, name: str, open_sink: Callable[[], Sink]) -> float:
    began = time.monotonic()
    target = Target((PLAN,), open_sink, changes_per_write=_CHANGES_PER_WRITE[name])
    replay(made.folder, [target])
    return time.monotonic() - began


def _peer(made: ChangeArchive, place: Path, url: str) -> _Timed | None:
    """Times bytewax on the first part of the records; None where it cannot be installed."""
    count, lines = made.changes // _PEER_PART, place / "records"
    rows = _write_lines(made, lines, count)
    said = run_dataflow(place, _DATAFLOW, str(lines), url)
    if said is None:
        return None
    with redis.Redis.from_url(url) as client:
        right = client.dbsize() == rows
    return _Timed(count / float(said[0]), right)


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
