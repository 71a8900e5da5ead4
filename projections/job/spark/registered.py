"""Tables of views, registered in a session under the views' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.job.spark.session import SparkSession, session_beside

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from projections.planning.job_config import JobConfig

__all__ = ["SparkSession", "registered"]


def registered(config: JobConfig, tables: Mapping[str, tuple[Path, int | None]]) -> SparkSession:
    """Opens a session, or joins the process's own, in which views are read by their names.

    Args:
        config: How Spark is run.
        tables: For each view, the folder and version of its table; None for the newest version.
    """
    session = session_beside(config)
    for name, (folder, version) in tables.items():
        reader = session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        reader.load(str(folder)).createOrReplaceTempView(name)
    return session
