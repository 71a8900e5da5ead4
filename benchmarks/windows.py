"""Windows over two million rows, as a new view of them is made, and as it is kept.

What the view has is compared with what numpy makes of the same rows before a figure counts; how it
is made is told in `payments`.

The peers are bytewax and quixstreams, each in an environment of its own that is made for the run;
see `window_peers`. They count, and keep nothing that could be corrected. They are timed for a part
of the rows, as their rate does not depend on how many they are. Nobody is timed for its start: ours
has made the same view of a part of the rows before. Without a network there is no peer.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson
import pyarrow as pa

from benchmarks import payments, window_peers
from benchmarks.payments import BEGIN_S, FEW, MANY, REGIONS
from benchmarks.peer import run_peer
from benchmarks.result import Report, at_least, rate
from benchmarks.streaming import say
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
from projections.definition.operators.measures import Measures
from projections.definition.operators.time_bounds import span_of
from projections.definition.operators.windows import Tumbling, keys_of
from projections.definition.views import DerivedView, Store

if TYPE_CHECKING:
    from benchmarks.payments import Payments

PEER_RATIO: Final = 2.0
KEPT_PER_S: Final = 200.0
"""Rows that the live page's traffic brings in a second: views have to keep up with it."""

_PEER_PART: Final = 10
_MINUTE_S: Final = 60


def run(quick: bool) -> Report:
    """Measures; `quick` takes a twentieth of the rows."""
    count = payments.ROWS_QUICK if quick else payments.ROWS
    rows = payments.made(count)
    ours = payments.timed(_view(), rows, count, _right)
    say(f"windows of a minute: made {ours.made_per_s:,.0f} rows/s")
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        peers = _peers(Path(folder), rows)
    measures = [
        rate(
            f"counts and sums of {count:,} rows in windows of a minute, beside {peer}, rows/s",
            ours=ours.made_per_s,
            peer=per_s,
            limit=None,
            target=PEER_RATIO,
        )
        for peer, per_s in peers.items()
    ]
    for (part, _), per_s in ((FEW, ours.few_per_s), (MANY, ours.many_per_s)):
        metric = f"windows beside so many rows, kept as {count // part:,} come at once, rows/s"
        measures.append(at_least(metric, ours=per_s, target=KEPT_PER_S))
    return Report("windows", ours.right, tuple(measures))


def _view() -> DerivedView:
    window = Tumbling("at", "1 minute")
    sql = window.select("payments", ("region",), Measures("n", sums={"cents": "cents"}), "")
    keys = keys_of(window, ("region",))
    to = frozenset([Store.TABLE])
    return DerivedView("per_minute", keys, to, ("payments",), sql, span=span_of(window))


def _right(found: pa.Table, rows: Payments) -> bool:
    minute = (rows.at // 1_000_000 - BEGIN_S) // _MINUTE_S
    groups, places = np.unique(minute * REGIONS + rows.region, return_inverse=True)
    counts = np.bincount(places)
    sums = np.zeros(len(groups), np.int64)
    np.add.at(sums, places, rows.cents)
    starts = found["window_start"].cast(pa.int64()).to_numpy() // 1_000_000
    regions = np.array([int(name[1:]) for name in found["region"].to_pylist()])
    order = np.argsort((starts - BEGIN_S) // _MINUTE_S * REGIONS + regions)
    return (
        len(groups) == len(found)
        and np.array_equal(counts, found["n"].to_numpy()[order])
        and np.array_equal(sums, found["cents"].to_numpy()[order])
    )


def _peers(place: Path, rows: Payments) -> dict[str, float]:
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
