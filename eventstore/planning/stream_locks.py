"""Stream locks: commands to one stream, from threads of one process, one at a time.

Two commands that decide on the same version of a stream cost the later one a second attempt. In
order of arrival, each command needs one.

The log alone decides what may be appended, so these locks save work and nothing depends on them. A
command waits no longer than `HELD_S_MAX` for one that runs: that one may wait for a transaction of
the caller, and Postgres, which detects deadlocks, does not know these locks.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD_S_MAX: Final = 2.0
"""Longer than ten attempts pause in total (`PAUSE_S_MAX`)."""


@dataclass(slots=True)
class _Command:
    """One in the line of a stream."""

    begun: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


class StreamLocks:
    """A lock for each stream in use, in order of arrival.

    Threads: for use by any number of them.

    Args:
        held_s_max: After this many seconds the next command no longer waits for one that runs.
    """

    def __init__(self, held_s_max: float = HELD_S_MAX) -> None:
        self._held_s_max = held_s_max
        self._changing = threading.Lock()
        self._last: dict[tuple[str, str], _Command] = {}

    @contextmanager
    def holding(self, tenant: str, stream: str) -> Iterator[None]:
        """Holds the lock of a tenant's stream."""
        key, command = (tenant, stream), _Command()
        with self._changing:
            before = self._last.get(key)
            self._last[key] = command
        try:
            if before is not None:
                before.begun.wait()  # the one before it waits no longer than this one would
                before.ended.wait(self._held_s_max)
            command.begun.set()
            yield
        finally:
            command.begun.set()  # also where the wait was interrupted
            command.ended.set()
            with self._changing:
                if self._last.get(key) is command:
                    del self._last[key]
