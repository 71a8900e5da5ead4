"""Windows and patterns over two million rows, as a new view of them is made, and as it is kept.

Ours is the job's own way: a view is declared, and its table is made from the table of its input, at
a published boundary, until it is committed; each view alone on the machine. A last part of the rows
then comes boundary by boundary, and the view is kept. What it has is compared with what numpy makes
of the same rows before a figure counts. The rows are skewed over time and regions.

The peers are bytewax and quixstreams, each in an environment of its own that is made for the run;
see `window_peers`. They count, and keep nothing that could be corrected. They are timed for a part
of the rows, as their rate does not depend on how many they are. Nobody is timed for its start: ours
has made the same views of a part of the rows before. Without a network there is no peer.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa

from benchmarks import window_peers
from benchmarks.derived_run import DerivedRun, spark_session
from benchmarks.peer import run_peer
from benchmarks.result import Report, at_least, rate
from benchmarks.streaming import say
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from projections.event_window import Tumbling, keys_of
from projections.extent import of_pattern, span_of
from projections.measure import Measures
from projections.pattern import Pattern, PatternQuery, Step
from projections.view import DerivedView, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PEER_RATIO: Final = 2.0
PATTERN_ROWS_PER_S: Final = 50_000.0
_KEPT_PER_S: Final = 200.0
"""Rows that the live page's traffic brings in a second: views have to keep up with it."""

