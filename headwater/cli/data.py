"""`headwater query`: SQL over the views."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from foundation.json_numbers import with_number_texts
from headwater.cli.options import TIMEOUT_S, AtLeast, Json, SourceOptions, Timeout
from headwater.cli.output import print_boundaries, print_rows, stderr
from headwater.cli.token import tokens
from headwater.errors import UsageError
from headwater.reading import sql as reading_sql
from headwater.reading.time_travel import FormerViews

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_SHOWN = 100


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("query")(query_views)


def query_views(
    sql: Annotated[
        str, typer.Argument(help="A SELECT over views by name; the archive is the table `changes`.")
    ],
    *,
    as_of: Annotated[
        str | None,
        typer.Option(help="A position (0/1A2B3C), a time, or the number of a published version."),
    ] = None,
    at_least: AtLeast = None,
    timeout_s: Timeout = TIMEOUT_S,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Run a SQL query over all views at one transaction boundary, without a JVM.

    Published versions are kept for an hour. For an earlier time, the views of the source that the
    statement names are computed from the archive; the source must then be available. In a project
    of several sources, each is read at a boundary of its own; --at-least waits for the views of the
    token's source, and `changes` needs --source.

    Example: headwater query "SELECT status, count(*) FROM orders GROUP BY status"
    """
    if as_of is not None and at_least is not None:
        raise UsageError("--as-of and --at-least exclude each other")
    if at_least is None:
        answer = _answer(options, sql, as_of)
    else:
        from headwater.reading.views import Views  # noqa: PLC0415  # needs the extra

        *others, last = tokens(at_least)
        several, deadline = options.project().shares_home, time.monotonic() + timeout_s
        for each in others:
            with Views(options.platform_of(each.source)) as views:
                views.await_query(sql, each, max(0.0, deadline - time.monotonic()))
        with Views(options.platform_of(last.source) if several else options.platform()) as views:
            left_s = max(0.0, deadline - time.monotonic())
            answer = views.query(sql, at_least=last, timeout_s=left_s)
    rows = answer.to_pylist() if as_json else answer.slice(0, _ROWS_SHOWN).to_pylist()
    plain, empty = [_plain(row) for row in rows], _no_rows(answer)
    print_rows(plain, as_json=as_json, title="", empty=empty, of_views=True)
    if not as_json and answer.num_rows > _ROWS_SHOWN:
        stderr.print(f"[dim]first {_ROWS_SHOWN} of {answer.num_rows:,} rows; --json shows all[/]")


def _answer(options: SourceOptions, sql: str, as_of: str | None) -> pa.Table:
    words = reading_sql.words(sql)
    views = [] if options.chosen else [n for n in options.project().views if n.lower() in words]
    platforms = options.platforms(views)
    home = platforms[0].project.home.root
    archive = home / "archive" / platforms[0].project.source.name
    # with several sources, it is not clear whose archive is meant
    alone = len(options.parts()) == 1
    with FormerViews(platforms[0]) as former:
        answer = reading_sql.run(
            sql,
            home / "tables",
            as_of,
            archive=archive if alone else None,
            former=former.of_words if len(platforms) == 1 else None,
        )
        if former.reached is not None:
            stderr.print(f"[dim]read from the archive, as of {former.reached.commit}[/]")
        elif as_of is not None:
            chosen = reading_sql.words(sql)
            with suppress(reading_sql.AsOfError):  # it may have been removed meanwhile
                print_boundaries(reading_sql.boundaries_as_of(home / "tables", as_of, chosen))
    return answer


def _plain(row: dict[str, object]) -> dict[str, object]:
    """Nested values as JSON text, so that a cell stays one line."""
    return {
        name: json.dumps(value, default=str) if isinstance(value, list | dict) else value
        for name, value in ((name, with_number_texts(value)) for name, value in row.items())
    }


def _no_rows(answer: pa.Table) -> str:
    return "no rows; columns: " + ", ".join(answer.column_names)
