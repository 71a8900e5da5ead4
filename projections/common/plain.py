"""Plain tables: those whose rows are what their files have, column by column.

Such a table may be read file by file, by whoever reads Parquet; any other needs an engine that
knows the features that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deltalake import DeltaTable

_HARMLESS: Final = frozenset({"timestampNtz"})
"""Features that change nothing of how files are read."""


def plain(table: DeltaTable) -> bool:
    """Whether a version of a table is plain."""
    mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    return bool(mapped == "none") and set(table.protocol().reader_features or ()) <= _HARMLESS
