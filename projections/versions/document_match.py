"""Matches the documents of two versions of a view in one store, in bounded memory.

The key of each document, with a hash of each compared column, is stored on disk in parts by the
key; one part of both sides is in memory at a time. The few documents to be shown as examples are
read again afterwards. A hash has 64 bits and is specific to this process: of 10^19 differing values
one is missed.
"""

from __future__ import annotations

from array import array
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import orjson
import pyarrow as pa

from projections.changes.documents import key_text
from projections.common.spill_file import SpillFile, by_part
from projections.stores.delta.table_diff import ChangedRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from projections.stores.delta.table_diff import TableDifference

    Document = Mapping[str, Any]

_PARTS: Final = 256
_KEPT_ROWS: Final = 64 * 1024
"""Keys of one side that are buffered before they are written."""

_STORED: Final = pa.schema([("key", pa.binary()), ("hashes", pa.binary())])


@dataclass(frozen=True, slots=True)
class VersionDocuments:
    """The documents of one version.

    Attributes:
        admitted: Reads those to compare.
        every: Reads all of them, for examples.
    """

    admitted: Callable[[], Iterable[Document]]
    every: Callable[[], Iterable[Document]]


def match_keys(
    difference: TableDifference,
    columns: Sequence[str],
    before: VersionDocuments,
    after: VersionDocuments,
    examples_max: int,
) -> None:
    """Matches documents by the keys of the difference, and adds what differs.

    Args:
        difference: Receives the differences.
        columns: The columns to compare, without the keys.
        before: The documents of the earlier version.
        after: Those of the later one.
        examples_max: Most examples of a kind.

    Raises:
        OSError: The disk is full.
    """

    def key(document: Document) -> bytes:
        return _key(document, difference.keys).encode()

    gone, appeared, changed = (_Found(examples_max) for _ in range(3))
    for left, right in _parts(before, after, key, columns):
        was_by_key = dict(left)
        for name, now in right:
            was = was_by_key.pop(name, None)
            if was is None:
                appeared.add(name)
            elif was != now:
                pairs = zip(array("q", was), array("q", now), strict=True)
                differing = (*compress(columns, (one != other for one, other in pairs)),)
                difference.by_column.update(differing)
                changed.add(name, differing)
        for name in was_by_key:
            gone.add(name)
    difference.gone += gone.count
    difference.appeared += appeared.count
    difference.changed += changed.count
    difference.examples_gone += [(key,) for key, _ in gone.first]
    difference.examples_appeared += [(key,) for key, _ in appeared.first]
    difference.examples_changed += _changed_rows(difference.keys, changed.first, before, after)


def match_rows(
    difference: TableDifference,
    columns: Sequence[str],
    before: VersionDocuments,
    after: VersionDocuments,
    examples_max: int,
) -> None:
    """Matches whole documents, each as often as it occurs; see `match_keys`."""

    def key(document: Document) -> bytes:
        return _hashes(document, columns)

    appeared = Counter[bytes]()
    for left, right in _parts(before, after, key, ()):
        was, now = (Counter(name for name, _ in side) for side in (left, right))
        difference.gone += (was - now).total()
        for name, count in (now - was).items():
            difference.appeared += count
            if len(appeared) < examples_max:
                appeared[name] = count
    documents = iter(after.every()) if appeared else iter(())
    for document in documents:
        if len(difference.examples_appeared) == examples_max or not appeared:
            break
        name = key(document)
        if name in appeared:
            values = tuple(_plain(document.get(column)) for column in columns)
            difference.examples_appeared.append(values)
            appeared -= Counter([name])


class _Found:
    """Counts keys that differ, and keeps the first of them, each with its differing columns."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.first: list[tuple[str, tuple[str, ...]]] = []
        self._most = most

    def add(self, key: bytes, columns: tuple[str, ...] = ()) -> None:
        self.count += 1
        if len(self.first) < self._most:
            self.first.append((key.decode(), columns))


class _HashedSide:
    """The keys of one side with the hashes of their columns, on disk; the owner must close it."""

    def __init__(
        self,
        documents: Iterable[Document],
        key: Callable[[Document], bytes],
        columns: Sequence[str],
    ) -> None:
        self._file = SpillFile(_STORED)
        keys: list[bytes] = []
        hashes: list[bytes] = []
        for document in documents:
            keys.append(key(document))
            hashes.append(_hashes(document, columns))
            if len(keys) == _KEPT_ROWS:
                self._write(keys, hashes)
                keys, hashes = [], []
        self._write(keys, hashes)

    def part(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        rows = self._file.read(number)
        return zip(*(rows.column(name).to_pylist() for name in _STORED.names), strict=True)

    def close(self) -> None:
        self._file.close()

    def _write(self, keys: list[bytes], hashes: list[bytes]) -> None:
        batch = pa.RecordBatch.from_pydict({"key": keys, "hashes": hashes}, _STORED)
        places = np.fromiter(map(crc32, keys), np.int64, len(keys))
        for part, some in by_part(batch, places, _PARTS):
            self._file.add(part, some)


def _parts(
    before: VersionDocuments,
    after: VersionDocuments,
    key: Callable[[Document], bytes],
    columns: Sequence[str],
) -> Iterator[tuple[Iterator[tuple[bytes, bytes]], Iterator[tuple[bytes, bytes]]]]:
    """Reads both sides, and yields the keys and hashes of each, part by part."""
    with ExitStack() as stack:
        left, right = (
            stack.enter_context(closing(_HashedSide(each.admitted(), key, columns)))
            for each in (before, after)
        )
        for number in range(_PARTS):
            yield left.part(number), right.part(number)


def _changed_rows(
    keys: Sequence[str],
    wanted: Sequence[tuple[str, tuple[str, ...]]],
    before: VersionDocuments,
    after: VersionDocuments,
) -> list[ChangedRow]:
    """Reads the values of changed rows, by key and differing columns, in both versions."""
    names = {key for key, _ in wanted}
    was, now = (_read(keys, names, each) for each in (before, after))
    return [
        ChangedRow((key,), {name: (was[key].get(name), now[key].get(name)) for name in columns})
        for key, columns in wanted
        if key in was and key in now
    ]


def _read(
    keys: Sequence[str], wanted: set[str], documents: VersionDocuments
) -> dict[str, Document]:
    """Reads the documents with some keys."""
    found: dict[str, Document] = {}
    reading = iter(documents.every()) if wanted else iter(())
    while len(found) < len(wanted) and (document := next(reading, None)) is not None:
        key = _key(document, keys)
        if key in wanted:
            found[key] = document
    return found


def _key(document: Document, keys: Sequence[str]) -> str:
    return key_text([document.get(name) for name in keys])


def _hashes(document: Document, names: Sequence[str]) -> bytes:
    """Returns one hash per column of a row."""
    return array("q", [hash(orjson.dumps(document.get(name))) for name in names]).tobytes()


def _plain(value: Any) -> object:
    return value if isinstance(value, str | int | float | None) else orjson.dumps(value).decode()
