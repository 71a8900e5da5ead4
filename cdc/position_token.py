"""PositionToken: a position in a source's log that other processes can wait for.

A writer gets a token after its commit; a view that has applied everything up to that position
includes the write. A token names its source and incarnation, because positions of another source,
or of a log that was restored to an earlier time, cannot be compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cdc.errors import TokenMalformedError
from cdc.lsn import Lsn

_TEXT: Final = re.compile(r"hwp1\.(?P<epoch>\d{1,9})\.(?P<lsn>[0-9A-F]{16})\.(?P<source>\S{1,63})")


@dataclass(frozen=True, slots=True)
class PositionToken:
    """A position in the log of one incarnation of a source.

    Its text contains nothing secret: letters, digits, dots and underscores, suitable for an HTTP
    header.

    Attributes:
        source: Name of the source.
        epoch: Its incarnation.
        lsn: Everything committed before the token was made has an earlier position.
    """

    source: str
    epoch: int
    lsn: Lsn

    def __str__(self) -> str:
        return f"hwp1.{self.epoch}.{self.lsn.value:016X}.{self.source}"

    @classmethod
    def parse(cls, text: str) -> PositionToken:
        """Parses a token as `str()` writes it.

        Raises:
            TokenMalformedError: The text is not a token.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise TokenMalformedError(
                "the text is not a position token",
                detail=f"{text!r:.80}",
                hint="headwater token prints one",
            )
        return cls(found["source"], int(found["epoch"]), Lsn(int(found["lsn"], 16)))
