"""Errors of the local runtime.

RuntimeServiceError            HW-R000
├── PortTakenError             HW-R001
├── DiskNearlyFullError        HW-R002
├── ServiceFailedError         HW-R003
├── SettingsDifferError        HW-R004
├── StartTimeoutError          HW-R005
├── AccountError               HW-R006
├── ServerMissingError         HW-R007
├── ExternalUnreachableError   HW-R008
├── SupervisorLostError        HW-R009
├── StopTimeoutError           HW-R010
├── PortImpossibleError        HW-R011
└── HomeUnusableError          HW-R012
"""

from __future__ import annotations

from foundation.errors import EXIT_MISSING, EXIT_UNHEALTHY, EXIT_USAGE
from headwater.errors import HeadwaterError


class RuntimeServiceError(HeadwaterError):
    """A local service cannot be started, watched or stopped."""

    code = "HW-R000"


class PortTakenError(RuntimeServiceError):
    """A port that the settings name is in use by somebody else."""

    code = "HW-R001"


class DiskNearlyFullError(RuntimeServiceError):
    """Too little room for the logs and tables that a start would write."""

    code = "HW-R002"


class ServiceFailedError(RuntimeServiceError):
    """A service did not start, or died more often than its restart budget allows."""

    code = "HW-R003"
    exit_code = EXIT_UNHEALTHY


class SettingsDifferError(RuntimeServiceError):
    """Services already run in this folder, with other settings."""

    code = "HW-R004"


class StartTimeoutError(RuntimeServiceError):
    """Not every service answered in time."""

    code = "HW-R005"
    retriable = True


class AccountError(RuntimeServiceError):
    """Postgres refuses to run as root and no other way to run it was found."""

    code = "HW-R006"


class ServerMissingError(RuntimeServiceError):
    """A server's program is not installed."""

    code = "HW-R007"
    exit_code = EXIT_MISSING


class ExternalUnreachableError(RuntimeServiceError):
    """A server that the settings name does not answer."""

    code = "HW-R008"
    retriable = True
    exit_code = EXIT_UNHEALTHY


class SupervisorLostError(RuntimeServiceError):
    """The supervisor ended without being asked to."""

    code = "HW-R009"
    retriable = True


class PortImpossibleError(RuntimeServiceError):
    """A service cannot listen on the port that the settings name."""

    code = "HW-R011"
    exit_code = EXIT_USAGE


class HomeUnusableError(RuntimeServiceError):
    """The home folder cannot be made or written."""

    code = "HW-R012"
    exit_code = EXIT_USAGE


class StopTimeoutError(RuntimeServiceError):
    """Something still runs after the time given for a stop."""

    code = "HW-R010"
    retriable = True
