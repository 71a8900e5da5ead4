"""StableTablesTask: keeps the stable path of every view at its published version."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import msgspec
from deltalake.exceptions import DeltaError

from projections.common.background_task import BackgroundTask
from projections.errors import ProjectionError
from projections.publishing.published_versions import Published
from projections.publishing.stable_table import StableTable

if TYPE_CHECKING:
    from pathlib import Path

INTERVAL_S: Final = 0.25
_AGAIN_S: Final = 5.0
"""Pause before the update of a stable table is retried, seconds; it stays unchanged meanwhile."""

logger = logging.getLogger(__name__)


class StableTablesTask(BackgroundTask):
    """Updates the stable table of every view when its published version changes, in its own thread.

    Nothing waits for it: a view that cannot be updated is retried, and delays no other. Only views
    whose table has changed cost anything.
    """

    def __init__(self, tables: Path, source: str) -> None:
        super().__init__("showcase")
        self.failing: dict[str, str] = {}
        self._tables = tables
        self._published = Published(tables, source)
        self._stable: dict[str, StableTable] = {}
        self._updated: dict[
            str, tuple[str, int]
        ] = {}  # by view: the place, and its table's version
        self._seen: object = None
        self._again_at = 0.0

    def work(self) -> None:
        """Updates the stable tables until stopped."""
        while not self.rested(INTERVAL_S):
            try:
                self.round()
            except (OSError, msgspec.MsgspecError) as error:
                logger.warning("published versions cannot be read: %s", type(error).__name__)

    def round(self) -> None:
        """Updates every stable table that is behind its published version."""
        latest, physical_names = self._published.latest(), self._published.current()
        if latest is None:
            return
        due = bool(self.failing) and time.monotonic() >= self._again_at
        if (latest.number, physical_names) == self._seen and not due:
            return
        for view, (place, table) in latest.by_view(physical_names).items():
            if self._stopped.is_set():
                return
            if self._updated.get(view) != (place, table.version):
                self._update(view)
        self._seen = latest.number, physical_names
        self._again_at = time.monotonic() + _AGAIN_S

    def _update(self, view: str) -> None:
        stable = self._stable.setdefault(view, StableTable(self._tables, view))
        try:
            content = stable.follow(self._published)
        except (ProjectionError, DeltaError, OSError) as error:
            why = error.code if isinstance(error, ProjectionError) else type(error).__name__
            if self.failing.get(view) != why:
                logger.warning("stable path of view %s is not updated: %s", view, why)
            self.failing[view] = why
            return
        self.failing.pop(view, None)
        if content is not None:
            self._updated[view] = content.place, content.version
