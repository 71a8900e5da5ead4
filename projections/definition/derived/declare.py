"""Declarations of derived views: SQL, aggregates, patterns and functions."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Final

from foundation.suggestion import did_you_mean
from projections.definition.arguments import declaring
from projections.definition.cache_options import DEFAULT_OPTIONS
from projections.definition.derived.relations import condition_of, relations
from projections.definition.derived.view_function import ViewFunction
from projections.definition.event_rows import KEY
from projections.definition.expectations.expectation import OnFail, expected, of_function, of_sql
from projections.definition.mirror import searched, stores_of
from projections.definition.operators.lateness import Late, added, fixed
from projections.definition.operators.measures import Measures, quoted, refuse_doubled
from projections.definition.operators.pattern import PatternQuery
from projections.definition.operators.standing_query import Percolation
from projections.definition.operators.time_bounds import MATCH_START, of_pattern, of_window, span_of
from projections.definition.operators.windows import END, START, keys_of
from projections.definition.registry import checked, collected
from projections.definition.views import DerivedView, EventsView, MirrorView, Store
from projections.errors import DeclarationError, SeveralSourcesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from projections.definition.cache_options import CacheOptions
    from projections.definition.expectations.expectation import Expectation
    from projections.definition.operators.measures import Approximate, Percentile, Top
    from projections.definition.operators.pattern import Pattern
    from projections.definition.operators.time_bounds import Extent, Span
    from projections.definition.operators.windows import Window
    from projections.definition.registry import Declarations
    from projections.definition.search_options import SearchOptions

_SELECT: Final = re.compile(
    r"\s*(--[^\n]*\n\s*|/\*.*?\*/\s*)*(select|with)\b", re.IGNORECASE | re.DOTALL
)
_ALL: Final = tuple(Store)

Input = MirrorView | EventsView | DerivedView


@declaring
def sql(  # noqa: PLR0913  # the options of a view, most of them rare
    name: str,
    query: str,
    keys: Sequence[str],
    to: Iterable[str] = _ALL,
    *,
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view by a Spark SQL query over other views, which it names.

    Args:
        name: The view's name in every store; lower case, digits and underscores.
        query: One SELECT, or the name of a `.sql` file beside the module that contains one.
        keys: Columns of its result that identify a row.
        to: Any of `table`, `search`, `cache`.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations, in addition to those in comments of the query: `-- CONSTRAINT
            positive EXPECT (total > 0) ON VIOLATION DROP ROW`.

    Raises:
        DeclarationError: The file is missing, the text is not a SELECT or names no view with a
            table, or the declaration is invalid.
    """
    text = _text(name, query)
    known = collected()
    read = relations(text)
    inputs = [n for n in (*known.views, *known.derived) if n in read]
    if not inputs:
        raise _unread(name, sorted(read))
    expectations = [*expect, *of_sql(text)]
    return declare(name, keys, to, inputs, search, cache, expectations, text=text)


