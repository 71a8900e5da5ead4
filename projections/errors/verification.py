"""Errors of verification, repair and tracing, and of forgetting keys."""

from __future__ import annotations

from projections.errors.base import ProjectionError


class VerificationError(ProjectionError):
    """Views could not be compared with their source."""

    code = "HW-P030"


class RepairRefusedError(VerificationError):
    """Reading rows again cannot repair the view."""

    code = "HW-P034"


class NotCaughtUpError(VerificationError):
    """Views did not reach a position in time."""

    code = "HW-P031"
    retriable = True


class TraceError(VerificationError):
    """A row cannot be followed from its commits to the stores."""

    code = "HW-P032"


class ForgettingRefusedError(ProjectionError):
    """Keys cannot be forgotten as requested; nothing was erased."""

    code = "HW-P144"
