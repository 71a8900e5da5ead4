"""Views of other sources in the same home folder, for the job of one source.

Each source publishes its tables at its own boundaries. A derived view over several sources is
computed by the job of one of them: at each boundary of that source, from the newest boundary that
each other source has published. Its version therefore has a vector: a boundary of every source. It
takes no lock. The files of a published version stay for an hour, and `published_versions.promised`
keeps the inputs of every published view of any source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from cdc.lsn import Lsn
from projections.definition.views import Store, view_of
from projections.publishing.published_content import SourcePosition
from projections.publishing.published_versions import Published, sources

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from projections.publishing.published_content import TableVersion


class OtherViews(NamedTuple):
    """Views of other sources, each source at one boundary.

    Attributes:
        tables: Their tables, by physical name.
        physical_names: Physical name of each view's active version.
        sources: Source of each physical name.
        positions: Boundary of each source.
    """

    tables: dict[str, TableVersion]
    physical_names: dict[str, str]
    sources: dict[str, str]
    positions: dict[str, SourcePosition]


class Reader(NamedTuple):
    """A published view over several sources.

    Attributes:
        source: The source whose job maintains it.
        physical_name: Its physical name.
        table: A published version, or one about to be.
    """

    source: str
    physical_name: str
    table: TableVersion


NO_VIEWS: Final = OtherViews({}, {}, {}, {})
"""For a job whose views read no other source."""


def published_views(tables: Path, views: Mapping[str, str]) -> OtherViews:
    """Returns views of other sources at the newest boundary of each source.

    Args:
        tables: Folder of the tables.
        views: Source of each view.

    Returns:
        The views that have a published version.
    """
    views_elsewhere = OtherViews({}, {}, {}, {})
    for source in sorted(set(views.values())):
        group = Published(tables, source)
        # in this order: a version that a cutover activates in between is already published
        physical_names, latest = group.current(), group.latest()
        if latest is None:
            continue
        views_elsewhere.positions[source] = SourcePosition(latest.epoch, latest.lsn)
        for view in (each for each, of in views.items() if of == source):
            physical_name = physical_names.get(view, view)
            if physical_name in latest.views:
                views_elsewhere.tables[physical_name] = latest.views[physical_name]
                views_elsewhere.physical_names[view] = physical_name
                views_elsewhere.sources[physical_name] = source
    return views_elsewhere


def active_elsewhere(tables: Path, source: str) -> dict[str, tuple[str, TableVersion]]:
    """Returns physical name and published table of each view of the other sources.

    Args:
        tables: Folder of the tables.
        source: The source that is left out.
    """
    active: dict[str, tuple[str, TableVersion]] = {}
    for group in sources(tables):
        latest = None if group.folder.name == source else group.latest()
        if latest is not None:
            active |= latest.by_view(group.current())
    return active


def own_position(
    read: Iterable[str], known: Mapping[str, TableVersion], others: Mapping[str, str]
) -> SourcePosition:
    """Returns the boundary of a derived view in the log of its job's own source.

    Args:
        read: Physical names of the tables that it reads.
        known: These tables.
        others: Source of each physical name from another source.
    """
    own = (known[physical_name] for physical_name in read if physical_name not in others)
    return min(SourcePosition(table.epoch, table.lsn) for table in own)


def other_positions(
    read: Iterable[str], known: Mapping[str, TableVersion], others: Mapping[str, str]
) -> dict[str, SourcePosition]:
    """Returns the boundaries of a derived view in other sources; see `own_position`."""
    positions: dict[str, SourcePosition] = {}
    for physical_name in read:
        table, vector = known[physical_name], known[physical_name].others
        if physical_name in others:
            vector = {others[physical_name]: SourcePosition(table.epoch, table.lsn)}
        for name, position in vector.items():
            positions[name] = min(position, positions.get(name, position))
    return positions


def readers(tables: Path, source: str, views: Collection[str]) -> list[Reader]:
    """Returns the views of other sources' jobs that read views of a source, also indirectly.

    Args:
        tables: Folder of the tables.
        source: The source of the views.
        views: The views.

    Returns:
        Each version that is active or about to be.
    """
    all_readers: list[Reader] = []
    for group in sources(tables):
        if group.folder.name == source:
            continue
        versions = filter(None, (group.latest(), group.newest()))
        among = [
            Reader(group.folder.name, physical_name, table)
            for version in versions
            for physical_name, table in version.views.items()
            if source in table.others and (tables / physical_name / "_delta_log").is_dir()
        ]
        reached = set(views)
        while new := [each for each in among if _reads(each, reached)]:
            all_readers += new
            among = [each for each in among if each not in new]
            reached |= {view_of(each.physical_name) for each in new}
    return all_readers


def reached_by_readers(file: Path, source: str, epoch: int) -> dict[tuple[str, Store], Lsn]:
    """Returns how far views over several sources have read one source, as their job reports it.

    Args:
        file: The job's report on its derived views; see `JobConfig.derived_file`.
        source: The source.
        epoch: Its incarnation; positions of another one are ignored.

    Returns:
        The position by physical name and store.
    """
    try:
        report = orjson.loads(file.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    reached = {}
    for view, status in report.items():
        for store, vector in status.get("reached", {}).items():
            at_epoch, lsn = vector.get(source, (None, 0))
            if at_epoch == epoch:
                reached[view, Store(store)] = Lsn(lsn)
    return reached


def _reads(reader: Reader, views: Collection[str]) -> bool:
    return any(view_of(physical_name) in views for physical_name in reader.table.made_from)