@declaring
def aggregate(  # noqa: PLR0913
    name: str,
    of: Input,
    by: Sequence[str] = (),
    to: Iterable[str] = _ALL,
    *,
    window: Window | None = None,
    late: Late | None = None,
    count: str | None = None,
    rate: str | None = None,
    sums: Mapping[str, str] | None = None,
    averages: Mapping[str, str] | None = None,
    least: Mapping[str, str] | None = None,
    greatest: Mapping[str, str] | None = None,
    distinct: Mapping[str, str] | None = None,
    percentiles: Mapping[str, Percentile] | None = None,
    top: Mapping[str, Top] | None = None,
    approximate_distinct: Mapping[str, Approximate] | None = None,
    where: str | None = None,
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view with one row for each group of another view's rows.

    Args:
        name: The view's name in every store.
        of: The view whose rows are grouped.
        by: Columns of the groups, which are the view's keys.
        to: Any of `table`, `search`, `cache`.
        window: Time windows in each group. `window_start` is a key too, and `window_end` a column;
            for `Sliding`, the reverse.
        late: Which rows come too late for their window; its measures exclude them.
        count: Name of the column with the number of rows; None for none.
        rate: Name of the column with the rows per second of a window; None for none.
        sums: Columns to add up, by the name of the sum.
        averages: Columns to average, by the name of the mean.
        least: Columns to take the least value of, by the name of the result.
        greatest: Columns to take the greatest value of, by the name of the result.
        distinct: Columns whose distinct values are counted, by the name of the count.
        percentiles: Percentiles of columns, by the name of the result; exact by default.
        top: The first rows of each group, by the name of the column that lists them.
        approximate_distinct: Columns whose distinct values are counted by a sketch with a stated
            error, by the name of the count.
        where: Spark SQL condition on the rows that count.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations.

    Raises:
        DeclarationError: There is no measure, or the declaration is invalid.
    """
    sets = (distinct, percentiles, top, approximate_distinct)
    measures = Measures(count, rate, sums, averages, least, greatest, *sets)
    _require_measures(name, by, measures, window, late)
    groups, condition = tuple(by), condition_of(f"view {name}", where)
    if window is not None:
        text = windows_of(window, late, of.name, groups, measures, condition)
        limit = "" if late is None else late.limit(window)
        common = (name, keys_of(window, groups), to, [of.name], search, cache, expect)
        return declare(
            *common, text=text, limit=limit, extent=of_window(window, groups), span=span_of(window)
        )
    listed, kept = ", ".join(map(quoted, by)), f" WHERE {condition}" if condition else ""
    rows = f"{listed}, {measures.of_groups()} FROM {of.name}{kept}"
    text = f"SELECT {rows} GROUP BY {listed}"  # of a declaration
    return declare(name, by, to, [of.name], search, cache, expect, text=text)


def windows_of(  # noqa: PLR0913, PLR0917  # the arguments of `Window.select`, and two more
    window: Window,
    late: Late | None,
    table: str,
    by: tuple[str, ...],
    measures: Measures,
    condition: str,
) -> str:
    """Returns the query that groups a table into windows, with or without late rows.

    Args:
        window: The windows.
        late: Which rows are too late for their window; None for none.
        table: The view whose rows are grouped.
        by: Columns of the groups.
        measures: Measures of each window.
        condition: Spark SQL condition on the rows that count; empty for all.

    Raises:
        DeclarationError: These windows do not support late rows or one of the measures.
    """
    if late is None:
        return window.select(table, by, measures, condition)
    return late.select(window, table, by, measures, condition)


def _require_measures(
    name: str,
    by: Sequence[str],
    measures: Measures,
    window: Window | None,
    late: Late | None,
) -> None:
    computed = [*measures.names, *(() if late is None else late.names)]
    if late is not None and window is None:
        raise DeclarationError(
            f"view {name}: late needs a window",
            hint='window=Tumbling("at", "1 minute")',
        )
    if not computed or not (by or window):
        raise DeclarationError(
            f"view {name} has no groups" if computed else f"view {name} computes nothing",
            hint='view.aggregate("sales", orders, by=["status"], count="orders", sums={...})',
        )
    bounds = () if window is None else (START, END)
    names = [*by, *bounds, *computed]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise DeclarationError(f"view {name} has two columns named {twice[0]}")


@declaring
def late(  # noqa: PLR0913
    name: str,
    of: Input,
    to: Iterable[str] = _ALL,
    *,
    window: Window,
    late: Late,
    keys: Sequence[str] = (),
    where: str | None = None,
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view with one row for each late row of another view and each window it missed.

    A row has the columns of its original, `window_start`, `window_end` and `late_by_s`: the seconds
    between the end of the window and the row's arrival. For sessions and sliding windows, a late
    row occurs once, without a window, and `late_by_s` counts from its own time. `aggregate`, with
    the same `late`, computes the windows without late rows.

    Args:
        name: The view's name in every store.
        of: The view of the rows.
        to: Any of `table`, `search`, `cache`.
        window: The windows.
        late: Which rows come too late for their window.
        keys: Columns that identify a row of `of`; default: those of its declaration. The view's
            keys are these and, where there are windows, `window_start`.
        where: Spark SQL condition on the rows that count.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations.

    Raises:
        DeclarationError: The key of a row is unknown, or the declaration is invalid.
    """
    identity = tuple(keys) or identity_of(name, of)
    refuse_taken(name, of, identity, added(window))
    text = late.late_rows(window, of.name, condition_of(f"view {name}", where))
    known_by = (*identity, START) if fixed(window) else identity
    common = (name, known_by, to, [of.name], search, cache, expect)
    return declare(*common, text=text, span=span_of(window))


def refuse_taken(name: str, of: Input, identity: Sequence[str], more: Sequence[str]) -> None:
    """Refuses a view with own columns if one is named like a key column of its input.

    Args:
        name: The view that is being declared.
        of: The view that it reads.
        identity: Key columns of that view.
        more: Names of its own columns.

    Raises:
        DeclarationError: Two columns have one name.
    """
    if taken := [each for each in more if each in identity]:
        raise DeclarationError(
            f"view {name} has two columns named {taken[0]}",
            detail=f"{of.name} has one",
            hint="rename the column in a view.sql(...) between them",
        )


def identity_of(name: str, of: Input) -> tuple[str, ...]:
    """Returns the columns that identify a row of a view, if its declaration names them.

    Raises:
        DeclarationError: The declaration names none.
    """
    if isinstance(of, DerivedView):
        return of.keys
    if isinstance(of, EventsView):
        return (KEY,)
    if of.keys and of.history is None:
        return of.keys
    history = of.history is not None
    raise DeclarationError(
        f"view {name}: the key of {of.name} is unknown",
        detail="it has many rows for each key" if history else "its key is that of its table",
        hint='keys=["id", "valid_from", "recorded_from"]' if history else 'keys=["id"]',
    )


@declaring
def pattern(  # noqa: PLR0913
    name: str,
    of: Input,
    by: Sequence[str],
    to: Iterable[str] = _ALL,
    *,
    time: str,
    pattern: Pattern,
    keep: Sequence[str] = (),
    where: str | None = None,
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view with one row for each match of a pattern in the rows of another view.

    Args:
        name: The view's name in every store.
        of: The view to search.
        by: Columns of the groups: all rows of a match have them in common.
        to: Any of `table`, `search`, `cache`.
        time: Column with the time of a row.
        pattern: The pattern.
        keep: Columns of the matched rows that a match lists, beside step and time.
        where: Spark SQL condition on the rows that count.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations.

    Raises:
        DeclarationError: The declaration is invalid.
    """
    if not by:
        raise DeclarationError(f"view {name}: a pattern needs groups: by=[...]", hint='by=["card"]')
    if taken := sorted({"at", "step"} & {*keep}):
        raise DeclarationError(
            f"view {name} cannot have a column named {taken[0]}",
            hint="the rows of a match have columns with these names",
        )
    refuse_doubled(f"the rows of view {name}", (*keep, "at", "step"))
    for step in pattern.steps:
        condition_of(f"step {step.name} of view {name}", step.where)
    condition = condition_of(f"view {name}", where)
    query = PatternQuery(pattern, tuple(by), time, tuple(keep), condition)
    common = (name, (*by, MATCH_START, "match_number"), to, [of.name], search, cache, expect)
    limit = f"rows within {query.pattern.within}"
    return declare(*common, looked_for=query, limit=limit, extent=of_pattern(query))


@declaring
def function(  # noqa: PLR0913
    name: str | None = None,
    *,
    keys: Sequence[str],
    to: Iterable[str] = _ALL,
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> Callable[[Callable[..., Any]], DerivedView]:
    """Declares a view by a function of DataFrames, as a decorator.

    The function's parameters have the names of the views that it reads. It only describes the
    result: actions that read rows (`count`, `collect`) belong elsewhere.

    Args:
        name: The view's name in every store; default: the function's.
        keys: Columns of its result that identify a row.
        to: Any of `table`, `search`, `cache`.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations, in addition to those of `@expect(...)` below it.
    """

    def declared(made: Callable[..., Any]) -> DerivedView:
        inputs = list(inspect.signature(made).parameters)
        called = name or made.__name__
        known = collected()
        sent = ViewFunction.of(made, called, known.module, known.folders)
        expectations = [*expect, *of_function(made)]
        return declare(called, keys, to, inputs, search, cache, expectations, made=sent)

    return declared


def declare(  # noqa: PLR0913, PLR0917  # the parts of one declaration
    name: str,
    keys: Sequence[str],
    to: Iterable[str],
    inputs: Sequence[str],
    search: SearchOptions | None,
    cache: CacheOptions | None,
    expect: Iterable[Expectation],
    *,
    text: str | None = None,
    made: ViewFunction | None = None,
    looked_for: PatternQuery | Percolation | None = None,
    limit: str = "",
    extent: Extent | None = None,
    span: Span | None = None,
) -> DerivedView:
    """Declares a derived view of any kind; the functions above supply the arguments."""
    places = stores_of(name, to)
    if not keys or len(set(keys)) < len(keys):
        raise DeclarationError(f"view {name} needs keys without duplicates")
    if cache is not None and Store.CACHE not in places:
        raise DeclarationError(f"view {name} has cache options, but is not in the cache")
    expectations = expected(name, expect)
    if any(each.on_fail is OnFail.QUARANTINE for each in expectations):
        raise DeclarationError(
            f"view {name} is a derived view: it has no records to quarantine",
            hint=('use on_fail warn, drop or fail; declare "quarantine" on a view that it reads'),
        )
    known = collected()
    _require_tables(name, inputs)
    known.refuse_taken(checked(name, "view"))
    declared = DerivedView(
        name,
        tuple(keys),
        places,
        tuple(inputs),
        text,
        made,
        searched(name, places, search),
        cache or DEFAULT_OPTIONS,
        repr(looked_for) if looked_for else "" if made is None else made.text,
        expectations,
        looked_for if isinstance(looked_for, PatternQuery) else None,
        looked_for if isinstance(looked_for, Percolation) else None,
        limit,
        extent,
        span,
    )
    known.derived[name] = declared
    return declared


def _require_tables(name: str, inputs: Sequence[str]) -> None:
    """Refuses inputs without a table or declared later, so that views form no cycle."""
    known = collected()
    views: Mapping[str, Input] = {**known.views, **known.derived}
    if not inputs:
        raise _unread(name)
    for each in inputs:
        if each not in views:
            raise DeclarationError(
                f"view {name} reads {each}, which is not declared before it",
                hint="declared: " + ", ".join(views),
            )
        view = views[each]
        if not isinstance(view, DerivedView) and Store.TABLE not in view.to:
            raise DeclarationError(
                f"view {name} reads {each}, which has no table", hint='use to=["table", ...]'
            )
    _refuse_chained(name, inputs, known)


def _unread(name: str, given: Sequence[str] = ()) -> DeclarationError:
    """Returns the error for a view whose query names no view; `given` is what it names."""
    known = collected()
    views = (*known.views, *known.derived)
    near = filter(None, (did_you_mean(each, views, "") for each in given))
    return DeclarationError(
        f"view {name} reads no view",
        detail=f"its query reads: {', '.join(given)}" if given else None,
        hint=next(
            near,
            "refer to views by their names, without a schema, and declare them before the views "
            "that read them",
        ),
    )


def _refuse_chained(name: str, inputs: Sequence[str], known: Declarations) -> None:
    """Refuses an input that combines several sources in the job of another source."""
    sources = {each: known.sources_of(each) for each in inputs}
    reached = {source for several in sources.values() for source in several}
    owner = next(source for source in known.sources if source in reached)
    for each, several in sources.items():
        if several[0] != owner and len(several) > 1:
            raise SeveralSourcesError(
                f"view {name} of source {owner} reads {each}, which combines several sources",
                detail=f"{each} combines {', '.join(several)}, in the job of source {several[0]}",
                hint=f"read the views that {each} reads, or declare source {several[0]} first",
            )


def _text(name: str, query: str) -> str:
    if _SELECT.match(query):
        return query
    module = collected().module
    path = None if module is None else module.parent / query
    if not query.endswith(".sql") or path is None or not path.is_file():
        raise DeclarationError(
            f"view {name} has no query",
            detail=query[:80],
            hint="give one SELECT, or the name of a .sql file beside the views module",
        )
    text = path.read_text("utf-8")
    if not _SELECT.match(text):
        raise DeclarationError(f"view {name}: {query[:80]} is not a SELECT")
    return text
