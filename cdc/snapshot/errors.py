"""Errors of reading tables.

SnapshotError (CdcError)     HW-C060  a table cannot be read
├── WritersInTheWayError     HW-C061  transactions that write to a table stay open
├── ReadRefusedError         HW-C062  what is asked for cannot be read
├── ReadUnknownError         HW-C063  there is no such read under way
├── SourceWentBackError      HW-C064  the source's log is behind a position that it was read at
├── TableChangedError        HW-C065  a table has become another one while it was read
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

    Rows that carry the greater position would win over every change to come.
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
