"""Identities of events: UUIDs of version 7, made in ascending order."""

from __future__ import annotations

import os
import threading
import time
from typing import Final
from uuid import UUID, SafeUUID

_TAIL_BITS: Final = 74
_TAIL_MAX: Final = (1 << _TAIL_BITS) - 1
_VERSION: Final = 7 << 76
_VARIANT: Final = 0b10 << 62
_HIGH: Final = 0xFFF << 62
_LOW: Final = (1 << 62) - 1

_bare = object.__new__
_put = object.__setattr__  # a UUID refuses assignment, and its constructor takes twice the time


class EventIds:
    """Makes event ids; each is greater than the one before, whatever the clock does.

    48 bits of milliseconds, then 74 bits that are random at the start of each millisecond and
    counted up within it. If the clock is set back, counting goes on where it was.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._milliseconds = 0
        self._tail = 0

    def __call__(self) -> UUID:
        """Returns a new id."""
        now = time.time_ns() // 1_000_000
        with self._lock:
            if now > self._milliseconds:
                self._milliseconds = now
                # the highest bit stays free to count up into
                self._tail = int.from_bytes(os.urandom(10)) >> 7
            elif self._tail < _TAIL_MAX:
                self._tail += 1
            else:
                self._milliseconds += 1
                self._tail = 0
            number = self._milliseconds << 80 | _VERSION | _VARIANT
            number |= (self._tail & _HIGH) << 2 | self._tail & _LOW
        made: UUID = _bare(UUID)
        _put(made, "int", number)
        _put(made, "is_safe", SafeUUID.unknown)
        return made

    def forget(self) -> None:
        """Starts a new sequence, as a forked child must: it would repeat its parent's ids."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._milliseconds = 0
        self._tail = 0


new_event_id: Final = EventIds()
os.register_at_fork(after_in_child=new_event_id.forget)
