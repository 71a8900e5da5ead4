"""Record batches, built in bulk: Kafka's format 2, packed with lz4.

The library builds a batch with a dozen calls for each record. A snapshot has hundreds of thousands
of records that differ only in key and value, so here their common bytes are built once.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_AFTER_CRC: Final = struct.Struct(">hiqqqhii")
_MAGIC: Final = 2
_LZ4: Final = 3
_NONE: Final = -1
_LENGTH_COUNTED: Final = _HEAD.size - 12  # without base offset and length itself
_VARINTS_MAX: Final = 1 << 14
_MORE: Final = 0x80


def varint(number: int) -> bytes:
    """Encodes a number as Kafka does: zigzag, seven bits in a byte, the lowest first."""
    left = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while left >= _MORE:
        out.append(_MORE | left % _MORE)
        left >>= 7
    out.append(left)
    return bytes(out)


_VARINTS: Final = [varint(number) for number in range(_VARINTS_MAX)]
_NO_KEY: Final = varint(-1)


class RecordBatch:
    """Collects records of one partition that share their headers.

    Args:
        headers: Name and value of each.
    """

    def __init__(self, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        parts = [varint(len(headers))]
        for name, value in headers:
            encoded = name.encode()
            parts += [varint(len(encoded)), encoded, varint(len(value)), value]
        self._headers = b"".join(parts)
        self._parts: list[bytes] = []
        self.count = 0
        self.size_bytes = 0

    def add(self, key: bytes | None, value: bytes) -> None:
        """Adds a record."""
        parts = self._parts
        if key is None:
            key, key_length = b"", _NO_KEY
        else:
            key_length = _length(len(key))
        value_length = _length(len(value))
        number = _length(self.count)
        headers = self._headers
        # two bytes: no attributes, no timestamp delta
        size = (
            2 + len(number) + len(key_length) + len(key) + len(value_length) + len(value)
        ) + len(headers)
        parts += (_length(size), b"\0\0", number, key_length, key, value_length, value, headers)
        self.count += 1
        self.size_bytes += size

    def take(self) -> bytes:
        """Returns the encoded batch, and begins an empty one.

        At least one record must have been added.
        """
        from kafka.codec import lz4_encode  # noqa: PLC0415  # see admin
        from kafka.record.util import calc_crc32c  # noqa: PLC0415

        packed: bytes = lz4_encode(b"".join(self._parts))
        now_ms = time.time_ns() // 1_000_000
        last = self.count - 1
        tail = (_LZ4, last, now_ms, now_ms, _NONE, _NONE, _NONE, self.count)
        checksum: int = calc_crc32c(_AFTER_CRC.pack(*tail) + packed)
        head = _HEAD.pack(0, _LENGTH_COUNTED + len(packed), _NONE, _MAGIC, checksum, *tail)
        self._parts = []
        self.count = self.size_bytes = 0
        return head + packed


def _length(number: int) -> bytes:
    return _VARINTS[number] if number < _VARINTS_MAX else varint(number)
