"""Sweeps: a TRUNCATE that ends all rows of a history's table, or a read that lacks some rows.

A TRUNCATE is in the log, and ends every older row. A read of the whole table is not: a key is gone
if the source had no row of it at the read's position. The read also lacks the row of a key that
changed between its position and the moment of reading that row, so a missing row proves nothing
where the log continues:

- The first change of the key in the log after the read's position, and before any TRUNCATE,
  decides. An insert found no row; an update or a delete found one.
- Otherwise, a TRUNCATE during the read ended the row if there was one.
- Otherwise, the key was gone unless the read has a row of it.

The result of a sweep therefore depends only on the known changes of a key, as in
`projections.stores.delta.history.states`, and a late change may restore a row that seemed gone.
Reads detect missing rows only in a gap of the log (or after a delete was dropped from quarantine).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cdc.position import VERSION_LSN_BITS, epoch_of
from projections.changes.row_change import read
from projections.definition.columns import INTERNAL_PREFIX, VERSION_COLUMN
from projections.stores.delta import key_equality
from projections.stores.delta.history.arrow import INSERTED, LIVE, reported
from projections.stores.delta.history.states import HistoryChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from projections.stores.delta.history.arrow import HistoryForm, TableKey
    from projections.stores.delta.history.states import HistoryState

_EVEN: Final = ~1
"""Versions of two changes of one key never differ only in the last bit, except for a completed
change and its own copy. The last bit is therefore free to store what a change reports."""

_BEFORE, _AFTER, _READ, _LATER, _MOVED = (
    f"{INTERNAL_PREFIX}{name}" for name in ("before", "after", "read", "later", "moved")
)


class HistorySweep(NamedTuple):
    """An event that ended all rows of a table, or that found some missing.

    Attributes:
        version: Its log position; it ends only older rows.
        at_us: Its time.
        until_us: For a read, when every row had been read; 0 if unknown.
    """

    version: int
    at_us: int
    until_us: int = 0

    @property
    def logged(self) -> bool:
        """Returns whether the log has it: a TRUNCATE. Otherwise it is just before a read's rows."""
        return not read(self.version)

    @property
    def epoch(self) -> int:
        """Returns the incarnation of the source."""
        return epoch_of(self.version)


def ends(changes: Sequence[HistoryChange], sweeps: Sequence[HistorySweep]) -> list[HistoryChange]:
    """Returns the deletes of one key that sweeps amount to.

    Args:
        changes: All known changes of the key.
        sweeps: All sweeps of its history, in log order.
    """
    if not sweeps:
        return []
    ordered = sorted(changes, key=lambda change: change.version)
    versions = [change.version for change in ordered]
    deletes: list[HistoryChange] = []
    truncate: HistorySweep | None = None
    for sweep in reversed(sweeps):
        index = bisect_right(versions, sweep.version)
        if not index:
            break
        there = ordered[index - 1].row is not None
        if truncate is not None and truncate.epoch != sweep.epoch:
            truncate = None
        if sweep.logged or (there and _gone(sweep, ordered[index:], truncate)):
            deletes.append(HistoryChange(sweep.version, sweep.at_us, None))
        truncate = sweep if sweep.logged else truncate
    return deletes


def reopened(
    changes: Sequence[HistoryChange], current: HistoryState | None, sweeps: Sequence[HistorySweep]
) -> bool:
    """Returns whether newer changes of a key change the result of an earlier sweep.

    Args:
        changes: The changes, in log order.
        current: The current state of their key.
        sweeps: All sweeps of its history.
    """
    first = next((change for change in changes if change.inserted is not None), None)
    if current is None:  # possibly of a key that a read found missing
        late = changes[0].version - 1
        return any(s.version == late for s in sweeps) or (first is not None and not first.inserted)
    if first is None:
        return False
    if first.inserted:
        return True  # the key was gone by then, perhaps by a read that nevertheless has a row of it
    began = current.version
    return read(began) and any(
        not s.logged and s.version + 1 < began and s.epoch == epoch_of(first.version)
        for s in sweeps
    )


