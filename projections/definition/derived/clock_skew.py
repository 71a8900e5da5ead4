"""Wrong clocks: views of rows without a usable time, and views with corrected times.

Three times determine the correction: the event and its sending by the device's clock, and its
receipt by the server's. The clock's error at sending is assumed to be its error at the event; the
network's delay counts as part of that error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from projections.definition.arguments import declaring
from projections.definition.derived.declare import aggregate, declare, identity_of, refuse_taken
from projections.definition.derived.relations import condition_of
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


@declaring
def untimed(  # noqa: PLR0913  # the options of a view, most of them rare
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
    """Declares a view of the rows of another view that are in no window because of their time.

    A row has the columns of its original and `reason`: `missing` if its time is NULL, `absurd` if
    the time is before year 2, after 9998 or a placeholder, `ahead` if it is further after the row's
    arrival than `late` allows. `aggregate`, with the same `window` and `late`, computes the windows
    without these rows; `view.late` lists rows that are late for a window.

    Args:
        name: The view's name in every store.
        of: The view of the rows.
        to: Any of `table`, `search`, `cache`.
        window: The windows.
        late: Its `ahead` decides which clocks are wrong; None if none is.
        keys: Columns that identify a row of `of`; default: those of its declaration.
        where: Spark SQL condition on the rows that count.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations.

    Raises:
        DeclarationError: The key of a row is unknown, or the declaration is invalid.
    """
    identity = tuple(keys) or identity_of(name, of)
    refuse_taken(name, of, identity, [REASON])
    text = untimed_rows(window, of.name, condition_of(f"view {name}", where), late)
    return declare(name, identity, to, [of.name], search, cache, expect, text=text)


@declaring
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
    """Declares a view of the rows of another view, each with its time by the server's clock.

    A row has the columns of its original, the corrected time, `clock_fast_s` (seconds by which the
    device's clock was ahead at sending; negative if behind) and `waited_s` (seconds that the row
    waited on the device). If the time of sending or of receipt is missing or absurd, the clock's
    error is unknown: the corrected time is the event's own, and `clock_fast_s` is NULL. A missing
    event time stays NULL, and an absurd one stays as it is.

    If the event is later than its sending, the clock was set in between, so its error at sending
    does not apply to the event, whose corrected time would be after its receipt. Such a row is not
    corrected either, and `waited_s` is NULL too.

    Args:
        name: The view's name in every store.
        of: The view of the rows.
        to: Any of `table`, `search`, `cache`.
        event: The column with the time of the event, by the device's clock.
        sent: The column with the time at which the device sent it, by the same clock.
        received: The column with the time at which it was received, by the server's.
        at: Name of the column with the corrected time.
        keys: Columns that identify a row of `of`; default: those of its declaration.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations.

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


@declaring
def clocks(
    name: str,
    of: DerivedView,
    by: Sequence[str],
    to: Iterable[str] = _ALL,
    *,
    where: str | None = None,
) -> DerivedView:
    """Declares a view of clock errors and waiting times, with one row for each device.

    Its measures are `rows`; the seconds by which the clock was ahead: `fast_least_s` (negative if
    behind), `fast_most_s` and `fast_p95_s`; the seconds that rows waited: `waited_most_s` and
    `waited_p95_s`.

    Args:
        name: The view's name in every store.
        of: A view of `clocked`.
        by: Columns that identify a device.
        to: Any of `table`, `search`, `cache`.
        where: Spark SQL condition on the rows that count, such as those of a day.

    Raises:
        DeclarationError: The declaration is invalid.
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
