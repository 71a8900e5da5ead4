"""MovedClock: a clock that changes only when a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Final

from eventstore.deciding.context import check_instant
from eventstore.errors import EventStoreError

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


class MovedClock:
    """A clock that a test sets: `MemoryEventLog(clock=clock)`, `ProcessSimulation`.

    Threads: may be used concurrently.

    Args:
        now: Initial time, with a UTC offset.
    """

    def __init__(self, now: datetime = BEGIN) -> None:
        check_instant("now", now)
        self._now = now
        self._changing = threading.Lock()

    def __call__(self) -> datetime:
        """Returns the time that it shows."""
        return self._now

    def move(self, by: timedelta) -> datetime:
        """Moves the clock forward; returns the new time.

        Raises:
            EventStoreError: Time would go back.
        """
        if by < timedelta():
            raise EventStoreError("a clock is moved forward", detail=f"by {by}")
        with self._changing:
            self._now += by
            return self._now
