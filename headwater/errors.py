"""Errors of the assembled platform.

HeadwaterError
├── settings   HW-S…  the configuration is wrong
├── supply     HW-J…  Java, jars
├── runtime    HW-R…  local services
└── demo       HW-D…  the demo found a difference
"""

from __future__ import annotations

from foundation.errors import EXIT_MISSING, EXIT_UNHEALTHY, EXIT_USAGE, PlatformError


class HeadwaterError(PlatformError):
    """Root of the platform's own errors."""

    code = "HW-000"


class UsageError(HeadwaterError):
    """The command line is invalid."""

    code = "HW-U001"
    exit_code = EXIT_USAGE


class UnhealthyError(HeadwaterError):
    """A service that should run does not, or views differ from their source."""

    code = "HW-U002"
    exit_code = EXIT_UNHEALTHY


class PlatformMissingError(HeadwaterError):
    """A required part of Headwater is not installed."""

    code = "HW-U003"
    exit_code = EXIT_MISSING


class ViewMovedError(HeadwaterError):
    """A view was declared for another source, whose rows its table still has."""

    code = "HW-U006"
    exit_code = EXIT_USAGE
