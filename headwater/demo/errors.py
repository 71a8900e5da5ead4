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
    """The demo could not be carried out."""

    code = "HW-D000"


class DemoHomeError(DemoError):
    """The demo starts from nothing and will not wipe a folder that is not its own."""

    code = "HW-D001"
    exit_code = EXIT_USAGE


class TrafficError(DemoError):
    """The process that writes to the source ended before its time."""

    code = "HW-D002"


class WorkloadError(DemoError):
    """The source could not be filled."""

    code = "HW-D003"


class ChaosError(DemoError):
    """What should be killed does not run, or did not come back."""

    code = "HW-D004"
    exit_code = EXIT_UNHEALTHY


class RebuildError(DemoError):
    """A view that should be rebuilt was not, or differs from what it was."""

    code = "HW-D005"
    exit_code = EXIT_UNHEALTHY


class AftermathError(DemoError):
    """Damage that the demo did was not found or not repaired, or nobody could be forgotten."""

    code = "HW-D006"
    exit_code = EXIT_UNHEALTHY
