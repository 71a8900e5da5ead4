"""Windows beside those of some time before: this minute, and the same minute a week ago."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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


def lagged(  # noqa: PLR0913  # what may be said of a view, most of it seldom
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
    """Declares a view of windows, each with what the same group's window of some time before had.

    It has a row for each window of `of`, with all its columns. Where there was no such window, what
    it had is NULL. Either window may still change: both are rows like any others.

    Args:
        name: The view's name in every store.
        of: The windows, a view of `aggregate` with a `window`.
        back: How long before: `7 days`.
        columns: Columns of the window before, by what they are called beside those of this one.
        to: Any of `table`, `search`, `cache`.
        zone: Whose days `back` counts, where windows are those of a calendar: `Europe/Stockholm`. A
            week is 167 or 169 hours there twice a year.
        search: How its fields are indexed for search.
        cache: How it is laid out in the cache.
        expect: What its rows should be like.

    Raises:
        DeclarationError: `of` has no windows, or the declaration does not fit.
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
    """Returns the query of windows, each beside the one before it; see `lagged`.

    Args:
        windows: The view that has them.
        keys: Its keys, one of which is the bound of a window.
        back: How long before.
        columns: Columns of the window before, by what they are called.
        zone: Whose days `back` counts; None counts hours.

    Raises:
        DeclarationError: `back` is no duration, or there is no such zone.
    """
    bound = next(each for each in (START, END) if each in keys)
    same = [f"before.{quoted(bound)} = {_earlier(f'this.{quoted(bound)}', back, zone)}"]
    same += [f"before.{quoted(key)} <=> this.{quoted(key)}" for key in keys if key != bound]
    shown = [f"before.{quoted(column)} AS {quoted(called)}" for called, column in columns.items()]
    return (
        f"SELECT this.*, {', '.join(shown)} FROM {windows} this"  # noqa: S608  # of a declaration
        f" LEFT JOIN {windows} before ON {' AND '.join(same)}"
    )


def _earlier(at: str, back: str, zone: str | None) -> str:
    """The expression of a time that lies some time before another."""
    width = f"INTERVAL {micros(back)} MICROSECONDS"
    if zone is None:
        return f"{at} - {width}"
    require_zone(zone)
    return f"to_utc_timestamp(from_utc_timestamp({at}, '{zone}') - {width}, '{zone}')"
