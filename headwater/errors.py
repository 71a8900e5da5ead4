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
    """The command line cannot be carried out as written."""

    code = "HW-U001"
    exit_code = EXIT_USAGE


class UnhealthyError(HeadwaterError):
    """Something that should run does not, or copies differ."""

    code = "HW-U002"
    exit_code = EXIT_UNHEALTHY


class PlatformMissingError(HeadwaterError):
    """A part of Headwater is asked for that is not installed here."""

    code = "HW-U003"
    exit_code = EXIT_MISSING