def ended(
    form: HistoryForm, changes: DeltaTable, sweep: HistorySweep, sweeps: Sequence[HistorySweep]
) -> set[TableKey]:
    """Returns the keys whose states a sweep changes, as `ends` decides for each.

    Those are the keys that had a row until then, without those that an earlier sweep ended. If the
    sweep arrives after later changes, it also bounds how far these reach back, whether or not there
    was a row; and if a change or a sweep before it has a later time, the sweep moves that.

    Args:
        form: The history's form.
        changes: All its changes.
        sweep: The sweep.
        sweeps: All sweeps of the history.
    """
    keys = form.plan.keys
    data = changes.to_pyarrow_dataset()
    names = [*keys, VERSION_COLUMN, "_at", LIVE, INSERTED]
    parts = [
        _by_key(_report_of(file.to_table(schema=data.schema, columns=names), sweep), keys)
        for file in data.get_fragments()
    ]
    if not parts:
        return set()
    known = _by_key(pa.concat_tables(parts), keys)
    before, after = known.column(_BEFORE), known.column(_AFTER)
    earlier = [s for s in sweeps if s.version < sweep.version and (s.logged or not sweep.logged)]
    floor = max((s.version for s in earlier), default=0)
    set_back = (s.version for s in sweeps if s.version < sweep.version and s.at_us > sweep.at_us)
    moved_end = pc.fill_null(pc.less(before, max(set_back, default=0)), False)
    moves = pc.or_(known.column(_MOVED), moved_end)
    if form.rule.by_sequence:
        moves = pc.or_(moves, known.column(_LATER))
    changed = pc.or_(moves, pc.fill_null(pc.greater(before, floor), False))
    gone = pc.and_(_flag(before), changed)
    if sweep.logged:
        gone = pc.or_(gone, pc.and_(pc.is_valid(before), moves))
    else:
        truncate = _truncate_after(sweep, sweeps)
        if truncate is not None:
            before_it = pc.less(after, truncate.version)
            after = pc.if_else(before_it, after, pa.scalar(None, pa.int64()))
        unread = pc.and_(pc.is_null(after), pc.invert(known.column(_READ)))
        amid = _amid(sweep, truncate)
        gone = pc.and_(gone, _flag(after) if amid else pc.or_(unread, _flag(after)))
    return set(form.keys_in(known.filter(gone)))


def _truncate_after(sweep: HistorySweep, sweeps: Sequence[HistorySweep]) -> HistorySweep | None:
    """Returns the first TRUNCATE after a read's position, in the same incarnation of the source."""
    later = (s for s in sweeps if s.logged and s.epoch == sweep.epoch and s.version > sweep.version)
    return min(later, default=None)


def _amid(sweep: HistorySweep, truncate: HistorySweep | None) -> bool:
    """Returns whether the TRUNCATE removed rows that the read had not reached."""
    return truncate is not None and truncate.at_us <= sweep.until_us


def _gone(
    sweep: HistorySweep, later: Sequence[HistoryChange], truncate: HistorySweep | None
) -> bool:
    for change in later:
        if epoch_of(change.version) != sweep.epoch:
            break
        if truncate is not None and change.version > truncate.version:
            break
        if change.inserted is not None:
            return change.inserted
    read = bool(later) and later[0].version == sweep.version + 1
    return not read and not _amid(sweep, truncate)


def _report_of(rows: pa.Table, sweep: HistorySweep) -> pa.Table:
    """Returns what each change reports of its key.

    Columns: `_BEFORE` (last change before the sweep), `_AFTER` (first one after it), `_READ` (the
    read has a row), `_LATER` (a change after it), `_MOVED` (one before it has a later time).
    """
    version, none = rows.column(VERSION_COLUMN), pa.scalar(None, pa.int64())
    older = pc.less_equal(version, sweep.version)
    here = pc.equal(pc.shift_right(version, VERSION_LSN_BITS), sweep.epoch)
    reported_here = pc.and_(pc.invert(older), pc.and_(here, pc.is_valid(reported(rows))))
    reports = {
        _BEFORE: pc.if_else(older, _with(version, rows.column(LIVE)), none),
        _AFTER: pc.if_else(
            reported_here, _with(version, pc.fill_null(reported(rows), False)), none
        ),
        _READ: pc.equal(version, sweep.version + 1),
        _LATER: pc.invert(older),
        _MOVED: pc.and_(older, pc.greater(rows.column("_at").cast(pa.int64()), sweep.at_us)),
    }
    for name, column in reports.items():
        rows = rows.append_column(name, column)
    return rows.drop_columns([VERSION_COLUMN, "_at", LIVE, INSERTED])


def _by_key(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Returns the combined entries of each key."""
    parts = [(_BEFORE, "max"), (_AFTER, "min")]
    parts += [(name, "any") for name in (_READ, _LATER, _MOVED)]
    return key_equality.grouped(rows, keys, parts)


def _with(version: pa.ChunkedArray, flag: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.bit_wise_or(pc.bit_wise_and(version, _EVEN), flag.cast(pa.int64()))


def _flag(marked: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(pc.bit_wise_and(marked, 1), 1), False)
