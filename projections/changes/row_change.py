"""RowChange: the input of a sink, and Applied: its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cdc.position import epoch_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.errors import SinkError, WaitsBehindError

_ALIGNMENT: Final = 8  # of every record in Postgres' log
_LENT: Final = 1


# made for every record: a frozen dataclass takes ten times as long, and the collector has to look
# at each although none is ever part of a cycle
class RowChange(msgspec.Struct, frozen=True, gc=False):
    """The newest known state of one key.

    Attributes:
        key: Values of the view's key columns, in the plan's order; `()` of a truncate, which only
            a history is given as a change.
        version: `ChangePosition.version` of the change.
        row: Decoded values by column; None after a delete.
        committed_at_us: Commit time at the source, microseconds since 1970, UTC; 0 for rows that a
            snapshot read, whose commit time is unknown.
        kept: Columns that the change leaves as they were; in `row` they are None and mean nothing.
            Their values are in the stored row of the key, if that is of the same epoch.
        base: Key of the stored row that has them instead, if the row came under another key; that
            row must have come from the log, not have been read from the table.
        moved_at: Version with which the row left that key: a stored row that is not older is
            another one.
        read_at_us: Of a row that was read, when; for histories only.
        sent_at_us: Time of its record at the broker, microseconds since 1970, UTC; 0 if unknown, or
            no view asks.
        inserted: Whether the row came to be by it, or was there before; None where the log does not
            say, as of a row that was read. For histories only.
        begun: Version of the newest insert or delete of its key among the records that it was made
            from; 0 of none, or if no view asks. A change of version 0 without a row says that
            alone, of a row whose own changes are left to a read.
        begun_at_us: When that was committed, if it was an insert, microseconds since 1970, UTC.
    """

    key: tuple[object, ...]
    version: int
    row: Mapping[str, object] | None
    committed_at_us: int
    kept: tuple[str, ...] = ()
    base: tuple[object, ...] | None = None
    moved_at: int = 0
    read_at_us: int = 0
    sent_at_us: int = 0
    inserted: bool | None = None
    begun: int = 0
    begun_at_us: int = 0


class ReadSpan(NamedTuple):
    """Version and time of a whole-table snapshot; microseconds since 1970, UTC.

    Attributes:
        version: Version of the rows that it has read, as `ChangePosition.of_read` makes it.
        at_us: When its position was taken.
        until_us: When every row had been read.
    """

    version: int
    at_us: int
    until_us: int


def may_complete(change: RowChange, stored_version: int, since: int = 0) -> bool:
    """Returns whether a stored row has the values that a change keeps.

    After a gap in the log (another epoch) a stored row may lack changes. A row of a snapshot was
    read at an unknown moment: for changes of its own key that does no harm, as later ones follow,
    but under its old key there may be another row by now.

    Args:
        change: A change with kept values.
        stored_version: Version of the row that should have them.
        since: Rows of older versions lack columns of their table; see `ViewPlan`.
    """
    if stored_version < since or epoch_of(stored_version) != epoch_of(change.version):
        return False
    return change.base is None or (stored_version < change.moved_at and not read(stored_version))


def completed_version(change: RowChange, stored_version: int) -> int:
    """Returns the version of a change whose kept values came from a stored row.

    If that row was read from the table, so were the values, and the row may supply them to no other
    key. Its version shows that: it is after the change's own and before that of any later change.
    """
    return change.version | _LENT if read(stored_version) else change.version


def read(version: int) -> bool:
    """Tells whether a row, or some of its values, were read: no record of the log lies there."""
    return bool(version & _ALIGNMENT - 1)


def whole_row_read(version: int) -> bool:
    """Tells whether all of a row was read, at some moment from the position that it stands for."""
    return read(version) and version & _ALIGNMENT - 1 != _LENT


@dataclass(frozen=True, slots=True)
class Refused:
    """A change that a store refused, while it applied the others.

    Attributes:
        change: The change.
        error: Why: the store cannot hold it, or has no row with its unchanged values; or an earlier
            change of its key was refused.
    """

    change: RowChange
    error: SinkError | WaitsBehindError


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of the changes given to a sink.

    Attributes:
        upserted: Rows inserted or replaced.
        deleted: Deletes recorded, whether or not a row existed.
        stale: Changes not newer than what the store had.
        refused: Changes that could not be written; the key is as it was.
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
