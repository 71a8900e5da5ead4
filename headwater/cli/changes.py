"""`headwater source changes`: schema changes of captured tables, and their effects on views."""

from __future__ import annotations

from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import print_rows


def changes(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """List schema changes of captured tables: log position and effect on each view."""
    schema_changes = options.platform().views.schema_changes()
    rows = [
        {
            "id": change.id,
            "table": str(change.table),
            "change": str(change.change),
            "command": change.command,
            "after": None if change.seen_after is None else str(change.seen_after),
            "lsn": str(change.lsn),
            "noted_at": change.noted_at.isoformat(timespec="seconds") if change.noted_at else None,
            "views": ", ".join(f"{view}: {effect}" for view, effect in change.outcomes.items()),
        }
        for change in schema_changes
    ]
    print_rows(rows, as_json=as_json, title="", empty="no captured table has changed yet")
