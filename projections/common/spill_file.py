"""SpillFile: rows that are stored on disk in parts, to be read again part by part.

All parts are in one file without a name, so a killed process leaves no row behind, and a thousand
parts need only one open file.
"""

from __future__ import annotations

import tempfile
from array import array
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_CODEC: Final = "lz4"


class SpillFile:
    """Rows in parts; the owner must close it.

    Args:
        schema: Schema of all rows; no column of it is a dictionary.
        folder: Folder on the disk to use; None for the system's temporary folder.
    """

    def __init__(self, schema: pa.Schema, folder: Path | None = None) -> None:
        self._schema = schema
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # see `close`
        # for each batch of a part: its range in the file, and its size unpacked
        self._places: dict[Hashable, array[int]] = defaultdict(lambda: array("q"))
        self._end = 0

    def add(self, part: Hashable, rows: pa.RecordBatch) -> None:
        """Stores rows of a part.

        Raises:
            OSError: The disk is full.
        """
        buffer = rows.serialize()
        self._file.seek(self._end)
        begin, self._end = self._end, self._end + self._file.write(pa.compress(buffer, _CODEC))
        self._places[part].extend((begin, self._end, buffer.size))

    def read(self, part: Hashable) -> pa.Table:
        """Reads the rows of a part, in the order in which they were added."""
        places = iter(self._places.get(part, ()))
        batches = [self._batch(*place) for place in zip(places, places, places, strict=True)]
        return pa.Table.from_batches(batches, self._schema)

    def close(self) -> None:
        """Deletes all rows."""
        self._file.close()

    def _batch(self, begin: int, end: int, size_bytes: int) -> pa.RecordBatch:
        self._file.seek(begin)
        buffer = pa.decompress(self._file.read(end - begin), size_bytes, _CODEC)
        return pa.ipc.read_record_batch(buffer, self._schema)


def by_part(
    rows: pa.RecordBatch, hashes: NDArray[np.integer[Any]], parts: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Divides rows by hashes, for example of their keys; the rows of a part keep their order.

    Args:
        rows: The rows.
        hashes: One for each row.
        parts: Into how many parts.
    """
    numbers = (hashes % hashes.dtype.type(parts)).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    divided = rows.take(pa.array(order))
    bounds = np.searchsorted(numbers[order], np.arange(parts + 1))
    for part, (begin, end) in enumerate(pairwise(bounds)):
        if end > begin:
            yield part, divided.slice(begin, end - begin)
