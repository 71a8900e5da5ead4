"""`headwater lag`: how long it takes until what is committed now is there, and who is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, ProjectOptions
from headwater.cli.output import print_rows, stderr

if TYPE_CHECKING:
    from projections.publishing.read_barrier import Lag

TIMEOUT_S = 30.0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("lag")(lag)


def lag(
    names: Annotated[list[str] | None, typer.Argument(help="The views; all if left out.")] = None,
    *,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Seconds to wait at most.")
    ] = TIMEOUT_S,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Measure how long it takes until what is committed now is there, in each view and store.

    It waits for that and reckons nothing, so a part that hangs is seen, and an idle source is not
    late. Exits 3 if something is not there in time, with the stage that it is at (capture, paused,
    batch, derivation, delivery), how much of the log it is behind, and since when it has not moved.
    Example: headwater lag orders --timeout 5
    """
    from headwater.reading.views import Views  # noqa: PLC0415  # needs the extra

    with Views.open(options.config, home=options.home, profile=options.profile) as views:
        found = views.lag(names or (), timeout_s)
    print_rows([_row(each) for each in found], as_json=as_json, title="", empty="no view is kept")
    late = [each for each in found if each.seconds is None]
    if late:
        if not as_json:
            stderr.print(f"{len(late)} of {len(found)} are behind after {timeout_s:g} s")
        raise typer.Exit(EXIT_UNHEALTHY)


def _row(found: Lag) -> dict[str, Any]:
    late = found.late
    return {
        "view": found.view,
        "store": str(found.store),
        "seconds": None if found.seconds is None else round(found.seconds, 2),
        "behind": None if late is None else str(late.stage),
        "behind_bytes": None if late is None else late.behind_bytes,
        "still_s": None if late is None or late.still_s is None else round(late.still_s, 1),
        "cause": None if late is None else late.cause or None,
    }
