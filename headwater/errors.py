"""Errors of the assembled platform.

HeadwaterError
├── settings   HW-S…  the configuration is wrong
├── supply     HW-J…  Java, jars
├── runtime    HW-R…  local services
└── demo       HW-D…  the demo found a difference
"""

from __future__ import annotations

from typing import ClassVar


class HeadwaterError(Exception):
    """Root of the platform's own errors.

    Args:
        message: Lowercase fact without a full stop.
        detail: What was seen; never a secret or a row's value.
        hint: The one command or change that repairs it.
    """

    code: ClassVar[str] = "HW-000"
    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint


class UsageError(HeadwaterError):
    """The command line is invalid."""

    code = "HW-U001"
    exit_code = 2


class UnhealthyError(HeadwaterError):
    """A service that should run does not, or views differ from their source."""

    code = "HW-U002"
    exit_code = 3


class PlatformMissingError(HeadwaterError):
    """A required part of Headwater is not installed."""

    code = "HW-U003"
    exit_code = 4
