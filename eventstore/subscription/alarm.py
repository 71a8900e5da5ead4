"""Alarms: let a runner wait until its connection's socket is readable or `ring` is called."""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
from contextlib import suppress


class Alarm:
    """Wakes one waiting thread. After `ring`, every wait returns immediately.

    Threads: `ring` may be called from any thread and from a signal handler, other methods from one
    thread.
    """

    def __init__(self) -> None:
        self.rung = False
        self._process = os.getpid()
        self._near: socket.socket | None = None
        self._far: socket.socket | None = None

    def open(self) -> None:
        """Opens the sockets; call it before the first wait."""
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
        if near is not None and self._process == os.getpid():  # a forked child shares it
            # The buffer is full, so it has rung; or the socket is closed, so no thread waits.
            with suppress(OSError):
                near.send(b"!")

    def wait(self, timeout_s: float, fileno: int | None = None) -> None:
        """Waits until the socket is readable, `ring` is called, or the time is up.

        Args:
            timeout_s: Longest wait, in seconds.
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
        """Calls `wait`; a coroutine for a runner over a blocking connection."""
        self.wait(timeout_s, fileno)

    def close(self) -> None:
        """Closes the sockets."""
        for end in (self._near, self._far):
            if end is not None:
                end.close()
        self._near = self._far = None


class AsyncAlarm:
    """Wakes one waiting task. After `ring`, every wait returns immediately.

    Threads: `ring` may be called from any thread and from a signal handler, other methods from the
    thread of the event loop in which `open` was called.
    """

    def __init__(self) -> None:
        self.rung = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Binds the alarm to the running event loop; call it before the first wait."""
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        """Ends the wait, and every later one."""
        self.rung = True  # set before _loop is read: `sleep` checks it after `open` has set _loop
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits
                self._loop.call_soon_threadsafe(self._wake)

    async def sleep(self, timeout_s: float, fileno: int | None = None) -> None:
        """Waits until the socket is readable, `ring` is called, or the time is up.

        Args:
            timeout_s: Longest wait, in seconds.
            fileno: A socket to watch; no other code may read it meanwhile.
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
        """Releases the event loop."""
        self._loop = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
