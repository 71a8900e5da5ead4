"""The key filter: the keys of a view to compare again, in bounded memory.

It stores only the key and a hash of each row, partitioned by the key's own hash: a key is in
partitions of the same number on both sides, and one such pair is in memory at a time. A hundred
million rows need some megabytes of memory.

The hashes have 64 bits and are specific to this process (SipHash, with a new key in each process):
one in 10^19 differing rows is missed. Rows whose hashes differ are compared.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson
import pyarrow as pa

from projections.common.spill_file import SpillFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.changes.row_batch import RowPart

_PARTS: Final = 64
_KEPT_ROWS: Final = 32 * 1024
"""Rows of one side that are buffered before they are written."""

_LINES: Final = pa.schema([("key", pa.string()), ("place", pa.int64()), ("row", pa.int64())])


class ComparedRows:
    """The rows of one side: of the source, or of a store. The owner must close it."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self.rows = 0
        self._key = key
        self._spool = SpillFile(_LINES)
        self._keys: list[str] = []
        self._hashes: list[int] = []

    def add(self, part: RowPart) -> None:
        """Adds rows."""
        self._keys += part.keys(self._key)
        self._hashes += [hash(orjson.dumps(row, option=orjson.OPT_SORT_KEYS)) for row in part.rows]
        self.rows += len(part.rows)
        if len(self._keys) >= _KEPT_ROWS:
            self._write()

    def part(self, number: int) -> pa.Table:
        """Reads the keys and hashes of one partition."""
        if self._keys:
            self._write()
        return self._spool.read(number)

    def close(self) -> None:
        """Deletes the stored keys and hashes."""
        self._spool.close()

    def _write(self) -> None:
        places = np.fromiter(map(hash, self._keys), np.int64, len(self._keys))
        parts = places % _PARTS
        order = np.argsort(parts, kind="stable")
        columns = [self._keys, places, np.array(self._hashes, np.int64)]
        batch = pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=_LINES).take(order)
        bounds = np.searchsorted(parts[order], np.arange(_PARTS + 1))
        for part, (begin, end) in enumerate(pairwise(bounds)):
            if end > begin:
                self._spool.add(part, batch.slice(begin, end - begin))
        self._keys, self._hashes = [], []


def differing(source: ComparedRows, store: ComparedRows) -> Iterator[list[str]]:
    """Yields, partition by partition, the keys whose rows differ between a store and the source."""
    for number in range(_PARTS):
        sides = [source.part(number), store.part(number)]
        lines = pa.concat_tables(sides)
        side = np.repeat([0, 1], [len(each) for each in sides])
        place, row = (lines.column(name).to_numpy() for name in ("place", "row"))
        order = np.lexsort((side, place))
        side, place, row = side[order], place[order], row[order]
        begins = np.flatnonzero(np.diff(place, prepend=place[:1] - 1))
        pairs = begins[np.diff(begins, append=len(place)) == len(sides)]
        pairs = pairs[(side[pairs] < side[pairs + 1]) & (row[pairs] == row[pairs + 1])]
        suspect = np.ones(len(place), np.bool_)
        suspect[pairs] = suspect[pairs + 1] = False
        yield sorted(set(lines.column("key").take(order[suspect]).to_pylist()))
