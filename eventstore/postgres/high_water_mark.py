"""HighWaterMark: the highest position up to which a log is known to be complete."""

from __future__ import annotations

import threading

from eventstore.forking import renew_after_fork


class HighWaterMark:
    """Remembers the highest mark: a slow writer may lower the database's value temporarily.

    Threads: may be used concurrently.
    """

    def __init__(self) -> None:
        self._mark = 0
        self._lock = threading.Lock()
        renew_after_fork(self)

    def seen(self, mark: int, head: int) -> int:
        """Returns the mark, given the current values of the database.

        Args:
            mark: Position up to which the log is complete now.
            head: Last assigned position. If it is below the remembered mark, the log was restored
                to an earlier time.
        """
        with self._lock:
            self._mark = max(mark, self._mark) if self._mark <= head else mark
            return self._mark

    def after_fork(self) -> None:
        """See `Forked`."""
        self._lock = threading.Lock()
