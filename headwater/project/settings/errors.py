"""What can be wrong with the configuration."""

from __future__ import annotations

from foundation.errors import EXIT_USAGE
from headwater.errors import HeadwaterError


class SettingsError(HeadwaterError):
    """The configuration is invalid."""

    code = "HW-S001"
    exit_code = EXIT_USAGE


class UnknownSettingError(SettingsError):
    """A key is not a setting; the error names the nearest one."""

    code = "HW-S002"


class UnsetVariableError(SettingsError):
    """`${NAME}` refers to a variable that is not set or empty."""

    code = "HW-S003"


class ConflictingSettingsError(SettingsError):
    """Two settings exclude each other."""

    code = "HW-S004"
