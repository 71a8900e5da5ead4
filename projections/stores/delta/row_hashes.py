"""RowHashes: 64-bit hashes of rows in Arrow form, column by column.

They are specific to one instance: its seed is random, and texts are hashed by Python. Instances
with one seed have equal hashes if their processes hash texts equally, as Spark's workers do
(`PYTHONHASHSEED`). Equal rows have equal hashes if their columns have the same types. Equal numbers
of other types or scales may have other hashes, so a difference of hashes needs an exact comparison.
Two differing rows have the same hash once in 10^19.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_OF_NULL: Final = np.uint64(0xD1B54A32D192ED03)
_HALVES: Final = 2
"""64-bit halves of a decimal's 128 bits."""


class RowHashes:
    """Hashes rows.

    Args:
        signed_zeros: Whether -0.0 and 0.0 are different values, as in documents.
        seed: From `new_seed`; None for one of its own.
    """

    def __init__(self, *, signed_zeros: bool = False, seed: int | None = None) -> None:
        self._seed = np.uint64(new_seed() if seed is None else seed)
        self._null = self._seed ^ _OF_NULL
        self._signed_zeros = signed_zeros

    def of(
        self, batch: pa.RecordBatch, names: Sequence[str], since: Hashes | None = None
    ) -> Hashes:
        """Returns the hash of each row over some columns.

        Args:
            batch: The rows.
            names: The columns; their order counts.
            since: Hashes of the same rows over other columns, which these continue.
        """
        hashes = np.full(batch.num_rows, self._seed) if since is None else since.copy()
        for name in names:
            column = batch.column(name)
            # what is beneath a NULL is arbitrary, and Python's hash of None differs by process
            nulls = pc.is_null(column).to_numpy(zero_copy_only=False) if column.null_count else None
            for words in _words(column, signed_zeros=self._signed_zeros):
                _mix(hashes, words if nulls is None else np.where(nulls, self._null, words))
        return hashes


def new_seed() -> int:
    """Returns a random seed of 64 bits."""
    return secrets.randbits(64)


def _mix(hashes: Hashes, words: Hashes) -> None:
    """Adds a word to each hash: the finalizer of SplitMix64, which maps each to another one."""
    hashes ^= words
    hashes += np.uint64(0x9E3779B97F4A7C15)
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)


def _words(column: pa.Array, *, signed_zeros: bool) -> list[Hashes]:
    """Returns the values of a column, as one or two words each."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        words = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, _HALVES)
        words = words[column.offset : column.offset + len(column)]
        return [words[:, half] for half in range(_HALVES)]
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        # a copy; the sum of -0.0 and 0.0 is 0.0, and that of -0.0 and itself is -0.0
        numbers = numbers + (-0.0 if signed_zeros else 0.0)
        numbers[np.isnan(numbers)] = np.nan  # and a NaN equals another one
        return [numbers.view(np.uint64)]
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        whole = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return [whole.view(np.uint64)]
    values = column.to_pylist()
    if pa.types.is_nested(kind):
        values = list(map(repr, values))
    return [np.fromiter(map(hash, values), np.int64, len(values)).view(np.uint64)]
