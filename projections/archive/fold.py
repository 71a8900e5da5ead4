"""Fold: of each key of a topic, the record with the greatest version, found without decoding any.

Keys are compared as they are, never by a hash alone, and records of a key as live delivery compares
them: the greater version wins, of equal ones the first. What is kept is one entry for each key;
records are taken in portions at least as large as that, so each key is looked at a few times only.

Some keys cannot be judged so: those of which a record cannot be read, and those whose newest record
keeps values that only an earlier one has. They are named, and go the way of live delivery with all
their records.
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
    """Records of one topic that say which key they are of and where they stand.

    Attributes:
        keys: Their keys.
        versions: Their versions.
        offsets: Their offsets; records of one key lie in one partition.
        rows: Their numbers in the archive.
        kept: Whether they keep values.
    """

    keys: pa.Array
    versions: Integers
    offsets: Integers
    rows: Integers
    kept: Flags


@dataclass(slots=True)
class Fold:
    """What the records of a topic come to."""

    truncated: int = 0
    truncate_row: int = -1
    unread_keys: set[str] = field(default_factory=set)
    moved: dict[str, set[str]] = field(default_factory=dict)
    loose_rows: list[int] = field(default_factory=list)
    _newest: KeyedRecords | None = None
    _waiting: list[KeyedRecords] = field(default_factory=list)
    _waiting_rows: int = 0

    def add(self, changes: KeyedRecords) -> None:
        """Takes changes."""
        if not len(changes.keys):
            return
        self._waiting.append(changes)
        self._waiting_rows += len(changes.keys)
        known = 0 if self._newest is None else len(self._newest.keys)
        if self._waiting_rows >= max(PORTION_ROWS, known):
            self._merge()

    def add_truncates(self, versions: Integers, rows: Integers) -> None:
        """Takes truncates: whatever is older is gone."""
        if len(versions) and versions.max() > self.truncated:
            place = int(versions.argmax())
            self.truncated, self.truncate_row = int(versions[place]), int(rows[place])

    def newest(self) -> KeyedRecords | None:
        """Returns the newest change of each key; None if there is none."""
        self._merge()
        return self._newest

    def chained(self) -> set[str]:
        """Returns the keys that have to be taken with all their records.

        These are those that cannot be judged by one record, and whatever keys their rows had.
        """
        newest = self.newest()
        keys = set(self.unread_keys)
        if newest is not None:
            live = newest.kept & (newest.versions >= self.truncated)
            keys.update(newest.keys.filter(pa.array(live)).to_pylist())
        return with_former(keys, self.moved)

    def rows(self, chained: set[str]) -> Integers:
        """Returns the numbers of the newest records of all other keys, rising."""
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
        if len(best) > len(keys):  # equal versions: the first in the topic is to be written last
            best = best[np.argsort(-offsets[best], kind="stable")]
        places = np.empty(len(keys), np.int64)
        places[codes[best]] = best
        rows = np.concatenate([part.rows for part in parts])
        kept = np.concatenate([part.kept for part in parts])
        self._newest = KeyedRecords(keys, greatest, offsets[places], rows[places], kept[places])


@dataclass(slots=True)
class FoldedRows:
    """What the records of a topic come to, by their numbers in the archive; see `Fold`.

    Of a key there are sixteen bytes here, whatever its length.

    Attributes:
        numbers: The newest record of each key, rising.
        versions: Their versions.
        kept: Keys of those that keep values, with their versions.
        unread_keys: Keys of records that cannot be read.
        loose_rows: Records without a key.
        truncated: Version of the newest truncate; 0 of none.
        truncate_row: Its number; -1 of none.
        moved: The former keys of rows, by the key that they came under.
        look_up: Returns the numbers of the newest records of some keys.
    """

    numbers: Integers
    versions: Integers
    kept: Mapping[str, int]
    unread_keys: set[str]
    loose_rows: list[int]
    truncated: int
    truncate_row: int
    moved: dict[str, set[str]] = field(default_factory=dict)
    look_up: Callable[[Collection[str]], Integers] | None = None
    _left_out: dict[frozenset[str], Integers] = field(default_factory=dict)

    def chained(self) -> set[str]:
        """Returns the keys that have to be taken with all their records; see `Fold.chained`."""
        live = {key for key, version in self.kept.items() if version >= self.truncated}
        return with_former(self.unread_keys | live, self.moved)

    def rows(self, chained: set[str]) -> Integers:
        """Returns the numbers of the newest records of all other keys, rising."""
        live = self.versions >= self.truncated
        if chained and self.look_up is not None:
            names = frozenset(chained)
            if names not in self._left_out:
                self._left_out[names] = self.look_up(names)
            live &= ~np.isin(self.numbers, self._left_out[names])
        return self.numbers[live]


def with_former(keys: set[str], moved: Mapping[str, set[str]]) -> set[str]:
    """Adds to keys those that their rows had before.

    Args:
        keys: The keys.
        moved: The former keys of rows, by the key that they came under.
    """
    found, ahead = set(keys), list(keys)
    while ahead:
        former = moved.get(ahead.pop(), set()) - found
        found |= former
        ahead += former
    return found


def old_keys(headers: pa.Array, keys: pa.Array) -> dict[str, set[str]]:
    """Returns the keys that rows had before they came under others, by the new key.

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
    found: dict[str, set[str]] = {}
    parents = pc.list_parent_indices(headers).filter(named)
    values = map(canonical, inner.field("value").filter(named).to_pylist())
    for parent, old in zip(parents.to_pylist(), values, strict=True):
        new = keys[parent].as_py()
        if new is not None and old is not None:
            found.setdefault(new, set()).add(old.decode())
    return found
