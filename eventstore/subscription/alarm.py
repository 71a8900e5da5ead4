"""Alarms: what a runner waits on; its connection's socket and `ring` both wake it."""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
from contextlib import suppress


class Alarm:
    """Wakes one waiting thread. `ring` is for good: every wait after it returns at once.

    Threads: `ring` may be called from any thread and from a signal handler, the rest from one.
    """

    def __init__(self) -> None:
        self.rung = False
        self._process = os.getpid()
        self._near: socket.socket | None = None
        self._far: socket.socket | None = None

    def open(self) -> None:
        """Makes waiting possible."""
        near, self._far = socket.socketpair()
        self._process = os.getpid()
        near.setblocking(False)
        self._near = near
        if self.rung:
            self.ring()

    def ring(self) -> None:
        """Ends the wait, and every later one."""
        self.rung = True
        near = self._near
        if near is not None and self._process == os.getpid():  # a fork shares it with its parent
            with suppress(OSError):  # full, so it has rung; or closed, so no one waits
                near.send(b"!")

    def wait(self, timeout_s: float, fileno: int | None = None) -> None:
        """Waits until there is something to read, `ring`, or the time has passed.

        Args:
            timeout_s: Seconds at most.
            fileno: A socket to watch.
        """
        if self._far is None or self.rung or timeout_s <= 0:
            return
        with selectors.DefaultSelector() as watched:
            watched.register(self._far, selectors.EVENT_READ)
            if fileno is not None:
                watched.register(fileno, selectors.EVENT_READ)
            watched.select(timeout_s)

    async def sleep(self, timeout_s: float, fileno: int | None = None) -> None:
        """Is `wait`, for a runner's work over a blocking connection."""
        self.wait(timeout_s, fileno)

    def close(self) -> None:
        """Gives back what it holds open."""
        for end in (self._near, self._far):
            if end is not None:
                end.close()
        self._near = self._far = None


class AsyncAlarm:
    """Wakes one waiting task. `ring` is for good: every wait after it returns at once.

    Threads: `ring` may be called from any thread and from a signal handler, the rest from the
    thread of the loop that `open` was called in.
    """

    def __init__(self) -> None:
        self.rung = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Makes waiting possible, in the loop that runs now."""
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        """Ends the wait, and every later one."""
        self.rung = True  # before the loop is looked up: `sleep` looks at it after `open`
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits
                self._loop.call_soon_threadsafe(self._wake)

    async def sleep(self, timeout_s: float, fileno: int | None = None) -> None:
        """Waits until there is something to read, `ring`, or the time has passed.

        Args:
            timeout_s: Seconds at most.
            fileno: A socket to watch, that nothing else reads meanwhile.
        """
        loop = self._loop
        if loop is None or self.rung or timeout_s <= 0:
            return
        self._waiting = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake)
        if fileno is not None:
            loop.add_reader(fileno, self._wake)
        try:
            await self._waiting
        finally:
            if fileno is not None:
                loop.remove_reader(fileno)
            timer.cancel()
            self._waiting = None

    def close(self) -> None:
        """Ends its use of the loop."""
        self._loop = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
