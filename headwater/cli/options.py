"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file; default: headwater.toml in this folder."),
]
HomeFolder = Annotated[
    Path | None,
    typer.Option("--home", help="Home folder; default: .headwater beside the settings file."),
]
Profile = Annotated[
    str | None, typer.Option("--profile", help="Profile of the settings file to apply.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn", help="The event store's database; default: from the settings, or the source."
    ),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="The tenant; default: from the settings.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Confirm; this cannot be undone.")]
AtLeast = Annotated[
    str | None,
    typer.Option(
        "--at-least",
        help="A position token: wait for everything that it covers.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.0, help="Maximum wait for --at-least, in seconds."),
]
TIMEOUT_S = 5.0
"""As an application waits where it says nothing; see `projections.publishing.read_barrier`."""
