"""Columns and fields that stores keep beside those of a view."""

from __future__ import annotations

from typing import Final

VERSION_COLUMN = "_version"
"""Column or field in which every store keeps `ChangePosition.version` beside a row."""

ROW_ID_COLUMN = "_row_id"
"""Key of a mirror whose table has no key: the row's place in the source's order, as text."""

HISTORY_COLUMNS = ("valid_from", "valid_to", "is_current", "recorded_from", "recorded_to")
"""Columns that a history has beside those of its table."""

HISTORY_BOOKKEEPING = ("_recorded_version", "_last_version", "_last_at")
"""Columns of a history that are of use to Headwater alone."""

BEGUN_COLUMN = "_headwater_begun"
"""Of a mirror whose rows say when they were inserted: the version of the newest insert or delete of
their key that is known."""

BEGUN_AT_COLUMN = "_headwater_begun_at"
"""Of a remembered delete, when the key's row was inserted, if the view only left it out."""

BOOKKEEPING = (*HISTORY_BOOKKEEPING, BEGUN_COLUMN)
"""Columns of tables that are of use to Headwater alone, beside the version."""

DELETED_FIELD: Final = "_deleted"
"""Field that marks the lasting memory of a delete where it shares an index with live rows."""
