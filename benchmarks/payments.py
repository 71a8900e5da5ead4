"""Payments, skewed over time and regions, and how a view of them is made and kept.

Ours is the job's own way: a view is declared, and its table is made from the table of its input, at
a published boundary, until it is committed; alone on the machine, in a session that has made the
same of a part of the rows before. A last part of the rows then comes boundary by boundary, and the
view is kept.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.derived_run import DerivedRun, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from projections.definition.views import DerivedView

ROWS: Final = 2_000_000
ROWS_QUICK: Final = 100_000
CARDS: Final = 10_000
BEGIN_S: Final = 1_767_225_600  # 2026-01-01
REGIONS: Final = 8
FEW: Final = (200, 10)
"""One in so many rows comes at once after the view was made, and how often: what a calm stream
brings meanwhile."""
MANY: Final = (10, 3)
"""The same of a stream that brings as many as are taken: rows wait while others are at work."""

_WARM_PART: Final = 20
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Payments:
    """The rows, in columns."""

    id: np.ndarray[Any, Any]
    at: np.ndarray[Any, Any]
    region: np.ndarray[Any, Any]
    card: np.ndarray[Any, Any]
    cents: np.ndarray[Any, Any]
    declined: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.at)

    def part(self, begin: int, end: int) -> Payments:
        """Some of the rows, in their order."""
        own = slice(begin, end)
        return Payments(
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
                "region": pa.array([f"r{n}" for n in range(REGIONS)]).take(pa.array(self.region)),
                "card": self.card,
                "cents": self.cents,
                "declined": self.declined,
                "at": pa.array(self.at, pa.timestamp("us", "UTC")),
            }
        )


@dataclass(frozen=True, slots=True)
class Timed:
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


def made(count: int) -> Payments:
    """Makes payments and those that come after them.

    Args:
        count: How many are there at first.
    """
    return _drawn(count + sum(count // part * often for part, often in (FEW, MANY)))


def timed(
    view: DerivedView,
    rows: Payments,
    there: int,
    right: Callable[[pa.Table, Payments], bool],
) -> Timed:
    """Makes a view of the payments that are there, and keeps it as others come.

    Args:
        view: The view of `payments`.
        rows: All payments.
        there: How many of them are there at first.
        right: Whether the view's table is what plain steps make of the same rows.
    """
    with tempfile.TemporaryDirectory(prefix="headwater-benchmark-") as folder:
        place = Path(folder)
        with spark_session(place) as session:
            _timed(session, place / "warm", rows, there // _WARM_PART, view, right)
            return _timed(session, place / "timed", rows, there, view, right)


def _timed(  # noqa: PLR0913, PLR0917  # a run, and what is run
    session: SparkSession,
    home: Path,
    rows: Payments,
    there: int,
    view: DerivedView,
    right: Callable[[pa.Table, Payments], bool],
) -> Timed:
    run = DerivedRun(session, home, (view,), {"payments": rows.part(0, there).table()})
    made_s, end, per_s = run.bring()[view.name], there, dict[tuple[int, int], float]()
    for pace in (FEW, MANY):
        part, often = pace
        each, kept_s = there // part, 0.0
        for _ in range(often):
            run.add("payments", rows.part(end, end + each).table())
            kept_s += run.bring()[view.name]
            end += each
        per_s[pace] = often * each / kept_s
    rightly = right(run.table(view.name), rows.part(0, end))
    return Timed(there / made_s, per_s[FEW], per_s[MANY], rightly)


def _drawn(count: int) -> Payments:
    draw = np.random.default_rng(1)
    return Payments(
        id=np.arange(count),
        at=np.sort((BEGIN_S + draw.beta(2, 3, count) * _DAY_S) * 1_000_000).astype(np.int64),
        region=np.minimum(draw.geometric(0.3, count) - 1, REGIONS - 1),
        card=draw.integers(0, CARDS, count),
        cents=draw.integers(1, 100_000, count),
        declined=draw.random(count) < 0.1,
    )
