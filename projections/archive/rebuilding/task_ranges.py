"""Ranges of the archive: which rows each task of a rebuild processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from projections.archive.scan import ArchiveScan

    Integers = NDArray[np.int64]

TASK_ROWS: Final = 100_000
"""Rows of the archive that one task folds, and records that one task decodes, at least."""

KEYS_PER_TASK: Final = 500_000
"""Rows whose keys one task folds, on average."""


def block_groups(scan: ArchiveScan) -> tuple[tuple[int, int], ...]:
    """Returns the blocks of each task of a fold: neighbours with `TASK_ROWS` rows or more."""
    groups, first, rows = [], 0, 0
    for number, block in enumerate(scan.blocks):
        rows += block.rows
        if rows >= TASK_ROWS:
            groups.append((first, number + 1))
            first, rows = number + 1, 0
    if first < len(scan.blocks):
        groups.append((first, len(scan.blocks)))
    return tuple(groups)


def row_cuts(scan: ArchiveScan, rows: Integers) -> tuple[int, ...]:
    """Returns where in `rows` each task begins, and their end: one task alone reads a block."""
    cuts, looked_at = [0], 0
    for block in scan.blocks:
        looked_at += block.rows
        end = int(np.searchsorted(rows, block.first + block.rows))
        if looked_at >= TASK_ROWS and end > cuts[-1]:
            cuts.append(end)
            looked_at = 0
    if cuts[-1] < len(rows):
        cuts.append(len(rows))
    return tuple(cuts)


def hash_parts(scan: ArchiveScan) -> int:
    """Returns into how many parts the keys of the archive are divided by their hashes."""
    return max(1, -(-scan.rows // KEYS_PER_TASK))
