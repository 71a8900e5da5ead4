"""The sieve: which keys of a view are worth a closer look, in bounded memory.

Of each row only its key and a hash of its document are kept, in files by the key's own hash: both
sides of a key lie in the files of one number, and of those one pair is in memory at a time. A
hundred million rows take some megabytes of it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from projections.verification.rule import HASH_BYTES, hash_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PARTS: Final = 64
_KEPT_BYTES: Final = 64 * 1024
"""Of each part, before it is written: some megabytes of one side, together."""

_LENGTH_BYTES: Final = 4


class Side:
    """The rows of one side: of the source, or of a store.

    Args:
        folder: Where its files are; it is made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.rows = 0
        self._paths = [folder / f"{part:02d}" for part in range(_PARTS)]
        self._kept = [bytearray() for _ in range(_PARTS)]

    def add(self, key: str, document: Mapping[str, object]) -> None:
        """Adds a row."""
        name = key.encode()
        part = zlib.crc32(name) % _PARTS
        kept = self._kept[part]
        kept += len(name).to_bytes(_LENGTH_BYTES, "big")
        kept += name
        kept += hash_of(document)
        self.rows += 1
        if len(kept) > _KEPT_BYTES:
            self._write(part)

    def finish(self) -> None:
        """Writes what is left."""
        for part in range(_PARTS):
            self._write(part)

    def part(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        """Reads the keys and hashes of one part."""
        data = self._paths[number].read_bytes() if self._paths[number].exists() else b""
        place = 0
        while place < len(data):
            begin = place + _LENGTH_BYTES
            end = begin + int.from_bytes(data[place:begin], "big")
            place = end + HASH_BYTES
            yield data[begin:end], data[end:place]

    def _write(self, part: int) -> None:
        if self._kept[part]:
            with self._paths[part].open("ab") as file:
                file.write(self._kept[part])
            self._kept[part] = bytearray()


def differing(source: Side, store: Side) -> Iterator[list[str]]:
    """Yields, part by part, the keys at which a store is not found equal to the source."""
    for number in range(_PARTS):
        rows: dict[bytes, bytes] = {}
        suspect: set[bytes] = set()
        for key, found in source.part(number):
            if key in rows:
                suspect.add(key)
            rows[key] = found
        for key, found in store.part(number):
            # what is left of the source in the end is missing
            if rows.pop(key, None) != found:
                suspect.add(key)
        suspect |= rows.keys()
        yield [key.decode() for key in suspect]
