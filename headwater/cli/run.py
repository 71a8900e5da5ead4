"""`headwater run`: the job in the foreground."""

from __future__ import annotations

import typer

from headwater.cli.options import Config, HomeFolder, Profile
from headwater.platform.platform import Platform
from headwater.project.project import open_project, settings_file


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("run")(run)


def run(*, config: Config = None, home: HomeFolder = None, profile: Profile = None) -> None:
    """Run the job in the foreground until it is stopped.

    `headwater up` runs this beside the servers. Run it by hand if the servers run elsewhere.
    """
    project = open_project(config, home=home, profile=profile)
    code = Platform(project, settings_file(config, home=home)).run_job()
    if code:
        raise typer.Exit(code)
