"""Fold: finds the record with the greatest version of each key of a topic, without decoding any.

Keys are compared exactly, never by a hash alone. As in live delivery, the record with the greatest
version wins, and the first one among equal versions. There is one entry for each key. Records are
merged in portions at least as large as all entries, so each key is compared only a few times.

One record does not suffice for a key with an unreadable record, or if the newest record omits
unchanged values that only an earlier one has. The fold lists these keys, and the replay delivers
all their records as in live delivery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from projections.changes.record import OLD_KEY_HEADER, canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

PORTION_ROWS: Final = 500_000

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class KeyedRecords(NamedTuple):
    """Records of one topic with their keys and positions.

    Attributes:
        keys: Their keys.
        versions: Their versions.
        offsets: Their offsets; records of one key are in one partition.
        rows: Their row numbers in the archive.
        partial: Whether they omit unchanged values.
    """

    keys: pa.Array
    versions: Integers
    offsets: Integers
    rows: Integers
    partial: Flags


@dataclass(slots=True)
class Fold:
    """The result of folding the records of a topic."""

    truncated: int = 0
    truncate_row: int = -1
    unread_keys: set[str] = field(default_factory=set)
    moved: dict[str, set[str]] = field(default_factory=dict)
    loose_rows: list[int] = field(default_factory=list)
    _newest: KeyedRecords | None = None
    _waiting: list[KeyedRecords] = field(default_factory=list)
    _waiting_rows: int = 0

    def add(self, changes: KeyedRecords) -> None:
        """Adds changes."""
        if not len(changes.keys):
            return
        self._waiting.append(changes)
        self._waiting_rows += len(changes.keys)
        known = 0 if self._newest is None else len(self._newest.keys)
        if self._waiting_rows >= max(PORTION_ROWS, known):
            self._merge()

    def add_truncates(self, versions: Integers, rows: Integers) -> None:
        """Adds truncates, which make older records obsolete."""
        if len(versions) and versions.max() > self.truncated:
            place = int(versions.argmax())
            self.truncated, self.truncate_row = int(versions[place]), int(rows[place])

    def newest(self) -> KeyedRecords | None:
        """Returns the newest change of each key; None if there is none."""
        self._merge()
        return self._newest

    def chained(self) -> set[str]:
        """Returns the keys that need all their records.

        These are the keys for which one record does not suffice, and all former keys of their rows.
        """
        newest = self.newest()
        keys = set(self.unread_keys)
        if newest is not None:
            live = newest.partial & (newest.versions >= self.truncated)
            keys.update(newest.keys.filter(pa.array(live)).to_pylist())
        return with_former(keys, self.moved)

    def rows(self, chained: set[str]) -> Integers:
        """Returns the row numbers of the newest records of all other keys, ascending."""
        newest = self.newest()
        if newest is None:
            return np.empty(0, np.int64)
        live = newest.versions >= self.truncated
        if chained:
            names = pa.array(sorted(chained), newest.keys.type)
            live &= ~pc.is_in(newest.keys, value_set=names).to_numpy(zero_copy_only=False)
        return np.sort(newest.rows[live])

    def _merge(self) -> None:
        if not self._waiting:
            return
        parts = [*([] if self._newest is None else [self._newest]), *self._waiting]
        self._waiting, self._waiting_rows = [], 0
        coded = pa.chunked_array([part.keys for part in parts]).combine_chunks()
        coded = coded.dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        keys = coded.dictionary
        versions = np.concatenate([part.versions for part in parts])
        offsets = np.concatenate([part.offsets for part in parts])
        greatest = np.full(len(keys), -1, np.int64)
        np.maximum.at(greatest, codes, versions)
        best = np.flatnonzero(versions == greatest[codes])
        if len(best) > len(keys):  # equal versions: the first in the topic is written last
            best = best[np.argsort(-offsets[best], kind="stable")]
        newest = np.empty(len(keys), np.int64)
        newest[codes[best]] = best
        rows = np.concatenate([part.rows for part in parts])
        keeping = np.concatenate([part.partial for part in parts])
        self._newest = KeyedRecords(keys, greatest, offsets[newest], rows[newest], keeping[newest])


@dataclass(slots=True)
class FoldedRows:
    """The result of folding a topic, by row numbers in the archive; see `Fold`.

    It needs sixteen bytes per key, regardless of the key's length.

    Attributes:
        numbers: Row number of the newest record of each key, ascending.
        versions: Their versions.
        partial_keys: Keys whose newest record omits unchanged values, with its version.
        unread_keys: Keys of records that cannot be read.
        loose_rows: Records without a key.
        truncated: Version of the newest truncate; 0 if there is none.
        truncate_row: Its row number; -1 if there is none.
        moved: The former keys of rows, by their current key.
        look_up: Returns the numbers of the newest records of some keys.
    """

    numbers: Integers
    versions: Integers
    partial_keys: Mapping[str, int]
    unread_keys: set[str]
    loose_rows: list[int]
    truncated: int
    truncate_row: int
    moved: dict[str, set[str]] = field(default_factory=dict)
    look_up: Callable[[Collection[str]], Integers] | None = None
    _left_out: dict[frozenset[str], Integers] = field(default_factory=dict)

    def chained(self) -> set[str]:
        """Returns the keys that need all their records; see `Fold.chained`."""
        live = {key for key, version in self.partial_keys.items() if version >= self.truncated}
        return with_former(self.unread_keys | live, self.moved)

    def rows(self, chained: set[str]) -> Integers:
        """Returns the row numbers of the newest records of all other keys, ascending."""
        live = self.versions >= self.truncated
        if chained and self.look_up is not None:
            names = frozenset(chained)
            if names not in self._left_out:
                self._left_out[names] = self.look_up(names)
            live &= ~np.isin(self.numbers, self._left_out[names])
        return self.numbers if live.all() else self.numbers[live]


def with_former(keys: set[str], moved: Mapping[str, set[str]]) -> set[str]:
    """Adds the former keys of rows to some keys.

    Args:
        keys: The keys.
        moved: The former keys of rows, by their current key.
    """
    reached, ahead = set(keys), list(keys)
    while ahead:
        former = moved.get(ahead.pop(), set()) - reached
        reached |= former
        ahead += former
    return reached


def old_keys(headers: pa.Array, keys: pa.Array) -> dict[str, set[str]]:
    """Returns the former keys of rows, by their new key.

    Args:
        headers: Headers of records.
        keys: Keys of the same records, as text.
    """
    inner = headers.flatten()
    if not len(inner):
        return {}
    named = pc.equal(inner.field("key"), OLD_KEY_HEADER)
    if not pc.any(named).as_py():
        return {}
    old_by_new: dict[str, set[str]] = {}
    parents = pc.list_parent_indices(headers).filter(named)
    values = map(canonical, inner.field("value").filter(named).to_pylist())
    for parent, old in zip(parents.to_pylist(), values, strict=True):
        new = keys[parent].as_py()
        if new is not None and old is not None:
            old_by_new.setdefault(new, set()).add(old.decode())
    return old_by_new
