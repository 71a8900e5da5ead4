"""What all Delta tables share: properties, commit hooks and compaction."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable, PostCommitHookProperties
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
    table.optimize.compact(target_size=COMPACTED_BYTES)
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
