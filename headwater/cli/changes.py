"""`headwater source changes`: how captured tables have changed, and what became of it."""

from __future__ import annotations

from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import print_rows


def changes(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """List schema changes of captured tables: log position and effect on each view."""
    found = options.platform().views.schema_changes()
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
