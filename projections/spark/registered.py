"""Tables of views, registered in a session under the views' names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from projections.spark.session import BESIDE, SparkSession, start_session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from projections.spec import JobSpec

__all__ = ["SparkSession", "registered"]


def registered(
    spec: JobSpec, folders: Mapping[str, Path], versions: Mapping[str, int | None]
) -> SparkSession:
    """Opens a session, or joins the process's own, in which views are read by their names.

    Args:
        spec: How Spark is run.
        folders: Folder of each view's table.
        versions: Which version of it is read; None for the newest.
    """
    session = start_session(spec if spec.local else replace(spec, master=BESIDE))
    for name, version in versions.items():
        reader = session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        reader.load(str(folders[name])).createOrReplaceTempView(name)
    return session
