"""Waiting for something that is looked at again and again, until it is there or the time is up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def looks(
    within_s: float, every_s: float, *, pause: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Paces a loop that ends by `break` or `return` once it has seen what it waits for.

    The first look is at once and the last one when the time is up;
    the `else` of the loop handles what was not seen in time.

    Args:
        within_s: How long to look.
        every_s: Pause between two looks.
        pause: Takes the pause, such as `threading.Event.wait`.
    """
    deadline = time.monotonic() + within_s
    while True:
        yield
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        pause(min(every_s, left_s))


def wait_until(reached: Callable[[], object], within_s: float, every_s: float) -> bool:
    """Waits until something is so; returns whether it is, within the time.

    Args:
        reached: Whether it is so.
        within_s: How long to look.
        every_s: Pause between two looks.
    """
    return any(reached() for _ in looks(within_s, every_s))
