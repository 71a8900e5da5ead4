"""Resident memory of all processes of the demo."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import psutil

from headwater.runtime.memory import tree_rss_bytes

if TYPE_CHECKING:
    from headwater.runtime import RuntimeStatus

_MIB: Final = 1024 * 1024


def everything_mib(status: RuntimeStatus | None) -> int:
    """Returns the memory of this process, its descendants, the supervisor and all servers."""
    total = tree_rss_bytes(os.getpid()) or 0
    if status is not None and not _below_us(status.supervisor.pid):
        total += tree_rss_bytes(status.supervisor.pid) or 0
    return total // _MIB


def _below_us(pid: int) -> bool:
    try:
        return any(parent.pid == os.getpid() for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False
