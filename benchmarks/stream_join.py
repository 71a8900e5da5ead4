"""A million searches joined with a million clicks, each within an hour, as a new view of them.

Ours is the job's own way: a view by one SELECT, whose table is made from the tables of its inputs,
at a published boundary, until it is committed. Searches without a click are there as well. What it
has is compared with what numpy makes of the same rows before a figure counts.

The peer is bytewax, in an environment of its own that is made for the run: a dataflow that parses
lines of JSON, in the order of their time, and joins both sides of a search in windows that end an
hour after its last event. It keeps nothing but what it counts. It is timed for a part of the rows,
as its rate does not depend on how many they are, and without its start. Without a network there is
no peer.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa

from benchmarks.derived_run import DerivedRun, spark_session
from benchmarks.peer import run_peer
from benchmarks.result import Report, at_least, rate
from benchmarks.streaming import say
from projections.definition.views import DerivedView, Store

if TYPE_CHECKING:
    from benchmarks.result import Measure

PEER_RATIO: Final = 2.0
ROWS_PER_S: Final = 100_000.0

_ROWS: Final = 1_000_000
_ROWS_QUICK: Final = 50_000
_PEER_PART: Final = 10
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_BEGIN_US: Final = 1_767_225_600_000_000  # 2026-01-01
_LATE_US: Final = (5 * _HOUR_US // 2, 3 * _HOUR_US)
"""When clicks that are too late come: more than an hour after any that is not."""

_SQL: Final = """
    SELECT s.id, s.person, s.at AS searched_at, c.id AS click_id, c.at AS clicked_at
      FROM searches s
      LEFT JOIN clicks c
        ON c.search_id = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 1 HOUR
"""
_DATAFLOW: Final = """
import sys, time
from datetime import datetime, timedelta, timezone
import orjson
import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import EventClock, SessionWindower
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
windower = SessionWindower(gap=timedelta(hours=1))
flow = Dataflow("joined")
events = op.map("parsed", op.input("lines", flow, Source()), orjson.loads)
sides = op.branch("sides", events, lambda event: event["kind"] == "search")
searches = op.key_on("by id", sides.trues, lambda event: str(event["search"]))
clicks = op.key_on("by search", sides.falses, lambda event: str(event["search"]))
joined = win.join_window("joined", clock, windower, searches, clicks)
op.output("out", joined.down, TestingSink(out))
began = time.monotonic()
run_main(flow)
took = time.monotonic() - began
pairs = [pair for _, (_, pair) in out]
both = sum(search is not None and click is not None for search, click in pairs)
alone = sum(search is not None and click is None for search, click in pairs)
print(took, both, alone)
"""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Searches by their number, and clicks; a search has at most one within the hour."""

    searched_us: np.ndarray[Any, Any]
    search: np.ndarray[Any, Any]
    clicked_us: np.ndarray[Any, Any]

    @property
    def count(self) -> int:
        """Rows of both together."""
        return len(self.searched_us) + len(self.search)

    @property
    def in_time(self) -> np.ndarray[Any, Any]:
        """Which clicks come within the hour."""
        waited: np.ndarray[Any, Any] = self.clicked_us - self.searched_us[self.search]
        return waited <= _HOUR_US

    def first(self, count: int) -> _Rows:
        """The first searches and their clicks."""
        own = self.search < count
        return _Rows(self.searched_us[:count], self.search[own], self.clicked_us[own])

    def tables(self) -> dict[str, pa.Table]:
        """The rows as tables of views."""
        moment = pa.timestamp("us", "UTC")
        searches, clicks = len(self.searched_us), len(self.search)
        return {
            "searches": pa.table(
                {
                    "id": np.arange(searches),
                    "person": np.arange(searches) % 50_000,
                    "at": pa.array(self.searched_us, moment),
                }
            ),
            "clicks": pa.table(
                {
                    "id": np.arange(clicks),
                    "search_id": self.search,
                    "at": pa.array(self.clicked_us, moment),
                }
            ),
        }


def run(quick: bool) -> Report:
    """Measures; `quick` takes a twentieth of the rows."""
    rows = _made(_ROWS_QUICK if quick else _ROWS)
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        seconds, right = _ours(Path(folder), rows)
        peer = _peer(Path(folder), rows.first(len(rows.searched_us) // _PEER_PART))
    what = f"{len(rows.searched_us):,} searches and {len(rows.search):,} clicks within an hour"
    measures: list[Measure] = [
        at_least(f"{what}, rows/s", ours=rows.count / seconds, target=ROWS_PER_S)
    ]
    if peer is not None:
        measures.append(
            rate(
                f"{what}, beside a dataflow that keeps nothing",
                ours=rows.count / seconds,
                peer=peer,
                limit=None,
                target=PEER_RATIO,
            )
        )
    return Report("stream_join", right, tuple(measures))


def _made(count: int) -> _Rows:
    """Six of ten searches have a click within the hour; four of ten have one that is too late."""
    draw = np.random.default_rng(1)
    searched = np.sort(_BEGIN_US + draw.integers(0, _DAY_US, count))
    shuffled = draw.permutation(count)
    soon, late = shuffled[: count * 6 // 10], draw.permutation(count)[: count - count * 6 // 10]
    search = np.append(soon, late)
    waited = np.append(
        draw.integers(1, _HOUR_US + 1, len(soon)), draw.integers(*_LATE_US, len(late))
    )
    return _Rows(searched, search, searched[search] + waited)


def _ours(place: Path, rows: _Rows) -> tuple[float, bool]:
    """Makes the view; returns how long it took, and whether it is right."""
    made = rows.tables()
    view = DerivedView(
        "joined", ("id", "click_id"), frozenset([Store.TABLE]), tuple(made), sql=_SQL
    )
    with spark_session(place) as session:
        run = DerivedRun(session, place, (view,), made)
        seconds = run.bring()["joined"]
    return seconds, _right(run.table("joined"), rows)


def _right(found: pa.Table, rows: _Rows) -> bool:
    click = np.full(len(rows.searched_us), -1)
    in_time = np.flatnonzero(rows.in_time)
    click[rows.search[in_time]] = in_time
    order = np.argsort(found["id"].to_numpy())
    given = found["click_id"].fill_null(-1).to_numpy()[order]
    say(f"{len(in_time):,} searches with a click, {len(click) - len(in_time):,} without")
    return len(found) == len(click) and np.array_equal(click, given)


def _peer(place: Path, rows: _Rows) -> float | None:
    """Times bytewax on some of the rows, rows/s; None where it cannot be installed, or is wrong.

    On a busy machine it was seen to lose some of the pairs, others each time.
    """
    events = [
        *(("search", n, at) for n, at in enumerate(rows.searched_us.tolist())),
        *zip(
            ("click",) * len(rows.search),
            rows.search.tolist(),
            rows.clicked_us.tolist(),
            strict=True,
        ),
    ]
    with (place / "lines").open("wb") as file:
        for kind, search, at in sorted(events, key=lambda event: event[2]):
            file.write(orjson.dumps({"kind": kind, "search": search, "at": at}) + b"\n")
    said = run_peer("bytewax", place, _DATAFLOW, str(place / "lines"))
    if said is None:
        return None
    both = int(rows.in_time.sum())
    if (int(said[1]), int(said[2])) != (both, len(rows.searched_us) - both):
        say(f"bytewax has joined {said[1]} searches and not {both}: it is no peer")
        return None
    return rows.count / float(said[0])
