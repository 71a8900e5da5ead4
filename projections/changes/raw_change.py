"""RawChange: a change with encoded values, and how two changes of one key are combined.

Postgres does not log a large value again that an update did not change. The value is in the former
row, which is the preceding change *in the log*: a change of the same batch, or the store's row. A
snapshot row is not part of that order, so it is written to the store first, which knows whether it
has a newer row. If an update changed the key, the values are in the row of the old key. After a gap
in the log (another epoch) or a delete there is no such row, and the values are missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from cdc.position import epoch_of
from projections.changes.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

_WITNESS: Final = ""


# created for every record, and never part of a cycle
class RawChange(msgspec.Struct, frozen=True, gc=False):
    """A change whose values are still encoded.

    Attributes:
        version: Its position in the log.
        row: Its values; None for a delete.
        key: The record's key; None for a table without a key.
        committed_at_us: Commit time, microseconds since 1970, UTC; 0 for a snapshot row.
        unchanged_columns: Columns whose unchanged values it lacks (TOAST).
        record: Its record.
        taken: The records of values taken from preceding changes, by column; under the empty name,
            the record that shows why the row of its key does not have the unchanged values.
        base: Key of the stored row with the unchanged values, if it is another key.
        moved_at: Version with which the row left that key.
        lost: Whether no row has the unchanged values.
        below: An older whole row, which must be written to the store first.
        gone: For a delete, the deleted change of this batch.
        cut: Whether an unreadable record of the key follows it.
        inserted: See `RowChange.inserted`.
        begun: The record of its key's newest insert or delete, if requested and not its own.
        sent_at_us: For an event, the earliest time at the broker of its records in the batch,
            microseconds since 1970, UTC; 0 if that is the time of its own record.
    """

    version: int
    row: Mapping[str, Any] | None
    key: bytes | None
    committed_at_us: int
    unchanged_columns: tuple[str, ...]
    record: Record
    taken: Mapping[str, Record] | None = None
    base: bytes | None = None
    moved_at: int = 0
    lost: bool = False
    below: RawChange | None = None
    gone: RawChange | None = None
    cut: bool = False
    inserted: bool | None = None
    begun: Record | None = None
    sent_at_us: int = 0

    @property
    def first_sent_at_us(self) -> int:
        """The earliest time at the broker of its records, microseconds since 1970; 0 if unknown."""
        return self.sent_at_us or self.own.sent_at_us

    @property
    def own(self) -> Record:
        """The record of the change itself."""
        return Record._make(self.record)

    @property
    def records(self) -> tuple[Record, ...]:
        """Every record that is needed to read this change again; its own is the last.

        For a delete, this includes the deleted change, whose values a moved row may need.
        """
        records = {*(self.taken or {}).values()}
        if self.below is not None:
            records.add(self.below.record)
        if self.gone is not None:
            records.update(self.gone.records)
        if self.begun is not None:
            records.add(self.begun)
        return *map(Record._make, records - {self.record}), self.own


def newer_after(older: RawChange, newer: RawChange) -> RawChange:
    """Combines two changes of a key that arrived in log order; returns the newer one."""
    if newer.row is None:
        return replace(newer, gone=older) if older.row is not None else newer
    if not newer.unchanged_columns or newer.lost or newer.base is not None:
        return newer
    if _may_lend(older, newer) and not older.committed_at_us:
        return replace(newer, below=older)  # the store may have a newer row
    return filled(older, newer)


def newer_before(older: RawChange, newer: RawChange) -> RawChange:
    """Combines two changes of a key, if the older one arrived later; returns the newer one."""
    if older.row is None or older.unchanged_columns or newer.lost or newer.base is not None:
        return newer
    if newer.below is not None and newer.below.version >= older.version:
        return newer
    return replace(newer, below=older) if _may_lend(older, newer) else newer


def filled(older: RawChange, newer: RawChange, moved_from: bytes | None = None) -> RawChange:
    """Fills in the values of unchanged columns from the preceding change in the log.

    Args:
        older: The preceding change.
        newer: The change.
        moved_from: The row's old key, if the change moved it to another key.
    """
    before = older.taken or {}
    # this record later shows that the row of the key is not the one with the unchanged values
    witness = {_WITNESS: before.get(_WITNESS, older.record)}
    if older.row is None or not _may_lend(older, newer):
        return replace(newer, lost=True, taken=witness)
    if moved_from is not None and not older.committed_at_us:
        # read at an unknown moment: it may be a later row with the old key
        return replace(newer, lost=True)
    unchanged = tuple(name for name in newer.unchanged_columns if name in older.unchanged_columns)
    values = {name: older.row[name] for name in newer.unchanged_columns if name not in unchanged}
    taken = {name: before.get(name, older.record) for name in values}
    made = replace(
        newer, row={**(newer.row or {}), **values}, unchanged_columns=unchanged, taken=taken
    )
    if not unchanged:
        return made
    if moved_from is not None:
        lost = older.lost or older.below is not None
        if older.base is None:
            return replace(made, base=moved_from, moved_at=newer.version, lost=lost)
        return replace(made, base=older.base, moved_at=older.moved_at, lost=lost)
    if older.lost or older.base is not None:
        made = replace(made, taken=taken | witness)
    return replace(
        made, base=older.base, moved_at=older.moved_at, lost=older.lost, below=older.below
    )


def _may_lend(older: RawChange, newer: RawChange) -> bool:
    """Returns whether a change has the values of a later change's unchanged columns."""
    same_epoch = epoch_of(older.version) == epoch_of(newer.version)
    return older.row is not None and same_epoch and not older.cut
