"""Errors of the demo.

DemoError            HW-D000
├── DemoHomeError    HW-D001
├── TrafficError     HW-D002
├── WorkloadError    HW-D003
├── ChaosError       HW-D004
├── RebuildError     HW-D005
└── AftermathError   HW-D006
"""

from __future__ import annotations

from foundation.errors import EXIT_UNHEALTHY, EXIT_USAGE
from headwater.errors import HeadwaterError


class DemoError(HeadwaterError):
    """The demo failed."""

    code = "HW-D000"


class DemoHomeError(DemoError):
    """The demo needs an empty folder, and does not empty a folder that it did not create."""

    code = "HW-D001"
    exit_code = EXIT_USAGE


class TrafficError(DemoError):
    """The process that writes to the source ended early."""

    code = "HW-D002"


class WorkloadError(DemoError):
    """The source could not be filled."""

    code = "HW-D003"


class ChaosError(DemoError):
    """A service to be killed does not run, or did not restart."""

    code = "HW-D004"
    exit_code = EXIT_UNHEALTHY


class RebuildError(DemoError):
    """A rebuild in the demo failed, or its result differs."""

    code = "HW-D005"
    exit_code = EXIT_UNHEALTHY


class AftermathError(DemoError):
    """Damage caused by the demo was not detected or repaired, or forgetting failed."""

    code = "HW-D006"
    exit_code = EXIT_UNHEALTHY
