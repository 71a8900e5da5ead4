"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file; otherwise headwater.toml here."),
]
HomeFolder = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of all state; otherwise .headwater beside the settings."),
]
Profile = Annotated[
    str | None, typer.Option("--profile", help="Profile of the settings file to lay over it.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Dsn = Annotated[
    str | None,
    typer.Option("--dsn", help="The database; otherwise as the settings say, or the source."),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Whose; otherwise as the settings say.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Yes, this cannot be undone.")]
AtLeast = Annotated[
    str | None,
    typer.Option(
        "--at-least",
        help="A token: wait for what was committed before it.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.0, help="Seconds to wait at most for --at-least."),
]
TIMEOUT_S = 5.0
"""As an application waits where it says nothing; see `projections.publishing.read_barrier`."""
