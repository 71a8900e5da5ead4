"""Pace: how much of its time a verification may work, so that others have the rest."""

from __future__ import annotations

import threading
import time
from typing import Final

from projections.errors import VerificationError

_PAUSE_MAX_S: Final = 30.0
"""However long a step took: what is kept open at a store does not wait for much longer."""


class Pace:
    """Pauses after each step for as long as the budget asks.

    Args:
        budget: Share of the time that may be worked, above 0 and up to 1.
        stop: Ends all pauses, and the verification with them.
    """

    def __init__(self, budget: float = 1.0, stop: threading.Event | None = None) -> None:
        if not 0 < budget <= 1:
            raise VerificationError(
                "the budget of a verification is a share of the time",
                detail=f"{budget:g}",
                hint="above 0, and up to 1",
            )
        self._budget = budget
        self._stop = stop or threading.Event()
        self._since = time.monotonic()

    @property
    def stopped(self) -> bool:
        """Whether nothing more is to be done."""
        return self._stop.is_set()

    def step(self) -> None:
        """Ends a step: pauses, if the budget asks for that."""
        worked_s = time.monotonic() - self._since
        pause_s = min(_PAUSE_MAX_S, worked_s * (1 / self._budget - 1))
        if pause_s > 0:
            self._stop.wait(pause_s)
        self._since = time.monotonic()

    def rest(self, seconds: float) -> None:
        """Waits for something else; that is no work."""
        began = time.monotonic()
        self._stop.wait(seconds)
        self._since += time.monotonic() - began
