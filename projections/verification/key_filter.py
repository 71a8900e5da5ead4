"""The key filter: the keys of a view to compare again, in bounded memory.

It stores only the key and a hash of each row, partitioned by the key's own hash: a key is in
partitions of the same number on both sides, and one such pair is in memory at a time. A hundred
million rows need some megabytes of memory.

The hashes have 64 bits and are specific to this process (SipHash, with a new key in each process):
one in 10^19 differing rows is missed. Rows whose hashes differ are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import orjson
import pyarrow as pa

from projections.common.spill_file import SpillFile, by_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from projections.changes.row_batch import RowPart

    Numbers = NDArray[np.int64]

_PARTS: Final = 64
_KEPT_ROWS: Final = 32 * 1024
"""Rows of one side that are buffered before they are written."""

_TEXT: Final = pa.schema([("key", pa.string())])
_PLACE: Final = "_headwater_place"
_ROW: Final = "_headwater_row"


class KeyedHashes(Protocol):
    """The keys of one side, each with a hash of itself and of its row; the owner must close it."""

    def part(self, number: int) -> pa.Table:
        """Reads the keys and hashes of one partition."""
        ...

    def texts(self, keys: pa.Table) -> list[str]:
        """Returns the texts of keys, given rows of partitions."""
        ...

    def close(self) -> None:
        """Deletes the stored keys and hashes."""
        ...


class HashFile:
    """Keys with hashes of them and of their rows, on disk; the owner must close it.

    Args:
        keys: The columns of keys.
    """

    def __init__(self, keys: pa.Schema) -> None:
        self._schema = hash_schema(keys)
        self._spool = SpillFile(self._schema)

    def add(self, keys: Sequence[pa.Array], places: Numbers, rows: Numbers) -> None:
        """Adds keys.

        Args:
            keys: The columns of keys.
            places: The hash of each key; equal keys of both sides have equal ones.
            rows: The hash of each key's row.
        """
        batch = hash_batch(self._schema, keys, places, rows)
        for part, some in by_part(batch, places, _PARTS):
            self._spool.add(part, some)

    def part(self, number: int) -> pa.Table:
        """Reads the keys and hashes of one partition."""
        return self._spool.read(number)

    def close(self) -> None:
        """Deletes the stored keys and hashes."""
        self._spool.close()


class ComparedRows:
    """The rows of one side: of the source, or of a store. The owner must close it."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self.rows = 0
        self._key = key
        self._file = HashFile(_TEXT)
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
        """See `KeyedHashes.part`."""
        if self._keys:
            self._write()
        return self._file.part(number)

    @staticmethod
    def texts(keys: pa.Table) -> list[str]:
        """See `KeyedHashes.texts`."""
        texts: list[str] = keys.column("key").to_pylist()
        return texts

    def close(self) -> None:
        """Deletes the stored keys and hashes."""
        self._file.close()

    def _write(self) -> None:
        places = np.fromiter(map(hash, self._keys), np.int64, len(self._keys))
        rows = np.array(self._hashes, np.int64)
        self._file.add([pa.array(self._keys, pa.string())], places, rows)
        self._keys, self._hashes = [], []


def hash_schema(keys: pa.Schema) -> pa.Schema:
    """Returns the schema of keys with the hashes of them and of their rows."""
    fields = [pa.field(name, pa.int64(), nullable=False) for name in (_PLACE, _ROW)]
    return pa.schema([*keys, *fields])


def hash_batch(
    schema: pa.Schema, keys: Sequence[pa.Array], places: Numbers, rows: Numbers
) -> pa.RecordBatch:
    """Returns a batch of a `hash_schema`; see `HashFile.add`."""
    return pa.RecordBatch.from_arrays([*keys, pa.array(places), pa.array(rows)], schema=schema)


def differing(source: KeyedHashes, store: KeyedHashes) -> Iterator[list[str]]:
    """Yields, partition by partition, the keys whose rows differ between a store and the source."""
    for number in range(_PARTS):
        keys = differing_keys(source.part(number), store.part(number))
        yield sorted(set(source.texts(keys)))


def differing_keys(source: pa.Table, store: pa.Table) -> pa.Table:
    """Returns the keys of a partition, with hashes, that do not have one equal row on each side."""
    sides = [source, store]
    lines = pa.concat_tables(sides)
    side = np.repeat([0, 1], [len(each) for each in sides])
    place, row = (lines.column(name).to_numpy() for name in (_PLACE, _ROW))
    order = np.lexsort((side, place))
    side, place, row = side[order], place[order], row[order]
    begins = np.flatnonzero(np.diff(place, prepend=place[:1] - 1))
    pairs = begins[np.diff(begins, append=len(place)) == len(sides)]
    pairs = pairs[(side[pairs] < side[pairs + 1]) & (row[pairs] == row[pairs + 1])]
    suspect = np.ones(len(place), np.bool_)
    suspect[pairs] = suspect[pairs + 1] = False
    return lines.take(order[suspect])
