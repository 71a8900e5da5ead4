"""Errors of upkeep.

UpkeepError (CdcError)
├── CaptureStalledError  HW-C050  a capture is reported as running, but nothing moves
├── LogLostError         HW-C052  a consumer needs records that its topic has deleted
└── RemovalError         HW-C054  a remnant of a capture cannot be removed
"""

from __future__ import annotations

from cdc.errors import CdcError


class UpkeepError(CdcError):
    """Root of the errors of operating a capture."""

    code = "HW-C05X"


class CaptureStalledError(UpkeepError):
    """The connector reports that it runs, no change arrives, and restarts did not help."""

    code = "HW-C050"


class LogLostError(UpkeepError):
    """A consumer needs records that its topic has already deleted."""

    code = "HW-C052"


class RemovalError(UpkeepError):
    """A part of a capture cannot be removed, or may not belong to Headwater."""

    code = "HW-C054"
