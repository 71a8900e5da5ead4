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


def read_entries(paths: Iterable[Path]) -> pa.Table:
    """Reads the entries that tasks wrote."""
    parts = [ENTRY.empty_table()]
    for path in paths:
        with pa.ipc.open_file(str(path)) as file:
            parts.append(file.read_all())
    return pa.concat_tables(parts)


def folded_rows(entries: pa.Table) -> FoldedRows:
    """Returns the result of the fold."""
    by_kind = {
        kind: entries.filter(pc.equal(entries["kind"], kind))
        for kind in (CHANGE, UNREAD, LOOSE, TRUNCATE)
    }
    changes = by_kind[CHANGE].sort_by("row")
    keeping = changes.filter(changes["kept"])
    truncates = by_kind[TRUNCATE].to_pylist()
    # the first among equal versions, as in a survey
    newest = max(truncates, key=lambda each: (each["version"], -each["row"]), default=None)
    return FoldedRows(
        row_numbers(changes),
        np.asarray(changes["version"].to_numpy(), np.int64),
        dict(zip(keeping["key"].to_pylist(), keeping["version"].to_pylist(), strict=True)),
        set(by_kind[UNREAD]["key"].to_pylist()),
        by_kind[LOOSE]["row"].to_pylist(),
        0 if newest is None else newest["version"],
        -1 if newest is None else newest["row"],
    )


def row_numbers(entries: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the row numbers of the records of entries."""
    return np.asarray(entries["row"].to_numpy(), np.int64)
