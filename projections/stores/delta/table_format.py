"""What all Delta tables share: properties, statistics, commit hooks and compaction."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import ColumnProperties, DeltaTable, PostCommitHookProperties, WriterProperties
from deltalake.exceptions import DeltaError

from projections.publishing.published_versions import KEPT_HOURS, promised

if TYPE_CHECKING:
    from pathlib import Path

COMMITS_PER_COMPACTION: Final = 50

COMPACTED_BYTES: Final = 32 << 20
"""Size of a compacted file: a merge rewrites every file that it touches."""

CONFIGURATION: Final = {
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 1 day",
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hour",
}

_LIMITS: Final = "delta.dataSkippingStatsColumns"
_LIMITED_MAX: Final = 32
"""Columns whose limits Delta notes if no property says otherwise."""

HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=True)

FEED: Final = {"delta.enableChangeDataFeed": "true"}
"""Property of a table from which other views are derived."""

FLOOR: Final = "headwater.floor"

LOADED: Final = "headwater.loaded"
"""Property of a table filled directly from the source: the version of the snapshot that the load
replaces. Every record of that snapshot is in the table already, or has changed since and arrives by
the stream."""

LOADED_AT: Final = "headwater.loaded_at"
"""Property of such a table: how far its rows may reach in the source's log, as a version. It is not
complete at an earlier boundary."""

_log = logging.getLogger(__name__)


def limits(schema: pa.Schema, *, stated: bool = False) -> dict[str, str]:
    """Returns the property that names the columns with limits in a table's log, if only some have.

    Limits of a file are the least and the greatest value of a column. NaN is not within them, so
    readers skip files with a NaN, and take all rows of others for rows that meet a condition.
    Columns with floats therefore have no limits.

    Args:
        schema: Columns of the table.
        stated: Whether the property is returned in any case.
    """
    first = list(schema)[:_LIMITED_MAX]
    if not stated and not any(_has_float(field.type) for field in first):
        return {}
    names = [field.name for field in first if _has_limits(field.type)]
    return {_LIMITS: ",".join("`" + name.replace("`", "``") + "`" for name in names)}


def set_limits(table: DeltaTable, schema: pa.Schema) -> None:
    """Sets the property of `limits` where a table has another."""
    stated = table.metadata().configuration.get(_LIMITS)
    wanted = limits(schema, stated=stated is not None)
    if wanted and wanted[_LIMITS] != stated:
        table.alter.set_table_properties(wanted, raise_if_not_exists=False)


def writing(schema: pa.Schema) -> WriterProperties:
    """Returns how files are written: without limits of columns with floats; see `limits`."""
    without = ColumnProperties(statistics_enabled="NONE")
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    return WriterProperties(
        compression="SNAPPY",  # the library's own, if nothing is said
        column_properties=dict.fromkeys(floats, without) or None,
    )


def schema_of(table: DeltaTable) -> pa.Schema:
    """Returns the columns of a table."""
    return pa.schema(table.schema().to_arrow())


def _has_float(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_float(field.type) for field in kind)
    return bool(pa.types.is_floating(kind))


def _has_limits(kind: pa.DataType) -> bool:
    types = pa.types
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)
    return not listed and not _has_float(kind)


def maintain(table: DeltaTable, root: Path, name: str) -> None:
    """Compacts a table periodically, and removes files that can no longer be read.

    Args:
        table: The table.
        root: Folder of all tables.
        name: Its name there. Versions that a view's readers were promised stay, even if nothing
            newer was published for longer than the retention of versions.
    """
    if table.version() % COMMITS_PER_COMPACTION:
        return
    table.optimize.compact(target_size=COMPACTED_BYTES, writer_properties=writing(schema_of(table)))
    try:
        table.vacuum(
            retention_hours=KEPT_HOURS,
            enforce_retention_duration=False,
            dry_run=False,
            keep_versions=promised(root, name) or None,
        )
    except DeltaError as error:
        # rather too many files than a missing one
        _log.warning("table %s is not vacuumed: %s", name, type(error).__name__)
