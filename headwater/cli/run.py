"""`headwater run`: the job in the foreground."""

from __future__ import annotations

import typer

from headwater.cli.options import ProjectOptions


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("run")(run)


def run(options: ProjectOptions) -> None:
    """Keep the views in the foreground until stopped.

    `headwater up` runs this beside the servers; run it by hand where they run elsewhere.
    """
    code = options.platform().run_job()
    if code:
        raise typer.Exit(code)
