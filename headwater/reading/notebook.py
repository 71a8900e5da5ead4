"""Spark for notebooks: every view under its name, all of them at one transaction boundary.

The archived change events of a project with one source are there as `changes`, unless a view has
that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.platform.specs import job_config
from headwater.project import optional
from headwater.project.project import open_project
from headwater.project.spelling import CHANGES
from headwater.reading import sql
from headwater.runtime import Endpoints

if TYPE_CHECKING:
    from pathlib import Path

    from projections.job.spark.registered import SparkSession


def spark(
    config: Path | None = None, *, home: Path | None = None, as_of: str | None = None
) -> SparkSession:
    """Opens a Spark session with the project's views as read-only tables.

    No server needs to run. A second call updates the views in the same session.

    Args:
        config: Settings file; default: `headwater.toml` in the current folder.
        home: Home folder; default: from the settings.
        as_of: A position, a time or the number of a published version; default: the newest.

    Raises:
        NoViewsError: No view has been built yet.
        AsOfError: The value is unknown, or before the oldest version.
        PlatformMissingError: The extra `platform` is not installed.
    """
    optional.require()
    from projections.job.spark.registered import registered  # noqa: PLC0415  # loads Spark

    project = open_project(config, home=home)
    tables = project.home.root / "tables"
    views = sql.view_tables(tables)
    if not views:
        hint = "headwater up (or headwater demo) builds them"
        raise sql.NoViewsError("no view has a table yet", detail=str(tables), hint=hint)
    job = job_config(project.parts[0], "", Endpoints())
    chosen = sql.readable(tables, views, as_of)
    if CHANGES not in views and not project.shares_home and (job.archive / "_delta_log").is_dir():
        chosen[CHANGES] = sql.ReadTable(job.archive, None)
    return registered(job, chosen)
