"""RawChange: a change whose values are still as they travel, and how two of one key make one.

A large value that an update leaves as it was is not logged again. It is in the row as it was
before, and that is the newest change before it *in the log*: one of the same batch, or what the
store has. A row that was read beside the log is given to the store first, which knows whether it
has something newer. What came under another key has its values in the row of its old key. After a
gap in the log (another epoch) or a delete there is no such row, and the values are missing.
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


# one is made of every record, and none is part of a cycle
class RawChange(msgspec.Struct, frozen=True, gc=False):
    """A change whose values are still as they travel.

    Attributes:
        version: Its position in the log.
        row: Its values; None of a delete.
        key: The record's key; None of a table without one.
        committed_at_us: 0 of a row that was read.
        kept: Columns that it leaves as they were.
        record: What it was read from.
        taken: By column, the record of a value that it took from a change before it; under no
            name, the record that tells why its own key's row does not have the kept values.
        base: Key of the stored row that has the kept values, if it is not this change's own.
        moved_at: Version with which the row left that key.
        lost: Whether no row has them.
        below: An older whole row, which the store has to be given first.
        gone: Of a delete, the change that it came upon in this batch.
        cut: Whether a record of the key came after it that could not be read.
        inserted: See `RowChange.inserted`.
        begun: The record of its key's newest insert or delete, if it is asked for and not its own.
    """

    version: int
    row: Mapping[str, Any] | None
    key: bytes | None
    committed_at_us: int
    kept: tuple[str, ...]
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

    @property
    def own(self) -> Record:
        """The record of the change itself."""
        return Record._make(self.record)

    @property
    def records(self) -> tuple[Record, ...]:
        """Every record that is needed to read this change again; its own comes last.

        That of a delete may be a row's that moved: the values are those it had last.
        """
        found = {*(self.taken or {}).values()}
        if self.below is not None:
            found.add(self.below.record)
        if self.gone is not None:
            found.update(self.gone.records)
        if self.begun is not None:
            found.add(self.begun)
        return *map(Record._make, found - {self.record}), self.own


def newer_after(older: RawChange, newer: RawChange) -> RawChange:
    """Returns the newer of two changes of a key that came in this order."""
    if newer.row is None:
        return replace(newer, gone=older) if older.row is not None else newer
    if not newer.kept or newer.lost or newer.base is not None:
        return newer
    if _may_lend(older, newer) and not older.committed_at_us:
        return replace(newer, below=older)  # the store may have something newer
    return filled(older, newer)


def newer_before(older: RawChange, newer: RawChange) -> RawChange:
    """Returns the newer of two changes of a key, the older of which came late."""
    if older.row is None or older.kept or newer.lost or newer.base is not None:
        return newer
    if newer.below is not None and newer.below.version >= older.version:
        return newer
    return replace(newer, below=older) if _may_lend(older, newer) else newer


def filled(older: RawChange, newer: RawChange, moved_from: bytes | None = None) -> RawChange:
    """Returns a change with as many of its kept values as the one right before it in the log has.

    Args:
        older: The change before it.
        newer: The change.
        moved_from: The key that the row left with it.
    """
    before = older.taken or {}
    # without this record no one could tell later that the row of the key is not the right one
    witness = {_WITNESS: before.get(_WITNESS, older.record)}
    if older.row is None or not _may_lend(older, newer):
        return replace(newer, lost=True, taken=witness)
    if moved_from is not None and not older.committed_at_us:
        # read at a moment that no one knows: perhaps the row that came after under the old key
        return replace(newer, lost=True)
    kept = tuple(name for name in newer.kept if name in older.kept)
    values = {name: older.row[name] for name in newer.kept if name not in kept}
    taken = {name: before.get(name, older.record) for name in values}
    made = replace(newer, row={**(newer.row or {}), **values}, kept=kept, taken=taken)
    if not kept:
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
    """Whether what a row has is what a later change has kept."""
    same_epoch = epoch_of(older.version) == epoch_of(newer.version)
    return older.row is not None and same_epoch and not older.cut
