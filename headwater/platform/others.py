"""The other sources of a project: what a source must not share with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import psycopg

from cdc.errors import CdcError
from cdc.postgres import session
from headwater.errors import ViewMovedError
from headwater.project.sources import one_database
from projections.publishing import published_versions

if TYPE_CHECKING:
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
    try:
        with session.connect(site.source_dsn, timeout_s=_ASK_S) as connection:
            return connection.execute(_DATABASE).fetchone()
    except (CdcError, psycopg.Error):
        return None


def refuse_moved(project: Project) -> None:
    """Refuses a view whose table has the rows of another source.

    Positions of two logs cannot be compared, so its rows would be taken for newer ones.

    Raises:
        ViewMovedError: There is one.
    """
    for group in published_versions.sources(project.settings.home / "tables"):
        source = group.folder.name
        newest = None if source == project.source.name else group.newest()
        kept = set() if newest is None else set(newest.by_view(group.current()))
        if moved := sorted(kept & project.views.keys()):
            drop = f"headwater view drop {moved[0]} --source {source} --yes"
            if source not in project.sources:
                drop = f"declare source {source} again, and {drop}"
            raise ViewMovedError(
                f"view {moved[0]} has the rows of source {source}",
                detail=f"it is now declared for source {project.source.name}",
                hint=f"give the view another name; or remove the rows: {drop}",
            )
