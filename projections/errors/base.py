"""ProjectionError: the base class of this package's errors."""

from __future__ import annotations

from foundation.errors import PlatformError


class ProjectionError(PlatformError):
    """Root of this package's errors."""

    code = "HW-P000"
