"""Errors of stable tables, the paths under which other engines read a view."""

from __future__ import annotations

from projections.errors.base import ProjectionError


class StableTableError(ProjectionError):
    """A view's stable path cannot be updated; it keeps its present version."""

    code = "HW-P120"


class LogUnreadableError(StableTableError):
    """The log of a Delta table cannot be read far enough."""

    code = "HW-P121"


class LogWrittenError(StableTableError):
    """Another process has written to a stable path; the published version is written again."""

    code = "HW-P122"
    retriable = True


class PlaceUnpublishedError(StableTableError):
    """A view's physical name has no published version."""

    code = "HW-P123"


class PlaceBehindError(StableTableError):
    """A switch would move a view to an earlier boundary."""

    code = "HW-P124"
