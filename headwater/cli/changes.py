"""`headwater source changes`: how captured tables have changed, and what became of it."""

from __future__ import annotations

from headwater.cli.options import Config, HomeFolder, Json, Profile
from headwater.cli.output import print_rows
from headwater.platform.platform import Platform
from headwater.project.project import open_project, settings_file


def changes(
    *,
    config: Config = None,
    home: HomeFolder = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """List schema changes of captured tables: log position and effect on each view."""
    project = open_project(config, home=home, profile=profile)
    found = Platform(project, settings_file(config, home=home)).views.schema_changes()
    rows = [
        {
            "id": noted.id,
            "table": str(noted.table),
            "change": str(noted.change),
            "command": noted.command,
            "after": None if noted.seen_after is None else str(noted.seen_after),
            "lsn": str(noted.lsn),
            "noted_at": noted.noted_at.isoformat(timespec="seconds") if noted.noted_at else None,
            "views": ", ".join(f"{view}: {what}" for view, what in noted.outcomes.items()),
        }
        for noted in found
    ]
    print_rows(rows, as_json=as_json, title="", empty="no captured table has changed yet")
