"""Waiting: the plan by which one waits until the log is complete up to a position."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from eventstore.errors import WaitTimeoutError
from eventstore.model.token import check_wait
from eventstore.planning.operation import Call, Pause

if TYPE_CHECKING:
    from eventstore.model.token import Token
    from eventstore.planning.operation import Plan

_PAUSE_FIRST_S: Final = 0.001
_PAUSE_S_MAX: Final = 0.05


def waiting(token: Token, timeout_s: float) -> Plan[None]:
    """Waits until every event up to a token is readable, and none can commit before it any more.

    Args:
        token: The position in the log.
        timeout_s: Longest wait, seconds.

    Raises:
        WrongKindError: The token is none.
        BatchRefusedError: The timeout is no number of seconds.
        WaitTimeoutError: A transaction that began before it is still open.
    """
    check_wait(token, timeout_s)
    deadline = time.monotonic() + timeout_s
    pause_s = _PAUSE_FIRST_S
    while True:
        mark = yield Call("high_water_mark")
        if mark >= token.global_position:
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0 or (yield Pause(min(pause_s, left_s))):
            raise WaitTimeoutError(
                "the log did not become complete up to the position in time",
                detail=f"it is complete up to {mark}, not yet up to {token.global_position}",
                hint="a writer's transaction is open longer than the timeout; wait longer",
            )
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
