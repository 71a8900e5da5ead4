"""Windows and patterns over two million rows that are there, as a new view of them is made.

Ours is the job's own way: a view is declared, and its table is made from the table of its input, at
a published boundary, until it is committed. What it has is compared with what numpy makes of the
same rows before a figure counts. The rows are skewed over time and regions.

The peer is bytewax, in an environment of its own that is made for the run: a dataflow that parses
lines of JSON, in the order of their time, and counts them in windows that tumble, by event time. It
keeps nothing but what it counts. It is timed for a part of the rows, as its rate does not depend on
how many they are, and without its start. Without a network there is no peer.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.bytewax import run_dataflow
from benchmarks.result import Report, at_least, rate
from benchmarks.streaming import say
from headwater.supply.jars import ensure
from projections.event_window import Tumbling, keys_of
from projections.measure import Measures
from projections.pattern import Pattern, PatternQuery, Step
from projections.published import Published
from projections.sinks.table import FEED
from projections.spark.deriver import Deriver
from projections.spark.session import session_of_batches, start_session
from projections.spec import JobSpec
from projections.view import DerivedView, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.result import Measure

PEER_RATIO: Final = 2.0
PATTERN_ROWS_PER_S: Final = 50_000.0

_ROWS: Final = 2_000_000
_ROWS_QUICK: Final = 100_000
_PEER_PART: Final = 10
_REGIONS: Final = 8
_CARDS: Final = 10_000
_DAY_S: Final = 86_400
_MINUTE_S: Final = 60
_DECLINED: Final = 3
_WITHIN_S: Final = 6 * 3_600
_BEGIN_S: Final = 1_767_225_600  # 2026-01-01
_DATAFLOW: Final = """
import sys, time
from datetime import datetime, timedelta, timezone
import orjson
import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import EventClock, TumblingWindower
from bytewax.testing import TestingSink, run_main

path, out = sys.argv[1], []

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

def at(event):
    return datetime.fromtimestamp(event["at"] / 1e6, timezone.utc)

clock = EventClock(ts_getter=at, wait_for_system_duration=timedelta(seconds=10))
begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
windower = TumblingWindower(length=timedelta(minutes=1), align_to=begin)
flow = Dataflow("windows")
events = op.map("parsed", op.input("lines", flow, Source()), orjson.loads)
counted = win.count_window("counted", events, clock, windower, lambda event: event["region"])
op.output("out", counted.down, TestingSink(out))
began = time.monotonic()
run_main(flow)
print(time.monotonic() - began, len(out), sum(count for _, (_, count) in out))
"""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows, in columns."""

    at: np.ndarray[Any, Any]
    region: np.ndarray[Any, Any]
    card: np.ndarray[Any, Any]
    cents: np.ndarray[Any, Any]
    declined: np.ndarray[Any, Any]

    def table(self) -> pa.Table:
        """The rows as a table of a view."""
        return pa.table(
            {
                "id": np.arange(len(self.at)),
                "region": pa.array([f"r{n}" for n in range(_REGIONS)]).take(pa.array(self.region)),
                "card": self.card,
                "cents": self.cents,
                "declined": self.declined,
                "at": pa.array(self.at, pa.timestamp("us", "UTC")),
                "_version": np.full(len(self.at), 100),
            }
        )


def run(quick: bool) -> Report:
    """Measures; `quick` takes a twentieth of the rows."""
    rows = _made(_ROWS_QUICK if quick else _ROWS)
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        place = Path(folder)
        views = _views()
        seconds, right = _ours(place, rows, views)
        peer = _peer(place, rows)
    count = len(rows.at)
    measures: list[Measure] = []
    if peer is not None:
        measures.append(
            rate(
                f"counts and sums of {count:,} rows in windows of a minute, rows/s",
                ours=count / seconds["per_minute"],
                peer=peer,
                limit=None,
                target=PEER_RATIO,
            )
        )
    measures.append(
        at_least(
            f"a pattern in {count:,} rows of {_CARDS:,} cards, rows/s",
            ours=count / seconds["suspects"],
            target=PATTERN_ROWS_PER_S,
        )
    )
    return Report("windows", right, tuple(measures))


def _made(count: int) -> _Rows:
    draw = np.random.default_rng(1)
    return _Rows(
        at=np.sort((_BEGIN_S + draw.beta(2, 3, count) * _DAY_S) * 1_000_000).astype(np.int64),
        region=np.minimum(draw.geometric(0.3, count) - 1, _REGIONS - 1),
        card=draw.integers(0, _CARDS, count),
        cents=draw.integers(1, 100_000, count),
        declined=draw.random(count) < 0.1,
    )


