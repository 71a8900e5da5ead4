"""A process that shows a published version and ends itself with SIGKILL amid it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from projections.publishing import stable_table
from projections.publishing.published_versions import Published
from projections.publishing.stable_table import StableTable

if TYPE_CHECKING:
    from collections.abc import Callable

_SWITCHES_S = 140.0
STEPS = (
    (os, "link"),
    (Path, "mkdir"),
    (Path, "write_bytes"),
    (Path, "replace"),
    (Path, "unlink"),
    (DeltaTable, "create_checkpoint"),
)
"""All by which a file system comes to look otherwise."""


def show(tables: Path, source: str, view: str, step: int) -> None:
    """Follows what is published; ends the process before the step of that number."""
    stable_table.COMMITS_PER_CHECKPOINT = 2
    stable_table.CHECKPOINTS_PER_CLEANING = 1
    stable_table.KEPT_HOURS = 0  # type: ignore[attr-defined]
    left = [step]
    for owner, name in STEPS:
        setattr(owner, name, _counted(getattr(owner, name), left))
    StableTable(tables, view).follow(Published(tables, source))


def switch(tables: Path, source: str, view: str, places: list[str]) -> None:
    """Switches a view from place to place, and shows each at once; another version between each."""
    published, stable = Published(tables, source), StableTable(tables, view)
    deadline, pause = time.monotonic() + _SWITCHES_S, threading.Event()
    for place in places:
        published.switch({view: place})
        shown = stable.follow(published)
        assert shown is not None
        assert shown.place == place
        while (found := stable.content()) is None or found.number <= shown.number:
            assert time.monotonic() < deadline
            pause.wait(0.02)


def _counted(function: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return counted
