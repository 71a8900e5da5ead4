"""Token: where in the log a command's events are, to wait for a view that has them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from eventstore.errors import BatchRefusedError
from eventstore.model.callables import check_kind
from eventstore.model.query import POSITION_MAX

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
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None or int(found[1]) > POSITION_MAX:
            raise BatchRefusedError("the text is not a position token", detail=f"{text!r:.80}")
        return cls(int(found[1]), int(found[2]))


def check_wait(token: Token, timeout_s: float) -> None:
    """Checks the arguments of a wait for a position; a NaN would never be over.

    Raises:
        WrongKindError: The token is none, such as its text.
        BatchRefusedError: The timeout is no number of seconds.
    """
    check_kind("the token to wait for", token, Token, "Token.parse(text), for the text of a token")
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not number or math.isnan(timeout_s):
        raise BatchRefusedError(
            "a timeout must be a number of seconds",
            detail=f"timeout_s is {timeout_s!r:.80}",
            hint="such as timeout_s=5",
        )
