"""`headwater run`: the job in the foreground."""

from __future__ import annotations

import typer

from headwater.cli.options import SourceOptions


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("run")(run)


def run(options: SourceOptions) -> None:
    """Run the job in the foreground until it is stopped.

    `headwater up` runs this beside the servers. Run it by hand if the servers run elsewhere.
    """
    code = options.platform().run_job()
    if code:
        raise typer.Exit(code)
