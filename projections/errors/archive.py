"""Errors of the archive and its replay."""

from __future__ import annotations

from projections.errors.base import ProjectionError


class ReplayError(ProjectionError):
    """The archive cannot be replayed."""

    code = "HW-P105"


class ArchiveMissingError(ReplayError):
    """The source has no archive, or an unreadable one."""

    code = "HW-P106"


class ArchiveIncompleteError(ReplayError):
    """The archive lacks records that a view needs; the detail names topic and offsets."""

    code = "HW-P107"


class ReplayStoppedError(ReplayError):
    """A replay was stopped; it can be resumed."""

    code = "HW-P108"
    retriable = True


class BulkLostError(ReplayError):
    """Tasks cannot do their part of a rebuild: the command goes on without them."""

    code = "HW-P153"
    retriable = True


class RebuildSpaceError(ReplayError):
    """A disk or a quota is full that a rebuild by Spark needs; it resumes once space is free."""

    code = "HW-P158"
    retriable = True


class MomentUnreadableError(ReplayError):
    """The archive does not cover a position; the detail names one that it covers."""

    code = "HW-P109"
