"""`headwater view`: what is derived, how far it is, and whether it equals its source."""

from __future__ import annotations

import typer

from headwater.cli.options import Config, HomeFolder, Json, Profile
from headwater.cli.output import EXIT_UNHEALTHY, print_rows
from headwater.errors import UnhealthyError
from headwater.platform import Platform
from headwater.project import open_project, settings_file

app = typer.Typer(help="What is derived from the source.", no_args_is_help=True)

_CATCH_UP_S = 120.0


@app.command("list")
def list_views(
    *,
    config: Config = None,
    home: HomeFolder = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """List the declared views and the stores they live in."""
    project = open_project(config, home=home, profile=profile)
    rows = [
        {"view": view.name, "table": str(view.table), "stores": ", ".join(sorted(view.to))}
        for view in project.declarations.views.values()
    ]
    print_rows(rows, as_json=as_json, title="", empty="no view is declared")


@app.command("status")
def status(
    *,
    config: Config = None,
    home: HomeFolder = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Show through which position of the source each view is applied, in each store."""
    project = open_project(config, home=home, profile=profile)
    positions = Platform(project, settings_file(config, home=home)).positions()
    rows = [
        {
            "view": position.view,
            "store": position.store,
            "applied_through": str(position.applied_through),
            "updated_at": position.updated_at.isoformat(timespec="milliseconds"),
        }
        for position in positions
    ]
    print_rows(rows, as_json=as_json, title="", empty="no view has applied anything yet")


@app.command("verify")
def verify(
    *,
    config: Config = None,
    home: HomeFolder = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Compare every view in every store with the source. Exits 3 if a row differs.

    Writes to the source must rest meanwhile, or rows on their way count as differences.
    """
    project = open_project(config, home=home, profile=profile)
    platform = Platform(project, settings_file(config, home=home))
    platform.await_applied(platform.current_lsn(), _CATCH_UP_S)
    reports = platform.verify()
    rows = [
        {
            "view": report.view,
            "store": report.store,
            "rows": report.rows,
            "missing": report.missing,
            "extra": report.extra,
            "different": report.different,
            "applied_through": str(report.applied_through),
        }
        for report in reports
    ]
    print_rows(rows, as_json=as_json, title="", empty="no view is declared")
    if not all(report.equal for report in reports):
        if as_json:
            raise typer.Exit(EXIT_UNHEALTHY)
        hint = "headwater logs projections"
        raise UnhealthyError("views differ from their source", hint=hint)
