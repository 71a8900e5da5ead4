"""Resident memory of a process and its descendants."""

from __future__ import annotations

import psutil


def tree_rss_bytes(pid: int) -> int | None:
    """Returns the memory of a process and its descendants, with shared pages counted once.

    Postgres backends share one large segment, which a plain sum would count once per backend.
    Returns None if the process has ended.
    """
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return None
    if len(family) == 1:
        return _rss(root)
    return sum(_pss(process) for process in family)


def _rss(process: psutil.Process) -> int | None:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return None


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return _rss(process) or 0
    except psutil.Error:
        return 0
