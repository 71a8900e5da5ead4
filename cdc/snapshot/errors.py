"""Errors of snapshots.

SnapshotError (CdcError)     HW-C060  a table cannot be read
├── WritersInTheWayError     HW-C061  transactions that write to a table stay open
├── ReadRefusedError         HW-C062  the requested table, key or condition cannot be read
├── ReadUnknownError         HW-C063  the snapshot does not exist, or has ended
├── SourceWentBackError      HW-C064  the source's log ends before a snapshot's position
├── TableChangedError        HW-C065  a table was altered or recreated during its snapshot
└── ReadDelayedError         HW-C066  a table cannot be read now
"""

from __future__ import annotations

from cdc.errors import CdcError
from foundation.errors import EXIT_USAGE


class SnapshotError(CdcError):
    """A table cannot be snapshotted."""

    code = "HW-C060"


class WritersInTheWayError(SnapshotError):
    """Transactions that write to a table stay open; the snapshot has to wait for them."""

    code = "HW-C061"
    retriable = True


class ReadRefusedError(SnapshotError):
    """The requested table, key or condition cannot be read."""

    code = "HW-C062"
    exit_code = EXIT_USAGE


class ReadUnknownError(SnapshotError):
    """The snapshot does not exist, or has already ended."""

    code = "HW-C063"
    exit_code = EXIT_USAGE


class SourceWentBackError(SnapshotError):
    """The source's log is behind a snapshot's position: it was restored or failed over.

    The snapshot's rows have the greater position, and would win over every later change.
    """

    code = "HW-C064"


class TableChangedError(SnapshotError):
    """A table was altered or recreated during its snapshot; the snapshot restarts."""

    code = "HW-C065"
    retriable = True


class ReadDelayedError(SnapshotError):
    """A table cannot be snapshotted now; the snapshot is retried."""

    code = "HW-C066"
    retriable = True
