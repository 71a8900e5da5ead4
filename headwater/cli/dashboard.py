"""`headwater dashboard`: the page that shows a project's views as they change."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from headwater.cli.options import ProjectOptions
from headwater.cli.output import stderr
from headwater.errors import UsageError

_PORT = 8600


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("dashboard")(dashboard)


def dashboard(
    *,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="Address to listen on; everyone who can reach it can read the panels."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="Port; 0 selects a free port.", min=0, max=65_535)
    ] = _PORT,
    options: ProjectOptions,
) -> None:
    """Serve the page that `dashboard(...)` declares, until Ctrl-C.

    The page reads only the views' tables, so no server needs to run. All panels show the same
    transaction boundary and follow a newer one within a second; of several sources, each has one.
    """
    from headwater.reading.dashboard.answers import Answers  # noqa: PLC0415  # loads the query engine
    from headwater.reading.dashboard.server import DashboardServer  # noqa: PLC0415

    project = options.project()
    declared = project.declarations.dashboard
    if declared is None:
        raise UsageError(
            "no dashboard is declared",
            detail=str(project.settings.views_path),
            hint='dashboard("Shop", [Number("Orders", "SELECT count(*) FROM orders")])',
        )
    source, *beside = project.sources
    answers = Answers(declared, project.home.root / "tables", source, tuple(beside))
    with DashboardServer(answers, host, port) as server:
        stderr.print(f"{declared.title}: {server.url}  (Ctrl-C ends it)", markup=False)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
