"""HighWaterMark: the highest position up to which a log was found complete."""

from __future__ import annotations

import threading

from eventstore.forking import renew_after_fork


class HighWaterMark:
    """Remembers the mark: what was complete stays complete, though a slow writer may set it back.

    Threads: may be used concurrently.
    """

    def __init__(self) -> None:
        self._mark = 0
        self._lock = threading.Lock()
        renew_after_fork(self)

    def seen(self, mark: int, head: int) -> int:
        """Returns the mark, given what the database says.

        Args:
            mark: Up to where the log is complete now.
            head: Last assigned position. If it is below the mark, the log was restored to an
                earlier time.
        """
        with self._lock:
            self._mark = max(mark, self._mark) if self._mark <= head else mark
            return self._mark

    def after_fork(self) -> None:
        """See `Forked`."""
        self._lock = threading.Lock()