def _views() -> tuple[DerivedView, ...]:
    window = Tumbling("at", "1 minute")
    sql = window.select("payments", ("region",), Measures("n", sums={"cents": "cents"}), "")
    pattern = Pattern(
        [Step("declined", "declined", _DECLINED), Step("large", "NOT declined AND cents > 90000")],
        within=f"{_WITHIN_S} seconds",
    )
    query = PatternQuery(pattern, ("card",), "at", ("id",))
    to, read = frozenset([Store.TABLE]), ("payments",)
    keys = ("card", "match_start", "match_number")
    return (
        DerivedView("per_minute", keys_of(window, ("region",)), to, read, sql),
        DerivedView("suspects", keys, to, read, text=repr(query), pattern=query),
    )


def _ours(
    place: Path, rows: _Rows, views: tuple[DerivedView, ...]
) -> tuple[dict[str, float], bool]:
    """Makes each view; returns how long it took, and whether all are right."""
    nowhere = "redis://127.0.0.1:1"
    places = (nowhere, "", "", place, nowhere, "", tuple(ensure("spark", progress=False)))
    spec = JobSpec("benchmark", (), *places, master="local[2]", derived=views)
    tables, table = spec.addresses.tables, rows.table()
    DeltaTable.create(str(tables / "payments"), table.schema, configuration=dict(FEED))
    write_deltalake(str(tables / "payments"), table, mode="append")
    session = start_session(spec)
    try:
        return _timed(session, spec, rows)
    finally:
        session.stop()


def _timed(session: SparkSession, spec: JobSpec, rows: _Rows) -> tuple[dict[str, float], bool]:
    tables = spec.addresses.tables
    published = Published(tables, spec.source)
    deriver = Deriver(session, session_of_batches(session), spec)
    versions = {"payments": DeltaTable(str(tables / "payments")).version()}
    version = published.publish(1, 100, versions, complete=False)
    if version is None:
        raise RuntimeError("nothing was published")
    published.complete(version, deriver.derived(version))
    if deriver.faults:
        raise RuntimeError(str(deriver.faults))
    say(f"seconds of each view: {deriver.seconds}")
    found = {view.name: DeltaTable(str(tables / view.name)) for view in spec.derived}
    right = _windows_right(found["per_minute"].to_pyarrow_table(), rows)
    return dict(deriver.seconds), right and _matches_right(
        found["suspects"].to_pyarrow_table(), rows
    )


def _windows_right(found: pa.Table, rows: _Rows) -> bool:
    minute = (rows.at // 1_000_000 - _BEGIN_S) // _MINUTE_S
    groups, places = np.unique(minute * _REGIONS + rows.region, return_inverse=True)
    counts = np.bincount(places)
    sums = np.zeros(len(groups), np.int64)
    np.add.at(sums, places, rows.cents)
    starts = found["window_start"].cast(pa.int64()).to_numpy() // 1_000_000
    regions = np.array([int(name[1:]) for name in found["region"].to_pylist()])
    order = np.argsort((starts - _BEGIN_S) // _MINUTE_S * _REGIONS + regions)
    return (
        len(groups) == len(found)
        and np.array_equal(counts, found["n"].to_numpy()[order])
        and np.array_equal(sums, found["cents"].to_numpy()[order])
    )


def _matches_right(found: pa.Table, rows: _Rows) -> bool:
    """Counts matches in plain steps: of each card, three declined and then a large one."""
    expected = 0
    large = ~rows.declined & (rows.cents > 90_000)
    order = np.argsort(rows.card, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(rows.card[order])) + 1):
        seen = [
            (int(rows.at[n]), bool(rows.declined[n])) for n in own if rows.declined[n] or large[n]
        ]
        expected += _counted(seen)
    say(f"{len(found):,} matches")
    return len(found) == expected


def _counted(seen: list[tuple[int, bool]]) -> int:
    found = start = 0
    while start < len(seen):
        last = _last(seen, start)
        found, start = (found, start + 1) if last is None else (found + 1, last + 1)
    return found


def _last(seen: list[tuple[int, bool]], start: int) -> int | None:
    """Place of the last row of a match that begins somewhere."""
    missing, end = _DECLINED, seen[start][0] + _WITHIN_S * 1_000_000
    for place in range(start, len(seen) if seen[start][1] else start):
        at, declined = seen[place]
        if at > end:
            return None
        if missing and declined:
            missing -= 1
        elif not missing and not declined:
            return place
    return None


def _peer(place: Path, rows: _Rows) -> float | None:
    """Times bytewax on a part of the rows, rows/s; None where it cannot be installed."""
    count = len(rows.at) // _PEER_PART
    with (place / "lines").open("wb") as file:
        for at, region, cents in zip(
            rows.at[:count].tolist(), rows.region[:count].tolist(), rows.cents, strict=False
        ):
            line = {"at": at, "region": f"r{region}", "cents": int(cents)}
            file.write(orjson.dumps(line) + b"\n")
    said = run_dataflow(place, _DATAFLOW, str(place / "lines"))
    if said is None:
        return None
    say(f"bytewax: {said[1]} windows")
    if int(said[2]) != count:
        raise RuntimeError("the peer has not counted every row")
    return count / float(said[0])
