"""`headwater init`: a project for a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from headwater import scaffold
from headwater.cli.output import stderr


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("init")(init)


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write the project.")],
    *,
    dsn: Annotated[
        str, typer.Option("--dsn", help="The database: postgresql://user:password@host/name.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the source; the folder's if left out.")
    ] = None,
) -> None:
    """Look into a database and write a headwater.toml and a views.py that run.

    The DSN goes to a file `.env` that only you can read, not into the settings.
    """
    for line in scaffold.create(folder, dsn, name or folder.resolve().name):
        stderr.print(escape(line))
    stderr.print(f"next: cd {folder} && headwater doctor && headwater up")
