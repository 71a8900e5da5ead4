"""Errors of view versions: rebuild, comparison, cutover."""

from __future__ import annotations

from projections.errors.base import ProjectionError


class VersionError(ProjectionError):
    """The versions of a view do not allow the operation."""

    code = "HW-P130"


class VersionBusyError(VersionError):
    """Another operation uses the versions of the view."""

    code = "HW-P131"
    retriable = True


class VersionUnknownError(VersionError):
    """A view does not have this version, or no longer has it."""

    code = "HW-P132"


class VersionBehindError(VersionError):
    """A version lags the active version."""

    code = "HW-P133"
    retriable = True


class VersionDiffersError(VersionError):
    """A version has unexplained differences, or its derived views do not fit.

    It is compared with the active version; the detail names the differences, and the views that
    would pause.
    """

    code = "HW-P134"


class DefinitionUnreadableError(VersionError):
    """A stored definition of a view cannot be read."""

    code = "HW-P135"


class RebuildRefusedError(VersionError):
    """A view cannot be rebuilt as requested."""

    code = "HW-P136"


class SwitchUnfinishedError(VersionError):
    """A cutover is complete in some stores; the job completes the others."""

    code = "HW-P150"
    retriable = True


class FunctionLostError(VersionError):
    """The stored function of a view version is missing or was altered."""

    code = "HW-P151"


class RebuildStoppedError(VersionError):
    """A rebuild was paused; the same command resumes it."""

    code = "HW-P137"
    retriable = True
