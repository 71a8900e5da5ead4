"""The other sources of a project: what a source must not share with them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import psycopg

from cdc.errors import CdcError
from cdc.postgres import session
from foundation.atomic_file import write_atomically
from headwater.errors import ViewMovedError
from headwater.project.sources import one_database
from projections.publishing import published_versions

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.platform.deployment import Site
    from headwater.project.project import Project
    from headwater.project.settings.errors import ConflictingSettingsError

_ASK_S: Final = 3
_DATABASE: Final = """
SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database())
  FROM pg_control_system()
"""


def same_database(site: Site) -> ConflictingSettingsError | None:
    """Says that a source declared earlier is the same database; None if it is not, or is down.

    Args:
        site: The later source.
    """
    names = site.project.sources
    earlier = names[: names.index(site.source)]
    own = _database(site) if earlier else None
    for name in earlier:
        if own is not None and own == _database(replace(site, project=site.project.part(name))):
            return one_database(name, site.source)
    return None


def _database(site: Site) -> tuple[object, ...] | None:
    """What tells a database from all others; None if it does not answer."""
    return _database_of(site.source_dsn)


def _database_of(dsn: str) -> tuple[object, ...] | None:
    try:
        with session.connect(dsn, timeout_s=_ASK_S) as connection:
            return connection.execute(_DATABASE).fetchone()
    except (CdcError, psycopg.Error):
        return None


def refuse_captured(project: Project, name: str, dsn: str) -> None:
    """Refuses a database that a source of the project is already; one that is down is not compared.

    Args:
        project: The project.
        name: The source that the database is to be.
        dsn: The database.

    Raises:
        ConflictingSettingsError: It is one.
    """
    own = _database_of(dsn)
    for part in project.parts:
        known = project.settings.for_source(part.source.name).dsn
        if known is not None and own is not None and own == _database_of(known.get_secret_value()):
            raise one_database(part.source.name, name)


def note_views(project: Project) -> None:
    """Notes which views the job of a source keeps: of those without a table, nothing else tells."""
    _note(project, _noted(project.settings.home, project.source.name) | project.views.keys())


def forget_view(project: Project, view: str) -> None:
    """Takes a view that was dropped out of what is noted."""
    _note(project, _noted(project.settings.home, project.source.name) - {view})


def _note(project: Project, views: set[str]) -> None:
    path = _views_file(project.settings.home, project.source.name)
    if views != _noted(project.settings.home, project.source.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(sorted(views)))


def _noted(home: Path, source: str) -> set[str]:
    try:
        return set(json.loads(_views_file(home, source).read_text("utf-8")))
    except FileNotFoundError:
        return set()


def _views_file(home: Path, source: str) -> Path:
    return home / "checkpoints" / source / "views.json"


def refuse_moved(project: Project) -> None:
    """Refuses a view that has the rows of another source, in whatever store.

    Positions of two logs cannot be compared, so its rows would be taken for newer ones.

    Raises:
        ViewMovedError: There is one.
    """
    for group in published_versions.sources(project.settings.home / "tables"):
        source = group.folder.name
        if source == project.source.name:
            continue
        newest = group.newest()
        kept = set() if newest is None else set(newest.by_view(group.current()))
        kept |= _noted(project.settings.home, source)
        if moved := sorted(kept & project.views.keys()):
            drop = f"headwater view drop {moved[0]} --source {source} --yes"
            if source not in project.sources:
                drop = f"declare source {source} again, and {drop}"
            raise ViewMovedError(
                f"view {moved[0]} has the rows of source {source}",
                detail=f"it is now declared for source {project.source.name}",
                hint=f"give the view another name; or remove the rows: {drop}",
            )
