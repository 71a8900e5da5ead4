"""`headwater query`: SQL over the views."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.position_token import PositionToken
from headwater.cli.options import TIMEOUT_S, AtLeast, Json, ProjectOptions, Timeout
from headwater.cli.output import print_rows, stderr
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
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Run a SQL query over all views at one transaction boundary, without a JVM.

    Published versions are kept for an hour. For an earlier time, the views of the source that the
    statement names are computed from the archive; the source must then be available.

    Example: headwater query "SELECT status, count(*) FROM orders GROUP BY status"
    """
    project = options.project()
    if as_of is not None and at_least is not None:
        raise UsageError("--as-of and --at-least exclude each other")
    if at_least is None:
        root = project.home.root
        archive = root / "archive" / project.source.name
        platform = options.platform()
        with FormerViews(platform) as former:
            answer = reading_sql.run(
                sql, root / "tables", as_of, archive=archive, former=former.of_words
            )
            if former.reached is not None:
                stderr.print(f"[dim]told by the archive, as of {former.reached.commit}[/]")
    else:
        from headwater.reading.views import Views  # noqa: PLC0415  # needs the extra

        with Views(options.platform()) as views:
            wanted = PositionToken.parse(at_least)
            answer = views.query(sql, at_least=wanted, timeout_s=timeout_s)
    rows = answer.to_pylist() if as_json else answer.slice(0, _ROWS_SHOWN).to_pylist()
    print_rows([_plain(row) for row in rows], as_json=as_json, title="", empty=_no_rows(answer))
    if not as_json and answer.num_rows > _ROWS_SHOWN:
        stderr.print(f"[dim]first {_ROWS_SHOWN} of {answer.num_rows:,} rows; --json shows all[/]")


def _plain(row: dict[str, object]) -> dict[str, object]:
    """Nested values as JSON text, so that a cell stays one line."""
    return {
        name: json.dumps(value, default=str) if isinstance(value, list | dict) else value
        for name, value in row.items()
    }


def _no_rows(answer: pa.Table) -> str:
    return "no rows; columns: " + ", ".join(answer.column_names)
