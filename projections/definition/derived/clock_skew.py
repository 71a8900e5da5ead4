"""Clocks that are wrong: rows whose time is none, and times that are put right.

Three times tell what time it was: that of the event and that of sending by the clock of a device,
and that of receiving by the server's. What that clock was wrong by when the device sent, it was
wrong by when the event happened; what the network took is counted to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from projections.definition.derived.declare import aggregate, declare, identity_of, refuse_taken
from projections.definition.operators.lateness import REASON, untimed_rows
from projections.definition.operators.measures import Percentile, quoted
from projections.definition.operators.windows import usable
from projections.definition.views import Store
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from projections.definition.cache_options import CacheOptions
    from projections.definition.derived.declare import Input
    from projections.definition.expectations.expectation import Expectation
    from projections.definition.operators.lateness import Late
    from projections.definition.operators.windows import Window
    from projections.definition.search_options import SearchOptions
    from projections.definition.views import DerivedView

FAST: Final = "clock_fast_s"
WAITED: Final = "waited_s"
_ALL: Final = tuple(Store)


def untimed(  # noqa: PLR0913  # what may be said of a view, most of it seldom
    name: str,
    of: Input,
    to: Iterable[str] = _ALL,
    *,
    window: Window,
    late: Late | None = None,
    keys: Sequence[str] = (),
    where: str | None = None,
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view of the rows of another that are in no window for their time.

    It has the columns of such a row, and `reason`: `missing` if its time is NULL, `absurd` if it
    lies before year 2 or after 9998 or stands for none, `ahead` if it lies further after the row
    arrived than `late` lets it. Windows without these rows are those of `aggregate`, with the same
    `window` and `late`; rows that are late for one are those of `view.late`.

    Args:
        name: The view's name in every store.
        of: The view whose rows they are.
        to: Any of `table`, `search`, `cache`.
        window: The windows.
        late: Says with `ahead` which clocks are wrong; None if none is.
        keys: Columns that identify a row of `of`; default: those of its declaration.
        where: A condition of Spark SQL on the rows that count.
        search: How its fields are indexed for search.
        cache: How it is laid out in the cache.
        expect: What its rows should be like.

    Raises:
        DeclarationError: The key of a row is unknown, or the declaration is invalid.
    """
    identity = tuple(keys) or identity_of(name, of)
    refuse_taken(name, of, identity, [REASON])
    text = untimed_rows(window, of.name, where or "", late)
    return declare(name, identity, to, [of.name], search, cache, expect, text=text)


def clocked(  # noqa: PLR0913
    name: str,
    of: Input,
    to: Iterable[str] = _ALL,
    *,
    event: str,
    sent: str,
    received: str,
    at: str = "at",
    keys: Sequence[str] = (),
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view of the rows of another, each with the time that it was by the server's clock.

    It has the columns of a row, the corrected time, `clock_fast_s`: how many seconds the device's
    clock was ahead when it sent (behind: less than 0), and `waited_s`: how many seconds the row
    waited on the device. Where the time of sending or of receiving is missing or absurd, nothing is
    known of the clock: the corrected time is that of the event as it is, and `clock_fast_s` is
    NULL. An event that has no time gets none, and one whose time is absurd keeps it.

    If the event is later than its sending, the clock was set between the two, so its error at
    sending says nothing about the event, which would come out later than it was received: such a
    row is not corrected either, and `waited_s` is NULL too.

    Args:
        name: The view's name in every store.
        of: The view whose rows they are.
        to: Any of `table`, `search`, `cache`.
        event: The column with the time of the event, by the device's clock.
        sent: The column with the time at which the device sent it, by the same clock.
        received: The column with the time at which it was received, by the server's.
        at: What the corrected time is called.
        keys: Columns that identify a row of `of`; default: those of its declaration.
        search: How its fields are indexed for search.
        cache: How it is laid out in the cache.
        expect: What its rows should be like.

    Raises:
        DeclarationError: Two columns have one name, the key of a row is unknown, or the declaration
            is invalid.
    """
    given, made = (event, sent, received), (at, FAST, WAITED)
    if len({*given, *made}) < len(given) + len(made):
        raise DeclarationError(
            (
                f"view {name}: the three times and the three computed columns must be six "
                "different columns"
            ),
            detail=", ".join((*given, *made)),
            hint='rename the corrected time with at="corrected_at"',
        )
    identity = tuple(keys) or identity_of(name, of)
    refuse_taken(name, of, identity, made)
    happened, went, came = (f"unix_micros({_moment(each)})" for each in given)
    known, leaves, arrives = (usable(_moment(each)) for each in given)
    steady = f"{leaves} AND NOT coalesce({known} AND {went} < {happened}, false)"
    corrected = f"timestamp_micros({happened} + {came} - {went})"
    trusted = f"{known} AND {steady} AND {arrives} AND {usable(corrected)}"
    right = f"CASE WHEN {trusted} THEN {corrected} ELSE {_moment(event)} END"
    fast = f"CASE WHEN {steady} AND {arrives} THEN ({went} - {came}) / 1000000D END"
    waited = f"CASE WHEN {known} AND {steady} THEN ({went} - {happened}) / 1000000D END"
    listed = f"*, {right} AS {quoted(at)}, {fast} AS {FAST}, {waited} AS {WAITED}"
    text = f"SELECT {listed} FROM {of.name}"  # noqa: S608  # of a declaration
    return declare(name, identity, to, [of.name], search, cache, expect, text=text)


def clocks(
    name: str,
    of: DerivedView,
    by: Sequence[str],
    to: Iterable[str] = _ALL,
    *,
    where: str | None = None,
) -> DerivedView:
    """Declares a view of how wrong clocks are, and how long rows wait: one row for each device.

    Its measures are `rows`; by how many seconds the clock was ahead: `fast_least_s` (less than 0 if
    it was behind), `fast_most_s` and `fast_p95_s`; how many seconds rows waited: `waited_most_s`
    and `waited_p95_s`.

    Args:
        name: The view's name in every store.
        of: A view of `clocked`.
        by: Columns that tell one device from another.
        to: Any of `table`, `search`, `cache`.
        where: A condition of Spark SQL on the rows that count, such as those of a day.

    Raises:
        DeclarationError: The declaration does not fit.
    """
    return aggregate(
        name,
        of,
        by,
        to,
        count="rows",
        least={"fast_least_s": FAST},
        greatest={"fast_most_s": FAST, "waited_most_s": WAITED},
        percentiles={
            "fast_p95_s": Percentile(FAST, 0.95),
            "waited_p95_s": Percentile(WAITED, 0.95),
        },
        where=where,
    )


def _moment(column: str) -> str:
    return f"CAST({quoted(column)} AS TIMESTAMP)"
