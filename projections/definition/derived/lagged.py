"""Windows beside earlier ones: this minute, and the same minute a week ago."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from projections.definition.arguments import declaring
from projections.definition.derived.declare import declare
from projections.definition.operators.measures import quoted
from projections.definition.operators.windows import END, START, micros, require_zone
from projections.definition.views import DerivedView, Store
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from projections.definition.cache_options import CacheOptions
    from projections.definition.derived.declare import Input
    from projections.definition.expectations.expectation import Expectation
    from projections.definition.search_options import SearchOptions

_ALL: Final = tuple(Store)


@declaring
def lagged(  # noqa: PLR0913  # the options of a view, most of them rare
    name: str,
    of: Input,
    back: str,
    columns: Mapping[str, str],
    to: Iterable[str] = _ALL,
    *,
    zone: str | None = None,
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view of windows, each with columns of an earlier window of the same group.

    It has a row for each window of `of`, with all its columns. The columns of an earlier window
    that does not exist are NULL. Both windows can still change: they are ordinary rows.

    Args:
        name: The view's name in every store.
        of: The windows, a view of `aggregate` with a `window`.
        back: Distance to the earlier window: `7 days`.
        columns: Columns of the earlier window, by the name that they get.
        to: Any of `table`, `search`, `cache`.
        zone: Time zone in which `back` counts days, for windows of a calendar: `Europe/Stockholm`.
            A week there has 167 or 169 hours twice a year.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations.

    Raises:
        DeclarationError: `of` has no windows, or the declaration is invalid.
    """
    keys = of.keys if isinstance(of, DerivedView) else ()
    if not {START, END} & {*keys}:
        raise DeclarationError(
            f"view {name}: {of.name} has no windows",
            hint='view.aggregate("per_minute", orders, window=Tumbling("at", "1 minute"), ...)',
        )
    if not columns:
        raise DeclarationError(
            f"view {name} has no columns of the earlier window", hint='{"a_week_ago": "orders"}'
        )
    if taken := [each for each in columns if each in {*keys, START, END}]:
        raise DeclarationError(
            f"view {name} has two columns named {taken[0]}", detail=f"{of.name} has one"
        )
    text = query(of.name, keys, back, columns, zone)
    return declare(name, keys, to, [of.name], search, cache, expect, text=text)


def query(
    windows: str, keys: Sequence[str], back: str, columns: Mapping[str, str], zone: str | None
) -> str:
    """Returns the query that joins each window with the earlier one; see `lagged`.

    Args:
        windows: The view of the windows.
        keys: Its keys, including a bound of the window.
        back: Distance to the earlier window.
        columns: Columns of the earlier window, by the name that they get.
        zone: Time zone in which `back` counts days; None counts hours.

    Raises:
        DeclarationError: `back` is not a duration, or the zone does not exist.
    """
    bound = next(each for each in (START, END) if each in keys)
    same = [f"before.{quoted(bound)} = {_earlier(f'this.{quoted(bound)}', back, zone)}"]
    same += [f"before.{quoted(key)} <=> this.{quoted(key)}" for key in keys if key != bound]
    earlier = [f"before.{quoted(column)} AS {quoted(called)}" for called, column in columns.items()]
    return (
        f"SELECT this.*, {', '.join(earlier)} FROM {windows} this"  # noqa: S608  # of a declaration
        f" LEFT JOIN {windows} before ON {' AND '.join(same)}"
    )


def _earlier(at: str, back: str, zone: str | None) -> str:
    """Returns the expression of an earlier time."""
    width = f"INTERVAL {micros(back)} MICROSECONDS"
    if zone is None:
        return f"{at} - {width}"
    require_zone(zone)
    return f"to_utc_timestamp(from_utc_timestamp({at}, '{zone}') - {width}, '{zone}')"
