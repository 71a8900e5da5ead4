"""Polling: repeats a check until it succeeds or the time is up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def looks(
    within_s: float, every_s: float, *, pause: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Paces a polling loop, which ends by `break` or `return` when its condition holds.

    The first poll is immediate, and the last one is when the time is up. The `else` of the loop
    handles the timeout.

    Args:
        within_s: Longest wait, in seconds.
        every_s: Pause between two polls, in seconds.
        pause: Waits for a number of seconds, such as `threading.Event.wait`.
    """
    deadline = time.monotonic() + within_s
    while True:
        yield
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        pause(min(every_s, left_s))


def wait_until(reached: Callable[[], object], within_s: float, every_s: float) -> bool:
    """Waits until a condition holds; returns whether it does within the time.

    Args:
        reached: Returns whether the condition holds.
        within_s: Longest wait, in seconds.
        every_s: Pause between two polls, in seconds.
    """
    return any(reached() for _ in looks(within_s, every_s))
