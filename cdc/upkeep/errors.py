"""Errors of upkeep.

UpkeepError (CdcError)
├── CaptureStalledError  HW-C050  a capture says that it runs, and nothing moves
├── LogLostError         HW-C052  a consumer wants records that its topic has dropped
└── RemovalError         HW-C054  what a capture has made cannot be removed
"""

from __future__ import annotations

from cdc.errors import CdcError


class UpkeepError(CdcError):
    """Root of what can be wrong with a capture as it is kept."""

    code = "HW-C05X"


class CaptureStalledError(UpkeepError):
    """The connector says that it runs, nothing moves, and restarts have not helped."""

    code = "HW-C050"


class LogLostError(UpkeepError):
    """A consumer wants records that its topic has dropped already."""

    code = "HW-C052"


class RemovalError(UpkeepError):
    """Something that a capture has made at its source, or that only looks so, is not removed."""

    code = "HW-C054"
