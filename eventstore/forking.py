"""Forks: what a child process must renew before it uses what its parent has made.

A fork copies memory and shares sockets, but it copies only the thread that forks. So the child has
locks that no thread will release, pools without their threads, and connections whose answers the
parent reads as well.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Forked(Protocol):
    """What holds locks, threads or connections of its process."""

    def after_fork(self) -> None:
        """Renews them in the child. No other thread runs there yet."""
        ...


_all: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()


def renew_after_fork(one: Forked) -> None:
    """Has `after_fork` called in each child that this process forks from now on."""
    _all.add(one)


def _renew() -> None:
    for one in list(_all):
        one.after_fork()


os.register_at_fork(after_in_child=_renew)
