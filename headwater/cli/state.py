"""`headwater view state`: the stored state of each view, its size, and the times it covers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import print_json, print_rows
from headwater.platform.job_status import JobReport
from headwater.platform.specs import job_folder
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from datetime import datetime

    from projections.stores.delta.table_stats import ViewState

_MIB = 1024 * 1024


def state(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Show the state of each view: rows, files, their size, and the times that they cover.

    Windows, joins, patterns and standing queries keep no state in memory: their state is the view's
    table and the tables that it reads. The disk also holds former versions, which can still be
    read. `late=`, and a pattern's `within=`, determine until when new rows change a result; without
    them, new rows always do. Views without a table are not listed.
    """
    from projections.stores.delta.table_stats import states  # noqa: PLC0415  # loads the tables' engine

    all_states: list[ViewState] = []
    for part in options.parts():
        tables = part.home.root / "tables"
        published = Published(tables, part.source.name)
        version = published.latest()
        if version is not None:
            views = {**part.declarations.views, **part.declarations.derived}
            job_status = JobReport(job_folder(part)).derived()
            all_states += states(tables, version, published.current(), views, job_status)
    if as_json:
        print_json([asdict(each) for each in all_states])
        return
    print_rows(
        [_row(each) for each in all_states],
        as_json=False,
        title="",
        empty="nothing is published yet",
    )


def _row(each: ViewState) -> dict[str, Any]:
    table = each.kept
    return {
        "view": each.view,
        "rows": table.rows,
        "files": table.files,
        "MiB": f"{table.size_bytes / _MIB:.2f}",
        "on_disk": f"{table.disk_bytes / _MIB:.2f}",
        "oldest": _time(table.oldest),
        "newest": _time(table.newest),
        "kept": each.way,
        "changes_until": each.limit,
        "reads": ", ".join(f"{name} {rows:,}" for name, rows in each.reads.items()),
    }


def _time(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="seconds")
