"""Token: where in the log a command's events are, to wait for a view that has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from eventstore.errors import BatchRefusedError

_TEXT: Final = re.compile(r"hw1\.(\d{1,19})\.(\d{1,20})")


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """A position in the log.

    Attributes:
        global_position: Position of the last event written; a view that has applied it has applied
            all earlier events.
        transaction_id: Id of the database transaction that wrote it (`xid8`), which the captured
            log also names; 0 if there is none.
    """

    global_position: int
    transaction_id: int = 0

    def __str__(self) -> str:
        return f"hw1.{self.global_position}.{self.transaction_id}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parses the text of a token, as returned by `str()`.

        Raises:
            BatchRefusedError: It is none.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise BatchRefusedError("the text is not a position token", detail=f"{text!r:.80}")
        return cls(int(found[1]), int(found[2]))
