"""A pattern of three steps in two million rows, as a new view of it is made, and as it is kept.

Three declined payments of a card and then a large one, within six hours. The matches are counted
beside it in plain steps, card by card, before a figure counts; how the view is made is told in
`payments`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks import payments
from benchmarks.payments import CARDS, FEW, MANY
from benchmarks.result import Report, at_least
from benchmarks.streaming import say
from projections.definition.operators.pattern import Pattern, PatternQuery, Step
from projections.definition.operators.time_bounds import of_pattern
from projections.definition.views import DerivedView, Store

if TYPE_CHECKING:
    import pyarrow as pa

    from benchmarks.payments import Payments

ROWS_PER_S: Final = 50_000.0

_DECLINED: Final = 3
_WITHIN_S: Final = 6 * 3_600


def run(quick: bool) -> Report:
    """Measures; `quick` takes a twentieth of the rows."""
    count = payments.ROWS_QUICK if quick else payments.ROWS
    ours = payments.timed(_view(), payments.made(count), count, _right)
    metric = f"a pattern in {count:,} rows of {CARDS:,} cards, rows/s"
    measures = [at_least(metric, ours=ours.made_per_s, target=ROWS_PER_S)]
    for (part, _), per_s in ((FEW, ours.few_per_s), (MANY, ours.many_per_s)):
        metric = f"a pattern beside so many rows, kept as {count // part:,} come at once, rows/s"
        measures.append(at_least(metric, ours=per_s, target=ROWS_PER_S))
    return Report("patterns", ours.right, tuple(measures))


def _view() -> DerivedView:
    pattern = Pattern(
        [Step("declined", "declined", _DECLINED), Step("large", "NOT declined AND cents > 90000")],
        within=f"{_WITHIN_S} seconds",
    )
    query = PatternQuery(pattern, ("card",), "at", ("id",))
    return DerivedView(
        "suspects",
        ("card", "match_start", "match_number"),
        frozenset([Store.TABLE]),
        ("payments",),
        text=repr(query),
        pattern=query,
        extent=of_pattern(query),
    )


def _right(found: pa.Table, rows: Payments) -> bool:
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
