"""SuspectKeys: the keys at which two versions of a table may differ, in bounded memory.

Each version is read once. Only a hash of the key and a hash of each row are stored, on disk, in
partitions by the hash of the key: a key is in partitions of the same number on both sides, and one
such pair is in memory at a time. A key is suspect unless both versions have the same rows of it,
each as often. The suspect keys themselves are a bitmap over their hashes, of the same size however
many there are; a few equal keys share a place in it with others, and are suspect without cause.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from projections.common.spill_file import SpillFile, by_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from projections.stores.delta.row_hashes import Hashes

_PARTS: Final = 64
_BUFFERED_ROWS: Final = 256 * 1024
"""Rows of one version that are buffered before they are written."""

_BITS: Final = 24
LINES: Final = pa.schema([("key", pa.uint64()), ("row", pa.uint64())])
"""Hashes of a row: of its key, and of the whole row."""


class SuspectKeys:
    """Keys at which two versions may differ.

    Args:
        before: Hashes of the keys and rows of one version, in parts.
        after: Those of the other one.

    Attributes:
        rows: Approximate number of rows of these keys, in both versions.

    Raises:
        OSError: The disk is full.
    """

    def __init__(
        self, before: Iterable[tuple[Hashes, Hashes]], after: Iterable[tuple[Hashes, Hashes]]
    ) -> None:
        self.rows = 0
        self._suspect = np.zeros(1 << _BITS, np.bool_)
        with ExitStack() as stack:
            sides = [stack.enter_context(closing(_HashFile())) for _ in range(2)]
            for side, hashes in zip(sides, (before, after), strict=True):
                for keys, rows in hashes:
                    side.add(keys, rows)
            total = 0
            for part in range(_PARTS):
                total += self._compare([side.part(part) for side in sides])
        # and rows of the equal keys in the same places
        self.rows += int((total - self.rows) * np.count_nonzero(self._suspect) / (1 << _BITS))

    def among(self, keys: Hashes) -> NDArray[np.bool_]:
        """Returns for each key whether it is suspect.

        Args:
            keys: The hashes of keys.
        """
        return self._suspect[_place(keys)]

    def _compare(self, sides: list[pa.Table]) -> int:
        """Notes the suspect keys of one partition; returns its number of rows."""
        keys = np.concatenate([side["key"].to_numpy() for side in sides])
        suspect = uneven_keys(sides)
        self._suspect[_place(suspect)] = True
        self.rows += int(np.count_nonzero(np.isin(keys, suspect)))
        return len(keys)


def uneven_keys(sides: Sequence[pa.Table]) -> Hashes:
    """Returns the hashes of the keys of a partition whose rows differ between two versions.

    Args:
        sides: The lines of both versions; see `LINES`.
    """
    keys, rows = (
        np.concatenate([side[name].to_numpy() for side in sides]) for name in ("key", "row")
    )
    if not len(keys):
        return np.zeros(0, np.uint64)
    signs = np.repeat(np.array([1, -1]), [side.num_rows for side in sides])
    order = np.argsort(rows)
    rows, signs, of_rows = rows[order], signs[order], keys[order]
    begins = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
    uneven = np.add.reduceat(signs, begins) != 0
    suspect: Hashes = of_rows[begins[uneven]]
    return suspect


class _HashFile:
    """The hashes of one version; the owner must close it."""

    def __init__(self) -> None:
        self._file = SpillFile(LINES)
        self._buffered: list[tuple[Hashes, Hashes]] = []
        self._count = 0

    def add(self, keys: Hashes, rows: Hashes) -> None:
        self._buffered.append((keys, rows))
        self._count += len(keys)
        if self._count >= _BUFFERED_ROWS:
            self._write()

    def part(self, number: int) -> pa.Table:
        if self._buffered:
            self._write()
        return self._file.read(number)

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        keys, rows = (np.concatenate(side) for side in zip(*self._buffered, strict=True))
        lines = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(rows)], schema=LINES)
        for part, some in by_part(lines, keys, _PARTS):
            self._file.add(part, some)
        self._buffered, self._count = [], 0


def _place(keys: Hashes) -> NDArray[np.int64]:
    return (keys >> np.uint64(64 - _BITS)).astype(np.int64)
