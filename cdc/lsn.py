"""Lsn: a position in Postgres' write-ahead log."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.errors import EnvelopeError

_LSN_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True, order=True)
class Lsn:
    """A byte position in the write-ahead log; ordered, and printed as Postgres prints it.

    Attributes:
        value: Bytes since the start of the log, 0 to 2**64 - 1.
    """

    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value <= _LSN_MAX:
            raise EnvelopeError("lsn exceeds 64 bits", detail=str(self.value))

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Parses Postgres' form, such as `16/B374D848`.

        Raises:
            EnvelopeError: The text is not two hexadecimal numbers separated by a slash.
        """
        high, slash, low = text.partition("/")
        try:
            high_value, low_value = int(high, 16), int(low, 16)
        except ValueError:
            raise EnvelopeError("text is not an lsn", detail=text[:40]) from None
        if not slash or low_value >= 2**32 or high_value >= 2**32:
            raise EnvelopeError("text is not an lsn", detail=text[:40])
        return cls(high_value << 32 | low_value)

    def __str__(self) -> str:
        return f"{self.value >> 32:X}/{self.value & 0xFFFFFFFF:X}"
