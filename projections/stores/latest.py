"""Reduction of changes to the newest one of each key: a pure fold, whatever their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.changes.row_change import RowChange
from projections.errors import NoStoredRowError

if TYPE_CHECKING:
    from collections.abc import Iterable


def latest(changes: Iterable[RowChange]) -> list[RowChange]:
    """Returns one change per key, the one with the greatest version.

    Duplicates and order do not matter, with one exception: a change that keeps unchanged values
    (`RowChange.kept`) must come after the one that has them, as it does in the log.

    Raises:
        NoStoredRowError: A change keeps values of a row that the same batch deletes before it.
    """
    newest: dict[tuple[object, ...], RowChange] = {}
    for change in changes:
        seen = newest.get(change.key)
        if seen is None:
            newest[change.key] = change
        elif change.version > seen.version:
            newest[change.key] = follow(seen, change)
    return list(newest.values())


def follow(older: RowChange, newer: RowChange) -> RowChange:
    """Returns `newer`, its kept values taken from `older` as far as that has them."""
    if newer.row is None or not newer.kept:
        return newer
    if older.row is None:
        raise NoStoredRowError(
            "a change keeps values of a deleted row", detail=", ".join(newer.kept)
        )
    row = dict(newer.row)
    for name in newer.kept:
        row[name] = older.row[name]
    kept = tuple(name for name in newer.kept if name in older.kept)
    return RowChange(newer.key, newer.version, row, newer.committed_at_us, kept)
