"""What rows of long ago cost a join that goes on: a boundary's time beside ten times the rows.

Searches are joined with the clicks within an hour, and clicks with where a person lived then; each
has an identifier that says nothing of its time. In one run a hundred thousand rows of each lie
behind, in the other a million. Then rows come at the end of the time, boundary by boundary; some of
them are late. What the views have is compared with what numpy makes of the
same rows; each run has a session of its own.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.derived_run import DerivedRun, spark_session
from benchmarks.result import Report, grown
from benchmarks.streaming import say
from projections.definition.views import DerivedView, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.result import Measure

SECONDS_TIMES: Final = 1.5

_ROWS: Final = (100_000, 1_000_000)
_ROWS_QUICK: Final = (10_000, 100_000)
_FILES: Final = 10
_WARM: Final = 5
_BOUNDARIES: Final = 20
_ROWS_AT_ONCE: Final = 200
_LATE_ONE_IN: Final = 50
_PEOPLE: Final = 10_000
_MINUTE_US: Final = 60_000_000
_HOUR_US: Final = 60 * _MINUTE_US
_YEAR_US: Final = 365 * 24 * _HOUR_US
_NOW_US: Final = 1_767_225_600_000_000  # 2026-01-01
_MOVED_US: Final = _NOW_US - _YEAR_US // 2
"""When everybody moved: a person lives in the city of their number, and then in the next."""

_FOUND: Final = """
    SELECT s.id, s.at, count(c.id) AS clicks, min(c.at) AS clicked_at
      FROM searches s
      LEFT JOIN clicks c
        ON c.search_id = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 1 HOUR
     GROUP BY s.id, s.at
"""
_LIVED: Final = """
    SELECT c.id, c.at, p.city
      FROM clicks c
      LEFT JOIN people_history p
        ON p.id = c.person AND c.at >= p.valid_from AND (p.valid_to IS NULL OR c.at < p.valid_to)
"""


@dataclass(slots=True)
class _Events:
    """Searches by their number, each with one click, some of them an hour or more later.

    Attributes:
        searched_us: When each search was made.
        clicked_us: When its click was.
    """

    searched_us: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    clicked_us: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int64))

    def more(self, searched_us: np.ndarray[Any, Any], draw: np.random.Generator) -> range:
        """Adds searches, and clicks of theirs; returns their numbers."""
        first = len(self.searched_us)
        waited = draw.integers(0, 2 * _HOUR_US, len(searched_us))
        self.searched_us = np.append(self.searched_us, searched_us)
        self.clicked_us = np.append(self.clicked_us, searched_us + waited)
        return range(first, len(self.searched_us))

    def tables(self, numbers: range) -> dict[str, pa.Table]:
        """Rows of some numbers."""
        at, ids = slice(numbers.start, numbers.stop), [_named("search", n) for n in numbers]
        moment, people = pa.timestamp("us", "UTC"), np.array(numbers) % _PEOPLE
        return {
            "searches": pa.table({"id": ids, "at": pa.array(self.searched_us[at], moment)}),
            "clicks": pa.table(
                {
                    "id": [_named("click", n) for n in numbers],
                    "search_id": ids,
                    "person": people,
                    "at": pa.array(self.clicked_us[at], moment),
                }
            ),
        }


def run(quick: bool) -> Report:
    """Measures; `quick` has a tenth of the rows."""
    few, many = _ROWS_QUICK if quick else _ROWS
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        before, right = _kept(Path(folder) / "few", few)
        after, right_too = _kept(Path(folder) / "many", many)
    measures: list[Measure] = []
    for view, what in (("found", "within an hour"), ("lived", "as of then")):
        say(f"{view}: {before[view]:.2f} s a boundary, and {after[view]:.2f} s")
        metric = f"a boundary's time of a join {what}, {many:,} rows beside {few:,}, s"
        measures.append(grown(metric, before=before[view], after=after[view], target=SECONDS_TIMES))
    return Report("join_state", right and right_too, tuple(measures))


def _kept(home: Path, rows: int) -> tuple[dict[str, float], bool]:
    """Keeps the views; returns the median of a boundary's seconds, and whether they are right."""
    draw, events, to = np.random.default_rng(1), _Events(), frozenset([Store.TABLE])
    views = (
        DerivedView("found", ("id",), to, ("searches", "clicks"), sql=_FOUND),
        DerivedView("lived", ("id",), to, ("clicks", "people_history"), sql=_LIVED),
    )
    past = np.array_split(np.sort(_NOW_US - draw.integers(0, _YEAR_US, rows)), _FILES)
    first = events.tables(events.more(past[0], draw))
    with spark_session(home) as session:
        keys = {"searches": ("id",), "clicks": ("id",)}
        run = DerivedRun(session, home, views, first | {"people_history": _history()}, keys)
        for part in past[1:]:
            _add(run, events.tables(events.more(part, draw)))
        run.bring()
        taken: dict[str, list[float]] = {view.name: [] for view in views}
        for moments in _coming(draw):
            _add(run, events.tables(events.more(moments, draw)))
            for view, seconds in run.bring().items():
                taken[view].append(seconds)
    right = _right(run, events)
    return {view: float(np.median(each[_WARM:])) for view, each in taken.items()}, right


def _coming(draw: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    """When searches are made that come later: minute by minute, and a few are a day late."""
    for boundary in range(_WARM + _BOUNDARIES):
        at = _NOW_US + boundary * _MINUTE_US + draw.integers(0, _MINUTE_US, _ROWS_AT_ONCE)
        late = draw.integers(0, _LATE_ONE_IN, _ROWS_AT_ONCE) == 0
        yield np.sort(at - np.where(late, 24 * _HOUR_US, 0))


def _add(run: DerivedRun, tables: dict[str, pa.Table]) -> None:
    for name, rows in tables.items():
        run.add(name, rows)


def _history() -> pa.Table:
    people, moment = np.arange(_PEOPLE), pa.timestamp("us", "UTC")
    moved = pa.array(np.full(_PEOPLE, _MOVED_US), moment)
    ever, never = pa.array(np.zeros(_PEOPLE, np.int64), moment), pa.nulls(_PEOPLE, moment)
    names = ["id", "city", "valid_from", "valid_to"]
    return pa.concat_tables(
        [
            pa.table([people, people, ever, moved], names),
            pa.table([people, people + 1, moved, never], names),
        ]
    )


def _named(kind: str, number: int) -> str:
    """An identifier that says nothing of when it was given."""
    return hashlib.md5(f"{kind} {number}".encode(), usedforsecurity=False).hexdigest()


def _right(run: DerivedRun, events: _Events) -> bool:
    count = len(events.searched_us)
    searches = {_named("search", n): n for n in range(count)}
    found = run.table("found")
    order = np.argsort([searches[each] for each in found["id"].to_pylist()])
    in_time = events.clicked_us - events.searched_us <= _HOUR_US
    clicks = {_named("click", n): n for n in range(count)}
    lived = run.table("lived")
    numbers = np.array([clicks[each] for each in lived["id"].to_pylist()])
    city = numbers % _PEOPLE + (events.clicked_us[numbers] >= _MOVED_US)
    return (
        len(found) == len(lived) == count
        and np.array_equal(found["clicks"].to_numpy()[order], in_time.astype(np.int64))
        and np.array_equal(lived["city"].to_numpy(), city)
        and len(set(numbers.tolist())) == count
    )
