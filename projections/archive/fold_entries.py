"""Entries of a fold: the newest record of each key, written by tasks and read by a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.fold import FoldedRows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from projections.archive.fold import Integers

CHANGE, UNREAD, LOOSE, TRUNCATE = range(4)
"""Kinds of entries: the newest record of a key; a key with an unreadable record; a record without
a key; the newest truncate."""

ENTRY: Final = pa.schema(
    [
        ("kind", pa.int8()),
        ("key", pa.string()),
        ("version", pa.int64()),
        ("offset", pa.int64()),
        ("row", pa.int64()),
        ("kept", pa.bool_()),
    ]
)


def read_folded(paths: Iterable[Path]) -> FoldedRows:
    """Reads the result of a fold from the entries that tasks wrote; holds one file at a time."""
    rows: list[Integers] = []
    versions: list[Integers] = []
    partial_keys: dict[str, int] = {}
    unread_keys: set[str] = set()
    loose_rows: list[int] = []
    truncated, truncate_row = 0, -1
    for entries in map(_read, paths):
        changes, unread, loose, truncates = (
            entries.filter(pc.equal(entries["kind"], kind))
            for kind in (CHANGE, UNREAD, LOOSE, TRUNCATE)
        )
        rows.append(_numbers(changes, "row"))
        versions.append(_numbers(changes, "version"))
        keeping = changes.filter(changes["kept"])
        partial_keys.update(
            zip(keeping["key"].to_pylist(), keeping["version"].to_pylist(), strict=True)
        )
        unread_keys.update(unread["key"].to_pylist())
        loose_rows += loose["row"].to_pylist()
        for each in truncates.to_pylist():
            # the first among equal versions, as in a survey
            if (each["version"], -each["row"]) > (truncated, -truncate_row):
                truncated, truncate_row = each["version"], each["row"]
    numbers = _joined(rows)
    order = np.argsort(numbers, kind="stable")
    return FoldedRows(
        numbers[order],
        _joined(versions)[order],
        partial_keys,
        unread_keys,
        loose_rows,
        truncated,
        truncate_row,
    )


def read_row_numbers(paths: Iterable[Path]) -> Integers:
    """Reads the row numbers of the records of entries."""
    return _joined([_numbers(entries, "row") for entries in map(_read, paths)])


def _read(path: Path) -> pa.Table:
    with pa.ipc.open_file(str(path)) as file:
        return file.read_all()


def _numbers(entries: pa.Table, name: str) -> Integers:
    return np.array(entries[name].to_numpy(), np.int64)  # a copy: no other column stays in memory


def _joined(parts: list[Integers]) -> Integers:
    """Joins arrays, and empties the list of them."""
    whole = np.concatenate([np.empty(0, np.int64), *parts])
    parts.clear()
    return whole
