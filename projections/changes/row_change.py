"""RowChange: a change that a sink applies, and Applied: the outcome of a write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cdc.position import epoch_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.errors import SinkError, WaitsBehindError

_ALIGNMENT: Final = 8  # alignment of records in Postgres' log
_LENT: Final = 1


# One is created for every record: a frozen dataclass would take ten times as long. The garbage
# collector need not visit them, because none is ever part of a cycle.
class RowChange(msgspec.Struct, frozen=True, gc=False):
    """The newest known state of one key.

    Attributes:
        key: Values of the view's key columns, in the plan's order; `()` for a truncate, which is a
            change only for histories.
        version: `ChangePosition.version` of the change.
        row: Decoded values by column; None after a delete.
        committed_at_us: Commit time at the source, microseconds since 1970, UTC; 0 for snapshot
            rows, whose commit time is unknown.
        unchanged_columns: Columns whose unchanged values Postgres did not log (TOAST). They are
            None in `row`; the stored row of the key has the values, if it is of the same epoch.
        base: If the change gave the row another key, the old key: the stored row with that key has
            the values of the unchanged columns. It must be from the log, not from a snapshot.
        moved_at: Version of the change that gave the row another key; a row stored under the old
            key with this version or a newer one is another row.
        read_at_us: Time of a snapshot row, microseconds since 1970, UTC; for histories only.
        sent_at_us: Time of its record at the broker, microseconds since 1970, UTC; 0 if unknown or
            not requested by a view.
        inserted: Whether the change inserted the row; None if the log does not show it, as for a
            snapshot row. For histories only.
        begun: Version of the newest insert or delete of the key in the batch; 0 if there is none,
            or if no view requests it. A change of version 0 without a row has no other
            information, because a snapshot replaces the row's changes.
        begun_at_us: Commit time of that insert, microseconds since 1970, UTC; 0 for a delete.
    """

    key: tuple[object, ...]
    version: int
    row: Mapping[str, object] | None
    committed_at_us: int
    unchanged_columns: tuple[str, ...] = ()
    base: tuple[object, ...] | None = None
    moved_at: int = 0
    read_at_us: int = 0
    sent_at_us: int = 0
    inserted: bool | None = None
    begun: int = 0
    begun_at_us: int = 0


class ReadSpan(NamedTuple):
    """Version and times of a whole-table snapshot.

    Attributes:
        version: Version of its rows; see `ChangePosition.of_read`.
        at_us: When its position was determined, microseconds since 1970, UTC.
        until_us: When the last row had been read, microseconds since 1970, UTC.
    """

    version: int
    at_us: int
    until_us: int


def may_complete(change: RowChange, stored_version: int, since: int = 0) -> bool:
    """Returns whether a stored row has the values of a change's unchanged columns.

    A row stored before a gap in the log (another epoch) may lack changes. A snapshot row was read
    at an unknown moment. That is harmless if the change has the same key, because later changes
    follow. If the change gave the row another key, the snapshot may have read a later row with the
    old key.

    Args:
        change: A change with unchanged columns.
        stored_version: Version of the stored row.
        since: Rows of older versions lack columns of their table; see `ViewPlan`.
    """
    if stored_version < since or epoch_of(stored_version) != epoch_of(change.version):
        return False
    return change.base is None or (stored_version < change.moved_at and not read(stored_version))


def completed_version(change: RowChange, stored_version: int) -> int:
    """Returns the version of a change completed with the values of a stored row.

    If that was a snapshot row, the completed row must not supply its values to another key. Its
    version is marked for that: greater than the change's, and less than that of any later change.
    """
    return change.version | _LENT if read(stored_version) else change.version


def read(version: int) -> bool:
    """Returns whether a row has values from a snapshot: no log record has such a version."""
    return bool(version & _ALIGNMENT - 1)


def whole_row_read(version: int) -> bool:
    """Returns whether all values of a row are from a snapshot."""
    return read(version) and version & _ALIGNMENT - 1 != _LENT


@dataclass(frozen=True, slots=True)
class Refused:
    """A change that a store refused while it applied the others.

    Attributes:
        change: The change.
        error: The cause: the store cannot hold it, has no row with the values of its unchanged
            columns, or refused an earlier change of its key.
    """

    change: RowChange
    error: SinkError | WaitsBehindError


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of the changes written to a sink.

    Attributes:
        upserted: Rows inserted or replaced.
        deleted: Deletes recorded, whether or not a row existed.
        stale: Changes that are not newer than the store's version of their key.
        refused: Changes that could not be written; their keys are unchanged.
        size_bytes: Bytes sent to the store.
    """

    upserted: int = 0
    deleted: int = 0
    stale: int = 0
    refused: tuple[Refused, ...] = ()
    size_bytes: int = field(default=0, compare=False)

    def __add__(self, other: Applied) -> Applied:
        return Applied(
            self.upserted + other.upserted,
            self.deleted + other.deleted,
            self.stale + other.stale,
            self.refused + other.refused,
            self.size_bytes + other.size_bytes,
        )
