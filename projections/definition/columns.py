"""Columns and fields that stores add to those of a view."""

from __future__ import annotations

from typing import Final

VERSION_COLUMN = "_version"
"""Column or field in which every store keeps a row's `ChangePosition.version`."""

ROW_ID_COLUMN = "_row_id"
"""Key of a mirror of a table without a key: the log position of the row, as text."""

HISTORY_COLUMNS = ("valid_from", "valid_to", "is_current", "recorded_from", "recorded_to")
"""Columns that a history has in addition to those of its table."""

HISTORY_BOOKKEEPING = ("_recorded_version", "_last_version", "_last_at")
"""Columns of a history for internal use."""

HISTORY_CHANGE_COLUMNS = ("_at", "_sequence", "_live", "_commit", "_inserted")
"""Columns that the log of a history's changes has in addition to those of its table."""

INTERNAL_PREFIX: Final = "_headwater_"
"""Prefix of columns that exist only within a store or during a computation."""

BEGUN_COLUMN = "_headwater_begun"
"""For a mirror that records insert times: version of the key's newest known insert or delete.
"""

BEGUN_AT_COLUMN = "_headwater_begun_at"
"""For a recorded delete: the insert time of a row that the view only excludes."""

BOOKKEEPING = (*HISTORY_BOOKKEEPING, BEGUN_COLUMN)
"""Columns of tables for internal use, beside the version."""

DELETED_FIELD: Final = "_deleted"
"""Field that marks a recorded delete in an index that also has live rows."""
