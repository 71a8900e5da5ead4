"""`headwater lag`: the time from a commit until each view has it, and the views that are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import print_rows, stderr
from headwater.cli.sources import for_each

if TYPE_CHECKING:
    from headwater.platform.platform import Platform
    from projections.publishing.read_barrier import Lag

TIMEOUT_S = 30.0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("lag")(lag)


def lag(
    names: Annotated[list[str] | None, typer.Argument(help="The views; default: all.")] = None,
    *,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Maximum wait in seconds.")
    ] = TIMEOUT_S,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Measure the time from a commit now until each view and store has it.

    Measures end to end instead of trusting each component's own report, so it detects a hung
    component and does not report an idle source as lagging. Exits 3 if a store does not have the
    commit in time, and reports the stage (capture, paused, batch, derivation, delivery), the lag in
    bytes, and since when the stage has not moved. Example: headwater lag orders --timeout 5
    """
    from headwater.reading.views import Views  # noqa: PLC0415  # needs the extra

    def measured(platform: Platform) -> list[Lag]:
        own = [name for name in names or () if name in platform.project.views]
        with Views(platform) as views:
            return views.lag(own or names or (), timeout_s)

    done = for_each(options.platforms(names or ()), measured)
    measurements = [each for lags in done.results.values() for each in lags]
    print_rows(
        [_row(each) for each in measurements], as_json=as_json, title="", empty="no view is kept"
    )
    late = [each for each in measurements if each.seconds is None]
    if late:
        if not as_json:
            stderr.print(f"{len(late)} of {len(measurements)} are behind after {timeout_s:g} s")
        raise typer.Exit(EXIT_UNHEALTHY)
    done.end()


def _row(measurement: Lag) -> dict[str, Any]:
    late = measurement.late
    return {
        "view": measurement.view,
        "store": str(measurement.store),
        "seconds": None if measurement.seconds is None else round(measurement.seconds, 2),
        "behind": None if late is None else str(late.stage),
        "behind_bytes": None if late is None else late.behind_bytes,
        "still_s": None if late is None or late.still_s is None else round(late.still_s, 1),
        "cause": None if late is None else late.cause or None,
    }
