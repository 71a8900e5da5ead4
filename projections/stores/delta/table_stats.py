"""State: the storage that a view uses.

Windows, joins and patterns keep nothing in memory or in a state store of the engine: the state of a
view is the rows of its table, and the rows of its inputs. Its size is therefore the size of tables,
read from their logs; no row is read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from projections.definition.operators.windows import START
from projections.definition.views import DerivedView, EventsView, view_of
from projections.errors import SinkUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from projections.definition.views import View
    from projections.publishing.published_content import PublishedVersion

_TIMES: Final = (START, "match_start", "valid_from")
"""Columns with the start of a row in its own time: of windows, matches and states."""


@dataclass(frozen=True, slots=True)
class TableVersionStats:
    """A view's table at one version.

    Attributes:
        rows: Number of rows.
        files: Number of data files.
        size_bytes: Size of those files.
        disk_bytes: Size of its folder, including former versions and the log.
        oldest: Start of its first window, match or state; None without such a column, or without
            file statistics.
        newest: Start of the last one.
    """

    rows: int
    files: int
    size_bytes: int
    disk_bytes: int
    oldest: datetime | None
    newest: datetime | None


@dataclass(frozen=True, slots=True)
class ViewState:
    """The state of a view.

    Attributes:
        view: Its name.
        way: How the view is maintained.
        kept: Its table at the published version; JSON has this name.
        reads: Rows of each input, at the versions from which the view was computed.
        limit: See `DerivedView.limit`.
    """

    view: str
    way: str
    kept: TableVersionStats
    reads: Mapping[str, int]
    limit: str = ""


def version_stats(tables: Path, physical_name: str, version: int) -> TableVersionStats:
    """Measures a version of a table.

    Raises:
        SinkUnavailableError: The table, or this version of it, cannot be read.
    """
    actions = _actions(tables / physical_name, version)
    bounds = [(_bound(actions, f"min.{name}", pc.min), name) for name in _TIMES]
    oldest, name = next((each for each in bounds if each[0] is not None), bounds[0])
    return TableVersionStats(
        _sum(actions, "num_records"),
        actions.num_rows,
        _sum(actions, "size_bytes"),
        _on_disk(tables / physical_name),
        oldest,
        _bound(actions, f"max.{name}", pc.max),
    )


def rows_at(tables: Path, physical_name: str, version: int) -> int:
    """Returns the number of rows of a version of a table; for errors see `version_stats`."""
    return _sum(_actions(tables / physical_name, version), "num_records")


def states(
    tables: Path,
    published: PublishedVersion,
    current: Mapping[str, str],
    views: Mapping[str, View | DerivedView],
    reports: Mapping[str, Any],
) -> list[ViewState]:
    """Measures the state of views at a published version.

    Args:
        tables: Folder of the tables.
        published: The version.
        current: Physical name of each view; see `Published.current`.
        views: Declared views; others are left out.
        reports: The job's report on derived views, by physical name.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    view_states = []
    for name, (physical_name, table) in published.by_view(current).items():
        view = views.get(name)
        if view is None:
            continue
        reads = {
            view_of(read): rows_at(tables, read, version)
            for read, version in table.made_from.items()
        }
        limit = view.limit if isinstance(view, DerivedView) else ""
        way = _way(view, reports.get(physical_name, {}))
        view_states.append(
            ViewState(name, way, version_stats(tables, physical_name, table.version), reads, limit)
        )
    return view_states


def _way(view: View | DerivedView, report: Mapping[str, Any]) -> str:
    if isinstance(view, DerivedView):
        by = ", ".join(report.get("by", ()))
        return f"by {by}" if report.get("strategy") == "keyed" else "as a whole"
    if isinstance(view, EventsView):
        return "each event"
    return "latest of each key" if view.history is None else "each state"


def _actions(folder: Path, version: int) -> pa.Table:
    try:
        table = DeltaTable(str(folder), version=version)
        return pa.table(table.get_add_actions(flatten=True))
    except (DeltaError, OSError) as error:
        raise SinkUnavailableError(
            f"the table of {folder.name} cannot be read",
            detail=f"version {version}: {type(error).__name__}",
        ) from None


def _on_disk(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # former versions may be deleted during the count
            total += file.stat().st_size if file.is_file() else 0
    return total


def _sum(actions: pa.Table, name: str) -> int:
    return int(pc.sum(actions[name]).as_py() or 0) if name in actions.column_names else 0


def _bound(actions: pa.Table, name: str, of: Any) -> datetime | None:
    if name not in actions.column_names:
        return None
    bound = of(actions[name]).as_py()
    return bound if isinstance(bound, datetime) else None
