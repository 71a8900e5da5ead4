"""Heavy hitters: the most frequent values of a column in each group and window.

The counts are exact. A sketch of bounded size (`approx_top_k`) depends on the order of the rows, so
a maintained view and a rebuilt one would differ. Spark holds the distinct values of one group at
once, but not its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from projections.definition.arguments import declaring
from projections.definition.derived.declare import declare, windows_of
from projections.definition.derived.relations import condition_of
from projections.definition.operators.lateness import fixed
from projections.definition.operators.measures import Measures, quoted, refuse_doubled
from projections.definition.operators.time_bounds import span_of
from projections.definition.operators.windows import END, START, both, keys_of
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

VALUES: Final = "values"
"""Name of the view's list of values; each entry has the value under its column's name."""

ROWS_MAX: Final = 10_000
_COUNT: Final = "rows"
_COUNTED: Final = "_headwater_rows"
_ALL: Final = tuple(Store)


@declaring
def frequent(  # noqa: PLR0913, PLR0917  # the options of a view, most of them rare
    name: str,
    of: Input,
    column: str,
    rows: int = 10,
    by: Sequence[str] = (),
    to: Iterable[str] = _ALL,
    *,
    window: Window | None = None,
    late: Late | None = None,
    where: str | None = None,
    search: SearchOptions | None = None,
    cache: CacheOptions | None = None,
    expect: Iterable[Expectation] = (),
) -> DerivedView:
    """Declares a view of the most frequent values of a column, one row for each group.

    A row has the group's columns; with a window, `window_start` and `window_end`; and `values`, a
    list. Each entry has the value, under the column's name, and `rows`, the number of rows with it.
    The most frequent value comes first; of equally frequent ones, the least. NULL is not counted.

    Args:
        name: The view's name in every store.
        of: The view of the rows.
        column: The column.
        rows: Maximum number of values.
        by: Columns of the groups.
        to: Any of `table`, `search`, `cache`.
        window: Time windows in each group: `Tumbling`, `Hopping` or `Calendar`.
        late: Which rows come too late for their window and do not count.
        where: Spark SQL condition on the rows that count.
        search: How search indexes its fields.
        cache: How the cache stores it.
        expect: Its expectations.

    Raises:
        DeclarationError: There is no group, or the declaration is invalid.
    """
    groups = tuple(by)
    _require_groups(name, column, groups, window, late)
    if not 1 <= rows <= ROWS_MAX:
        raise DeclarationError(
            f"view {name} has an invalid number of values: {rows}", detail=f"1 to {ROWS_MAX:,}"
        )
    keys = groups if window is None else keys_of(window, groups)
    condition = condition_of(f"view {name}", where)
    rows_of_values = counted(of.name, column, groups, window, late, condition)
    text = query(rows_of_values, column, rows, keys if window is None else (*keys, END), keys)
    span = None if window is None else span_of(window)
    return declare(name, keys, to, [of.name], search, cache, expect, text=text, span=span)


def query(
    values: str, column: str, rows: int, group_columns: Sequence[str], keys: Sequence[str]
) -> str:
    """Returns the query of the most frequent values; see `frequent`.

    Args:
        values: The query that counts each value in each group; see `counted`.
        column: The column.
        rows: Maximum number of values.
        group_columns: Columns of a group.
        keys: Columns that identify a group; its other columns are equal in all its rows.
    """
    value = quoted(column)
    listed = [
        quoted(each) if each in keys else f"max({quoted(each)}) AS {quoted(each)}"
        for each in group_columns
    ]
    pairs = f"array_sort(collect_list(struct(-{_COUNTED} AS less, {value} AS value)))"
    first = f"transform(slice({pairs}, 1, {rows}), each -> {_pair(value)})"
    groups = ", ".join(map(quoted, keys))
    return (
        f"SELECT {', '.join(listed)}, {first} AS {quoted(VALUES)}"  # noqa: S608  # of a declaration
        f" FROM ({values}) GROUP BY {groups}"
    )


def _pair(value: str) -> str:
    return f"struct(each.value AS {value}, -each.less AS {quoted(_COUNT)})"


def counted(  # noqa: PLR0913, PLR0917  # the parts of one declaration
    table: str,
    column: str,
    by: tuple[str, ...],
    window: Window | None = None,
    late: Late | None = None,
    where: str = "",
) -> str:
    """Returns the query that counts each value in each group; arguments as of `frequent`."""
    groups, measures = (*by, column), Measures(_COUNTED)
    condition = both(f"{quoted(column)} IS NOT NULL", where)
    if window is not None:
        return windows_of(window, late, table, groups, measures, condition)
    names = ", ".join(map(quoted, groups))
    rows = f"{names}, {measures.of_groups()} FROM {table} WHERE {condition}"
    return f"SELECT {rows} GROUP BY {names}"  # of a declaration


def _require_groups(
    name: str, column: str, by: tuple[str, ...], window: Window | None, late: Late | None
) -> None:
    if not by and window is None:
        raise DeclarationError(
            f"view {name} has no groups", hint='by=["shop"], or window=Calendar("at", "day")'
        )
    if window is not None and not fixed(window):
        raise DeclarationError(
            f"view {name}: {type(window).__name__} windows would differ for each value",
            hint="Tumbling, Hopping or Calendar",
        )
    if late is not None and (window is None or late.count is not None):
        raise DeclarationError(
            f"view {name}: late needs a window, and cannot count rows",
            hint='window=Tumbling("at", "1 minute"), and late without count=',
        )
    taken = [*by, VALUES, *(() if window is None else (START, END))]
    if column in taken or len(set(taken)) < len(taken):
        raise DeclarationError(
            f"view {name} has two columns with one name", detail=", ".join([*taken, column])
        )
    refuse_doubled(f"the values of view {name}", (column, _COUNT))
