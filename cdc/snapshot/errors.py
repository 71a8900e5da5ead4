"""Errors of reading tables.

SnapshotError (CdcError)
└── WritersInTheWayError  HW-C061  transactions that write to a table stay open
"""

from __future__ import annotations

from cdc.errors import CdcError


class SnapshotError(CdcError):
    """A table could not be read."""

    code = "HW-C060"


class WritersInTheWayError(SnapshotError):
    """Transactions that write to a table stay open; what they write could not be placed."""

    code = "HW-C061"
    retriable = True
