"""Alarm: what a runner waits on; its connection's socket and `ring` both wake it."""

from __future__ import annotations

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
            with suppress(OSError):  # full, so it has rung; or closed, so nobody waits
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

    def close(self) -> None:
        """Gives back what it holds open."""
        for end in (self._near, self._far):
            if end is not None:
                end.close()
        self._near = self._far = None