_ROWS: Final = 2_000_000
_ROWS_QUICK: Final = 100_000
_PEER_PART: Final = 10
_WARM_PART: Final = 20
_FEW: Final = (200, 10)
"""One in so many rows comes at once after the view was made, and how often: what a calm stream
brings meanwhile."""
_MANY: Final = (10, 3)
"""The same of a stream that brings as many as are taken: rows wait while others are at work."""
_REGIONS: Final = 8
_CARDS: Final = 10_000
_DAY_S: Final = 86_400
_MINUTE_S: Final = 60
_DECLINED: Final = 3
_WITHIN_S: Final = 6 * 3_600
_BEGIN_S: Final = 1_767_225_600  # 2026-01-01


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows, in columns."""

    id: np.ndarray[Any, Any]
    at: np.ndarray[Any, Any]
    region: np.ndarray[Any, Any]
    card: np.ndarray[Any, Any]
    cents: np.ndarray[Any, Any]
    declined: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.at)

    def part(self, begin: int, end: int) -> _Rows:
        """Some of the rows, in their order."""
        own = slice(begin, end)
        return _Rows(
            self.id[own],
            self.at[own],
            self.region[own],
            self.card[own],
            self.cents[own],
            self.declined[own],
        )

    def table(self) -> pa.Table:
        """The rows as a table of a view."""
        return pa.table(
            {
                "id": self.id,
                "region": pa.array([f"r{n}" for n in range(_REGIONS)]).take(pa.array(self.region)),
                "card": self.card,
                "cents": self.cents,
                "declined": self.declined,
                "at": pa.array(self.at, pa.timestamp("us", "UTC")),
            }
        )


@dataclass(frozen=True, slots=True)
class _Timed:
    """What ours did with a view.

    Attributes:
        made_per_s: Rows in a second as it was made.
        few_per_s: Rows in a second as few came with each boundary.
        many_per_s: The same as many did.
        right: Whether it has what it should.
    """

    made_per_s: float
    few_per_s: float
    many_per_s: float
    right: bool


def run(quick: bool) -> Report:
    """Measures; `quick` takes a twentieth of the rows."""
    count = _ROWS_QUICK if quick else _ROWS
    rows = _made(count + sum(count // part * often for part, often in (_FEW, _MANY)))
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        place = Path(folder)
        ours = _ours(place, rows, count)
        peers = _peers(place, rows)
    measures = [
        rate(
            f"counts and sums of {count:,} rows in windows of a minute, beside {peer}, rows/s",
            ours=ours["per_minute"].made_per_s,
            peer=per_s,
            limit=None,
            target=PEER_RATIO,
        )
        for peer, per_s in peers.items()
    ]
    for name, what in (("per_minute", "windows of a minute"), ("suspects", "a pattern")):
        timed = ours[name]
        say(f"{name}: made {timed.made_per_s:,.0f} rows/s")
        if name == "suspects":
            metric = f"a pattern in {count:,} rows of {_CARDS:,} cards, rows/s"
            measures.append(at_least(metric, ours=timed.made_per_s, target=PATTERN_ROWS_PER_S))
        for (part, _), per_s in ((_FEW, timed.few_per_s), (_MANY, timed.many_per_s)):
            metric = f"{what} beside so many rows, kept as {count // part:,} come at once, rows/s"
            target = PATTERN_ROWS_PER_S if name == "suspects" else _KEPT_PER_S
            measures.append(at_least(metric, ours=per_s, target=target))
    return Report("windows", all(timed.right for timed in ours.values()), tuple(measures))


def _made(count: int) -> _Rows:
    draw = np.random.default_rng(1)
    return _Rows(
        id=np.arange(count),
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
        DerivedView(
            "per_minute", keys_of(window, ("region",)), to, read, sql, span=span_of(window)
        ),
        DerivedView(
            "suspects",
            keys,
            to,
            read,
            text=repr(query),
            pattern=query,
            extent=of_pattern(query),
        ),
    )


def _ours(place: Path, rows: _Rows, there: int) -> dict[str, _Timed]:
    """Makes and keeps each view, alone, in a session that has made the same of fewer rows."""
    few = there // _WARM_PART
    with spark_session(place) as session:
        for view in _views():
            _timed(session, place / f"{view.name}-warm", rows, few, view)
        return {
            view.name: _timed(session, place / view.name, rows, there, view) for view in _views()
        }


def _timed(session: SparkSession, home: Path, rows: _Rows, there: int, view: DerivedView) -> _Timed:
    """Makes a view of the rows that are there, and keeps it as others come."""
    run = DerivedRun(session, home, (view,), {"payments": rows.part(0, there).table()})
    made_s, end, per_s = run.bring()[view.name], there, dict[tuple[int, int], float]()
    for pace in (_FEW, _MANY):
        part, often = pace
        each, kept_s = there // part, 0.0
        for _ in range(often):
            run.add("payments", rows.part(end, end + each).table())
            kept_s += run.bring()[view.name]
            end += each
        per_s[pace] = often * each / kept_s
    right = _windows_right if view.name == "per_minute" else _matches_right
    rightly = right(run.table(view.name), rows.part(0, end))
    return _Timed(there / made_s, per_s[_FEW], per_s[_MANY], rightly)


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


def _peers(place: Path, rows: _Rows) -> dict[str, float]:
    """Times each peer on a part of the rows, rows/s; without those that cannot be installed."""
    count, lines = len(rows) // _PEER_PART, place / "lines"
    with lines.open("wb") as file:
        for at, region, cents in zip(
            rows.at[:count].tolist(), rows.region[:count].tolist(), rows.cents, strict=False
        ):
            line = {"at": at, "region": f"r{region}", "cents": int(cents)}
            file.write(orjson.dumps(line) + b"\n")
    found = {}
    broker = RuntimeSpec(
        home=place / ".headwater", services={ServiceName.KAFKA: Spawned()}, lifeline=True
    )
    bootstrap = runtime.up(broker).kafka_bootstrap
    for peer, program, words in (
        ("bytewax", window_peers.BYTEWAX, ()),
        ("quixstreams", window_peers.QUIXSTREAMS, (bootstrap,)),
    ):
        said = run_peer(peer, place, program, str(lines), *words)
        if said is None:
            continue
        if int(said[1]) != count:
            raise RuntimeError(f"{peer} has not counted every row")
        found[peer] = count / float(said[0])
        say(f"{peer}: {found[peer]:,.0f} rows/s")
    runtime.down(broker.home)
    return found
