"""`headwater cache`: the content of a view in the cache, as applications read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import token
from headwater.cli.options import (
    TIMEOUT_S,
    AtLeast,
    Commands,
    Json,
    ProjectOptions,
    Timeout,
)
from headwater.cli.output import print_json, print_rows, stderr
from projections.definition.cache_options import ROWS
from projections.definition.views import Store

if TYPE_CHECKING:
    from projections.stores.valkey.reader import CacheReader

app = Commands(help="Read views in the cache.", no_args_is_help=True)

_LIMIT = 100

View = Annotated[str, typer.Argument(help="The view.")]
Name = Annotated[
    str | None,
    typer.Argument(help="The pattern with its values, such as customer:42:orders; default: all."),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number.")]


@app.command("get")
def get(
    name: View,
    key: Annotated[list[str], typer.Argument(help="The key; one value for each key column.")],
    *,
    at_least: AtLeast = None,
    timeout_s: Timeout = TIMEOUT_S,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Show the row of a key. Exits 1 if the view has no such row.

    Example: headwater cache get orders 42
    """
    with _reader(name, options, at_least, timeout_s) as view:
        row = view.get(*key)
    if row is None:
        if as_json:
            print_json(None)
        stderr.print(f"{name} has no row of that key in the cache")
        raise typer.Exit(1)
    if as_json:
        print_json(row)
        return
    columns = [{"column": column, "value": value} for column, value in row.items()]
    print_rows(columns, as_json=False, title="", empty="")


@app.command("lookup")
def lookup(
    name: View,
    lookup: Name = None,
    *,
    limit: Limit = _LIMIT,
    at_least: AtLeast = None,
    timeout_s: Timeout = TIMEOUT_S,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Show the rows in a lookup; without a name, list the view's lookups.

    Example: headwater cache lookup orders customer:42:orders
    """
    with _reader(name, options, at_least, timeout_s) as view:
        if lookup is None:
            names = [{"lookup": lookup_name} for lookup_name in view.names("lookup")[:limit]]
            print_rows(names, as_json=as_json, title="", empty="it has no lookups")
            return
        keys = view.lookup(lookup)[:limit]
        rows = [{"key": key, **(row or {})} for key, row in zip(keys, view.rows(keys), strict=True)]
    print_rows(rows, as_json=as_json, title="", empty="no row belongs to it")


@app.command("count")
def count(
    name: View,
    counter: Name = None,
    *,
    limit: Limit = _LIMIT,
    at_least: AtLeast = None,
    timeout_s: Timeout = TIMEOUT_S,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Show counters: the number of rows, and the sum of a column.

    Example: headwater cache count orders revenue:42
    """
    with _reader(name, options, at_least, timeout_s) as view:
        names = view.names("counter")[:limit] if counter is None else [counter]
        rows = []
        for counter_name in names:
            counted = view.count(counter_name)
            total = None if counted.sum is None else str(counted.sum)
            rows.append({"counter": counter_name, "rows": counted.rows, "sum": total})
        if all(column == ROWS for column in view.options.counters.values()):
            rows = [{k: v for k, v in row.items() if k != "sum"} for row in rows]
    print_rows(rows, as_json=as_json, title="", empty="it counts nothing")


@app.command("top")
def top(
    name: View,
    leaderboard: Name = None,
    *,
    limit: Limit = _LIMIT,
    lowest: Annotated[bool, typer.Option("--lowest", help="Lowest score first.")] = False,
    at_least: AtLeast = None,
    timeout_s: Timeout = TIMEOUT_S,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Show the top of a leaderboard; without a name, list the view's leaderboards.

    Example: headwater cache top orders largest --limit 10
    """
    with _reader(name, options, at_least, timeout_s) as view:
        if leaderboard is None:
            names = [
                {"leaderboard": leaderboard_name}
                for leaderboard_name in view.names("leaderboard")[:limit]
            ]
            print_rows(names, as_json=as_json, title="", empty="it has no leaderboards")
            return
        ranks = view.top(leaderboard, limit=limit, lowest=lowest)
    rows = [
        {"place": place, "key": rank.key, "score": str(rank.score)}
        for place, rank in enumerate(ranks, 1)
    ]
    print_rows(rows, as_json=as_json, title="", empty="no row is on it")


def _reader(
    name: str,
    options: ProjectOptions,
    at_least: AtLeast,
    timeout_s: float,
) -> CacheReader:
    platform = options.platform(name)
    from projections.stores.valkey.reader import CacheReader  # noqa: PLC0415  # needs the extra

    token.reach(platform, at_least, name, Store.CACHE, timeout_s)
    endpoints = platform.endpoints
    view = CacheReader(endpoints.cache_url, f"{platform.project.source.name}:", name)
    if view.building:
        stderr.print(f"{name} is being built: it may lack rows, or have rows too many")
    return view
