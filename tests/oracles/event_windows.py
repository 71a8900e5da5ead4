"""Windows and their measures, computed from the rows in plain Python."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from projections.definition.operators.measures import Approximate, Measures, Percentile
from projections.definition.operators.windows import (
    Calendar,
    Hopping,
    Session,
    Sliding,
    Tumbling,
)
from tests.oracles.event_rows import ABSURD, EPOCH, Kept, Row, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from projections.definition.operators.windows import Window


STOCKHOLM = ZoneInfo("Europe/Stockholm")


class Bounds(NamedTuple):
    start: datetime
    end: datetime


WINDOWS: dict[str, Window] = {
    "tumbling": Tumbling("at", "1 hour", offset="10 minutes"),
    "hopping": Hopping("at", "1 hour", "25 minutes"),
    "offset": Hopping("at", "1 hour", "25 minutes", offset="2 hours 45 minutes"),
    "apart": Hopping("at", "20 minutes", "50 minutes", offset="5 minutes"),
    "day": Calendar("at", "day", "Europe/Stockholm"),
    "month": Calendar("at", "month", "Europe/Stockholm"),
    "session": Session("at", "30 minutes"),
    "sliding": Sliding("at", "1 hour"),
}


ALL = Measures(
    count="n",
    sums={"total": "amount"},
    averages={"mean": "amount"},
    least={"least": "amount"},
    greatest={"greatest": "amount"},
    distinct={"kinds": "amount"},
    percentiles={
        "median": Percentile("amount", 0.5),
        "near": Percentile("amount", 0.5, error=0.01),
    },
    # as exact as one with more registers where values are few, and merged in a tenth of the time
    approximate_distinct={"about": Approximate("amount", 0.05)},
)


OF_FRAMES = Measures(count="n", rate="per_s", sums={"total": "amount"}, averages={"mean": "amount"})


def fixed(at: datetime, width: timedelta, every: timedelta, offset: timedelta) -> Iterator[Bounds]:
    start = EPOCH + offset + (at - EPOCH - offset) // every * every
    while start > at - width:
        yield Bounds(start, start + width)
        start -= every


def local(at: datetime, unit: str) -> Bounds:
    day = at.astimezone(STOCKHOLM).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if unit == "day":
        # along the wall's clock, whatever the hours
        return Bounds(day.astimezone(UTC), (day + timedelta(days=1)).astimezone(UTC))
    first = day.replace(day=1)
    following = (first + timedelta(days=32)).replace(day=1)
    return Bounds(first.astimezone(UTC), following.astimezone(UTC))


def sessions(rows: list[Row]) -> Iterator[tuple[Bounds, list[Row]]]:
    gap = timedelta(minutes=30)
    together: list[Row] = []
    for row in sorted(rows, key=lambda row: row.at or EPOCH):
        if together and row.at - together[-1].at > gap:  # type: ignore[operator]
            yield _session(together, gap), together
            together = []
        together.append(row)
    if together:
        yield _session(together, gap), together


def _session(rows: list[Row], gap: timedelta) -> Bounds:
    times = [row.at for row in rows if row.at is not None]
    return Bounds(times[0], times[-1] + gap)


def windows_of(kind: str, rows: list[Row]) -> Iterator[tuple[Bounds, list[Row]]]:
    """The windows of one group, and the rows that are in each."""
    if kind == "session":
        yield from sessions(rows)
        return
    if kind == "sliding":
        for end in {row.at for row in rows if row.at is not None}:
            start = end - timedelta(hours=1)
            yield Bounds(start, end), [row for row in rows if start < row.at <= end]  # type: ignore[operator]
        return
    found: dict[Bounds, list[Row]] = defaultdict(list)
    for row in rows:
        assert row.at is not None
        for bounds in {
            "tumbling": lambda at: fixed(at, _H, _H, timedelta(minutes=10)),
            "hopping": lambda at: fixed(at, _H, timedelta(minutes=25), timedelta(0)),
            "offset": lambda at: fixed(at, _H, timedelta(minutes=25), timedelta(minutes=165)),
            "apart": lambda at: fixed(
                at, timedelta(minutes=20), timedelta(minutes=50), timedelta(minutes=5)
            ),
            "day": lambda at: [local(at, "day")],
            "month": lambda at: [local(at, "month")],
        }[kind](row.at):
            found[bounds].append(row)
    yield from found.items()


_H = timedelta(hours=1)


def windows(kind: str, rows: Iterable[Row]) -> dict[Any, dict[str, Any]]:
    """What plain Python makes of the rows."""
    return {key: measured(kind, inside) for key, inside in windowed(kind, rows)}


def windowed(kind: str, rows: Iterable[Row]) -> Iterator[tuple[Any, list[Row]]]:
    """The windows of all groups, and the rows that are in each."""
    groups: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if row.at is not None and row.at not in ABSURD:
            groups[row.who].append(row)
    for who, own in groups.items():
        for bounds, inside in windows_of(kind, own):
            yield (who, *bounds), inside


def measured(kind: str, inside: list[Row]) -> dict[str, Any]:
    amounts = [row.amount for row in inside if row.amount is not None]
    said: dict[str, Any] = {"n": len(inside), "total": sum(amounts) if amounts else None}
    said["mean"] = pytest.approx(mean(amounts)) if amounts else None
    if kind == "sliding":
        said["per_s"] = pytest.approx(len(inside) / 3600)
    else:
        said["least"], said["greatest"] = min(amounts, default=None), max(amounts, default=None)
        said["kinds"] = said["about"] = len(set(amounts))
        said["median"] = _median(amounts)
        said["near"] = _median(amounts, error=0.01)
    return said


def _median(amounts: list[int], error: float = 1e-6) -> Any:
    ordered = sorted(amounts)
    if not ordered:
        return None
    middle = (len(ordered) - 1) / 2
    return pytest.approx((ordered[int(middle)] + ordered[-int(-middle // 1)]) / 2, rel=error)


SEEDS = pytest.mark.rotating("seed", [1, 2, 3])


def few_max_of(kind: str, kinds: Iterable[str], seed: int) -> int:
    """Of one kind in three, all that is affected is found by a join, as where many keys are."""
    return 0 if ([*kinds].index(kind) + seed) % 3 == 0 else 500


def chance(kind: str, seed: int) -> Random:
    return Random(f"{kind} {seed}")  # noqa: S311  # chance that is repeated


def by_window(kept: Kept) -> dict[Any, dict[str, Any]]:
    """What a view says of each window."""
    return {
        (row["who"], utc(row["window_start"]), utc(row["window_end"])): {
            name: value
            for name, value in row.items()
            if name not in {"who", "window_start", "window_end"}
        }
        for row in kept.rows.values()
    }
