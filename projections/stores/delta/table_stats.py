"""State: the size of what a view stores.

No window, join or pattern is kept in memory or in a state store of the engine: a view's state is
the rows of its table, and it also reads the rows of its input views. Its size is therefore the size
of tables, and comes from their logs; no row is read.
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
from projections.definition.views import DerivedView, EventsView
from projections.errors import SinkUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from projections.definition.views import View
    from projections.publishing.published_versions import PublishedVersion

_TIMES: Final = (START, "match_start", "valid_from")
"""Columns that say when a row's own time begins: of windows, of matches, of states."""


@dataclass(frozen=True, slots=True)
class TableVersionStats:
    """The table of a view at one version.

    Attributes:
        rows: How many it has.
        files: How many files they are in.
        size_bytes: What these take.
        disk_bytes: What its folder takes, with former versions and the log.
        oldest: When the first of its windows, matches or states begins; None where it has no such
            time, or its files do not say.
        newest: When the last of them begins.
    """

    rows: int
    files: int
    size_bytes: int
    disk_bytes: int
    oldest: datetime | None
    newest: datetime | None


@dataclass(frozen=True, slots=True)
class ViewState:
    """What there is to say of the state of a view.

    Attributes:
        view: Its name.
        way: How it is kept.
        kept: Its table, as readers get it.
        reads: Rows of each view that it reads, at the versions that it was made from.
        limit: See `DerivedView.limit`.
    """

    view: str
    way: str
    kept: TableVersionStats
    reads: Mapping[str, int]
    limit: str = ""


def kept(tables: Path, place: str, version: int) -> TableVersionStats:
    """Tells what a version of a table has.

    Raises:
        SinkUnavailableError: The table, or this version of it, cannot be read.
    """
    actions = _actions(tables / place, version)
    bounds = [(_bound(actions, f"min.{name}", pc.min), name) for name in _TIMES]
    oldest, name = next((each for each in bounds if each[0] is not None), bounds[0])
    return TableVersionStats(
        _sum(actions, "num_records"),
        actions.num_rows,
        _sum(actions, "size_bytes"),
        _on_disk(tables / place),
        oldest,
        _bound(actions, f"max.{name}", pc.max),
    )


def rows_at(tables: Path, place: str, version: int) -> int:
    """Returns how many rows a version of a table has; errors are those of `kept`."""
    return _sum(_actions(tables / place, version), "num_records")


def states(
    tables: Path,
    published: PublishedVersion,
    places: Mapping[str, str],
    views: Mapping[str, View | DerivedView],
    said: Mapping[str, Any],
) -> list[ViewState]:
    """Tells the state of views at a published version.

    Args:
        tables: Folder of the tables.
        published: The version.
        places: Where views are read; see `Published.current`.
        views: As they are declared; others are left out.
        said: The job's report on derived views, by physical name.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    found = []
    for name, (place, table) in published.by_view(places).items():
        view = views.get(name)
        if view is None:
            continue
        reads = {
            read.partition(".")[0]: rows_at(tables, read, version)
            for read, version in table.made_from.items()
        }
        limit = view.limit if isinstance(view, DerivedView) else ""
        way = _way(view, said.get(place, {}))
        found.append(ViewState(name, way, kept(tables, place, table.version), reads, limit))
    return found


def _way(view: View | DerivedView, said: Mapping[str, Any]) -> str:
    if isinstance(view, DerivedView):
        by = ", ".join(said.get("by", ()))
        return f"by {by}" if said.get("strategy") == "keyed" else "as a whole"
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
        with suppress(FileNotFoundError):  # former versions go while they are counted
            total += file.stat().st_size if file.is_file() else 0
    return total


def _sum(actions: pa.Table, name: str) -> int:
    return int(pc.sum(actions[name]).as_py() or 0) if name in actions.column_names else 0


def _bound(actions: pa.Table, name: str, of: Any) -> datetime | None:
    if name not in actions.column_names:
        return None
    found = of(actions[name]).as_py()
    return found if isinstance(found, datetime) else None
