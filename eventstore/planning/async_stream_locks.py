"""Stream locks: commands to one stream, in one event loop, one at a time.

Two commands that decide on the same version of a stream cost the later one a second attempt: with
fifteen tasks on a stream, some hundred attempts for fifteen commands, each of which keeps a
connection of the pool waiting for one lock in the database. In order of arrival, each command needs
one attempt.

The log alone decides what may be appended, so this lock saves work and nothing depends on it. It is
released after a while even if its command still runs: that command may wait for a transaction of
the next command's caller, and Postgres, which detects deadlocks, does not know this lock.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HELD_S_MAX: Final = 2.0
"""Longer than ten attempts pause in total (`PAUSE_S_MAX`)."""


@dataclass(slots=True)
class _StreamLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass(slots=True)
class _Held:
    """A lock that its holder and a timer may release; the first of them does."""

    lock: asyncio.Lock
    released: bool = False

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.lock.release()


class AsyncStreamLocks:
    """A lock for each stream in use, in order of arrival.

    Threads: each event loop has locks of its own.

    Args:
        held_s_max: After this many seconds a lock is released whether or not its holder is done.
    """

    def __init__(self, held_s_max: float = HELD_S_MAX) -> None:
        self._held_s_max = held_s_max
        self._locks: dict[tuple[asyncio.AbstractEventLoop, str, str], _StreamLock] = {}

    @asynccontextmanager
    async def holding(self, tenant: str, stream: str) -> AsyncIterator[None]:
        """Holds the lock of a tenant's stream."""
        loop = asyncio.get_running_loop()
        key = loop, tenant, stream
        stream_lock = self._locks.setdefault(key, _StreamLock())
        stream_lock.users += 1
        try:
            await stream_lock.lock.acquire()
            held = _Held(stream_lock.lock)
            expiry = loop.call_later(self._held_s_max, held.release)
            try:
                yield
            finally:
                expiry.cancel()
                held.release()
        finally:
            stream_lock.users -= 1
            if not stream_lock.users:
                del self._locks[key]
