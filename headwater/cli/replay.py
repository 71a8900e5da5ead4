"""`headwater view replay`: a derived view, recreated from the archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, ProjectOptions
from headwater.cli.output import escape, print_json, print_rows, stderr
from headwater.errors import UnhealthyError
from headwater.reading.replay import replay_view

if TYPE_CHECKING:
    from headwater.reading.replay import ViewReplay
    from projections.job.batch.replay_derived import ReplayComparison


def replay(
    name: Annotated[str, typer.Argument(metavar="VIEW", help="A derived view.")],
    *,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="MOMENT",
            help="A position, a time, or the number of a published version; default: the latest "
            "that the archive covers.",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Compare with the published rows at that boundary. Exits 3 if they differ.",
        ),
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FOLDER", help="Store the result as a Delta table in this folder."
        ),
    ] = None,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Recompute a derived view from the archive, as one batch over all rows.

    Computes the underlying mirrors, histories and events as they were at that moment, then the
    views between, then the view itself. Neither reads nor changes the job's tables. With --compare,
    it uses the newest published boundary that the archive covers, and compares the rows with those
    that readers see there.

    Example: headwater view replay sales_by_status --compare
    """
    platform = options.platform(name)
    done = replay_view(platform, name, until, compare=compare, to=to)
    if as_json:
        print_json(_document(done, to))
    else:
        print_rows([_row(done)], as_json=False, title="", empty="")
    if done.compared is None or done.compared.same:
        return
    if as_json:
        raise typer.Exit(EXIT_UNHEALTHY)
    _show(done.compared)
    raise UnhealthyError(
        f"view {name} differs from its query over the archive",
        hint=f"headwater view verify {name} compares it with its query over the present tables",
    )


def _row(done: ViewReplay) -> dict[str, Any]:
    row: dict[str, Any] = {
        "view": done.view,
        "made_from": ", ".join(done.made_from),
        "applied_through": str(done.applied_through),
        "at": done.at.isoformat(timespec="milliseconds"),
        "rows": done.rows,
    }
    if done.compared is not None:
        row |= {"version": done.version, **_counts(done.compared)}
    return row


def _counts(compared: ReplayComparison) -> dict[str, int | None]:
    counts = compared.counts
    return {
        "missing": None if counts is None else counts.missing,
        "extra": None if counts is None else counts.extra,
        "different": None if counts is None else counts.different,
    }


def _document(done: ViewReplay, to: Path | None) -> dict[str, Any]:
    document = _row(done) | {"made_from": list(done.made_from)}
    if to is not None:
        document["table"] = str(to)
    if done.compared is not None:
        document["columns"] = list(done.compared.columns)
        document["examples"] = [str(each) for each in done.compared.examples]
    return document


def _show(compared: ReplayComparison) -> None:
    """Prints the differences for the user; they are never logged."""
    if compared.columns:
        stderr.print(f"columns that differ: {escape(', '.join(compared.columns))}", soft_wrap=True)
    if compared.examples:
        stderr.print("the active version differs from the replay, such as")
    for example in compared.examples:
        stderr.print(f"  {escape(str(example))}", soft_wrap=True)
